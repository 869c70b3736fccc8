"""A store as a map-style dataset of torch: pixels and labels for a DataLoader, through any reader of the format."""

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import util as process_util
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data as torch_data
from PIL import Image

from storebench.codecs import OriginalCodec, any_size, get_codec
from storebench.errors import CorruptDataError
from storebench.formats.base import Indices, Reader
from storebench.formats.registry import get_format, parse_backend
from storebench.loading.batch import Allocate
from storebench.record.manifest import Manifest, read_names

Transform = Callable[[Any], Any]

# Readers and loaders of a parent process, kept: destroying one here could affect files that the parent still uses.
OPENED_BEFORE_A_FORK: list[object] = []


def _new(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.empty(shape, np.uint8))


class StoreDataset(torch_data.Dataset[tuple[Any, int]]):
    """Images and labels of a store, for `torch.utils.data.DataLoader`.

    A reader is opened in each process that asks for a sample, when it first does. The dataset may therefore be
    pickled, sent to worker processes and carried across a fork. One thread at a time may use it. A DataLoader
    asks for whole batches (`__getitems__`), and each batch is one fetch.

    Parameters
    ----------
    store
        The store's folder, which ``storebench convert`` made.
    reader
        The reader's name, such as "direct"; None for the format's default.
    options
        The reader's options, such as ``{"threads": "2"}``.
    transform
        Called with each image; what it returns takes the image's place. With worker processes that are
        spawned it must be picklable.
    pil
        Whether each image is a Pillow image, as torchvision's transforms take it. A store of original files then gives
        images in their own sizes, instead of their middle squares.

    Attributes
    ----------
    store
        The store's folder, absolute.
    manifest
        Description of the store: dataset, geometry, codec, class names.
    backend
        Format, codec, reader and options.
    transform, pil
        As given.
    classes, names
        The names of the classes, in the order of the labels, and of the samples.

    Raises
    ------
    CorruptStoreError
        There is no store in the folder.
    UnknownNameError
        The format has no such reader, or the reader no such option.
    MissingDependencyError
        The library that the format needs is not installed.

    Examples
    --------
    >>> import storebench, torch
    >>> dataset = storebench.StoreDataset("stores/mnist-train/lmdb+raw")
    >>> image, label = dataset[0]
    >>> image.shape, image.dtype
    (torch.Size([1, 28, 28]), torch.uint8)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)
    """

    def __init__(
        self,
        store: Path | str,
        reader: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        transform: Transform | None = None,
        pil: bool = False,
    ) -> None:
        self.store = Path(store).absolute()  # a worker may run in another folder
        self.manifest = Manifest.read(self.store)
        self.transform = transform
        self.pil = pil
        name = f"{self.manifest.format}+{self.manifest.codec}" + (f":{reader}" if reader else "")
        pairs = ",".join(f"{key}={value}" for key, value in (options or {}).items())
        self.backend = parse_backend(f"{name}?{pairs}")
        self._names: Sequence[str] | None = None
        self._reader: Reader | None = None
        self._opened_by = 0
        self._closing: process_util.Finalize | None = None

    @property
    def classes(self) -> list[str]:
        """Names of the classes; a label is the position of its class's name."""
        return list(self.manifest.dataset.class_names)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Labels of all samples, int64 [N], for samplers that weigh classes; opens the reader."""
        return self._open().labels

    @property
    def names(self) -> Sequence[str]:
        """Names of all samples, to join masks, captions or boxes of your own.

        The path of the image file in the folder that was converted, the key or path in a container that has them, and
        else the number in the dataset, counted from 0. Derived samples have the name of their original.

        Raises
        ------
        CorruptStoreError
            An earlier storebench has written the store, without names.
        """
        if self._names is None:
            self._names = read_names(self.store, self.manifest)
        return self._names

    def __len__(self) -> int:
        return self.manifest.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return one sample: its image, uint8 [C, H, W] or Pillow's or what `transform` makes of it, and its label.

        Raises
        ------
        IndexError
            `index` is not in ``range(len(dataset))``; negative indices are refused, too.
        TypeError
            `index` is no integer.
        IntegrityError
            The store is damaged.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int]]:
        """Return several samples in the order of `indices`, from one fetch; see `__getitem__`."""
        return self.samples(self._open(), self.checked(indices))

    def samples(self, reader: Reader, indices: Indices, allocate: Allocate = _new) -> list[tuple[Any, int]]:
        """Return several samples by any reader of the store, in memory from anywhere; see `__getitems__`."""
        if self.pil and any_size(reader.payload_codec):
            images: Sequence[Any] = _whole_images(reader, indices)
        else:
            batch = allocate((len(indices), *reader.image_shape))
            pixels = batch.numpy()
            reader.read_into(indices, pixels)
            images = batch.permute(0, 3, 1, 2).unbind()
            if self.pil:
                squeezed = pixels[..., 0] if pixels.shape[3] == 1 else pixels
                images = list(map(Image.fromarray, squeezed))
        if self.transform is not None:
            images = list(map(self.transform, images))
        return list(zip(images, reader.labels[indices].tolist(), strict=True))

    def checked(self, indices: Sequence[int]) -> Indices:
        """Return indices as an array, int64 [n], or raise `IndexError` if no sample has one of them."""
        numbers = list(map(operator.index, indices))
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(self):
            wrong = next(number for number in numbers if not 0 <= number < len(self))
            raise IndexError(f"no sample {wrong} in {len(self)}")
        return np.array(numbers, np.int64)

    def close(self) -> None:
        """Close this process's reader; the next sample opens it anew. Calling it twice is harmless."""
        if self._closing is not None and self._opened_by == os.getpid():
            self._closing()  # calls the reader's close, once
            self._reader = self._closing = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # An open reader stays in its process, and names are read again.
        return {**self.__dict__, "_names": None, "_reader": None, "_opened_by": 0, "_closing": None}

    def _open(self) -> Reader:
        """Return this process's reader, opened when it is first needed."""
        if self._reader is not None and self._opened_by != os.getpid():
            OPENED_BEFORE_A_FORK.append(self._reader)
            self._reader = None
        if self._reader is None:
            opened = get_format(self.manifest.format).reader(
                self.store, self.manifest, self.backend.reader, dict(self.backend.options)
            )
            # Called when the dataset is destroyed or its process ends, but never in a forked child.
            self._closing = process_util.Finalize(self, opened.close, exitpriority=0)
            self._reader, self._opened_by = opened, os.getpid()
        return self._reader


def _whole_images(reader: Reader, indices: Indices) -> list[Image.Image]:
    """Return image files decoded, each in its own size."""
    decoder = get_codec(reader.payload_codec)
    assert isinstance(decoder, OriginalCodec)
    images = []
    for index, payload in zip(indices, reader.fetch(indices), strict=True):
        try:
            images.append(decoder.decode(payload, reader.image_shape).picture)
        except CorruptDataError as error:
            raise CorruptDataError(f"sample {index}: {error.what}", where=reader.store) from error
    return images
