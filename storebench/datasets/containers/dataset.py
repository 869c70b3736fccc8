"""The datasets that serve the samples of a container: image files as they are, or pixels."""

import functools
import os
from pathlib import Path

from storebench.datasets import images
from storebench.datasets.base import CONTAINER_PREFIX, Dataset, DatasetInfo, Image, Origin, Provenance
from storebench.datasets.containers.base import Container
from storebench.datasets.containers.find import find_container
from storebench.datasets.files import ImageFiles
from storebench.datasets.sources import check_index, fingerprint, names_digest, statuses
from storebench.errors import CorruptDataError, UsageError
from storebench.plain_text import text_of_name
from storebench.settings.words import Split
from storebench.system.isolated import IsolatedError, run_isolated
from storebench.units import number_of

SCAN_LIMIT_S, SCAN_MEMORY_BYTES = 24 * 3600.0, 8 << 30


def open_container(text: str, split: Split, image_size: int | None = None) -> Dataset:
    """Open ``container:PATH``: its samples are in the order of its files, and of each file."""
    container = find_container(text, split)
    # In a process of its own, because libraries may crash on a damaged file.
    try:
        container = run_isolated(
            functools.partial(_scanned, container), limit_s=SCAN_LIMIT_S, memory_bytes=SCAN_MEMORY_BYTES
        )
    except IsolatedError as error:
        raise CorruptDataError(
            f"reading {container.kind} {error}",
            where=container.files[0],
            hint="The file is probably damaged: check it with the program that wrote it.",
        ) from None
    if not len(container.classes.labels):
        raise CorruptDataError("holds no samples", where=container.files[0], hint="Name another file.")
    if isinstance(first := container.read(0), bytes):
        return ContainerImages(text, split, container, image_size)
    if image_size is not None:
        raise UsageError(
            f"the samples of {container.kind} are pixels of one size, so none can be asked for",
            where=container.files[0],
            hint="Leave out --image-size.",
        )
    return ContainerPixels(text, split, container, first)


def _scanned(container: Container) -> Container:
    container.scan()
    return container


def _info(text: str, split: Split, container: Container, shape: tuple[int, int, int]) -> DatasetInfo:
    classes, files = container.classes, container.files
    source = f"{container.kind} ({number_of(len(files), 'file')})"
    one_class = "one class only, so every label is 0" if len(classes.names) == 1 else ""
    return DatasetInfo(
        name=CONTAINER_PREFIX + text_of_name(text),
        split=split,
        count=len(classes.labels),
        image_shape=shape,
        class_names=classes.names,
        provenance=Provenance(origin=Origin.REAL, source=source).noted(*container.notes, one_class),
        fingerprint="",
    )


def _identity(container: Container) -> tuple[object, ...]:
    """Return what identifies the samples of a container: the files, and the fields that are read."""
    root = Path(os.path.commonpath([file.parent for file in container.files]))
    names = [os.path.relpath(file, root) for file in container.files]
    digest, refused = names_digest(root, names, statuses(map(str, container.files)))
    for error in refused.values():
        raise error
    return container.asked, fingerprint(container.classes.labels.tobytes()), container.classes.names, digest


class ContainerImages(ImageFiles):
    """Serve the image files that a container holds."""

    def __init__(self, text: str, split: Split, container: Container, image_size: int | None) -> None:
        self._container = container
        self.labels = container.classes.labels
        headers = images.probed_headers(self._start, len(self.labels))
        shape = images.common_small_shape(self._start, len(self.labels)) or images.square(None)
        info = _info(text, split, container, shape)
        self.layout_note = info.provenance.note
        self.describe("container", info, images.sizes_of(headers), image_size, *_identity(container))

    def locate(self, index: int) -> str:
        return self._container.locate(index)

    def _read(self, index: int) -> bytes:
        content = self._container.read(index)
        if not isinstance(content, bytes):
            raise CorruptDataError("pixels, where other samples are image files", where=self.locate(index))
        return content

    def _start(self, index: int, most: int) -> bytes:
        return self._read(index)[:most]


class ContainerPixels(Dataset):
    """Serve the pixels that a container holds, uint8 of one shape."""

    def __init__(self, text: str, split: Split, container: Container, first: Image) -> None:
        self._container = container
        height, width, channels = first.shape
        info = _info(text, split, container, (height, width, channels))
        self.layout_note = info.provenance.note
        # The pixels are part of the identity only through the files.
        self._info = DatasetInfo(
            **vars(info) | {"fingerprint": fingerprint("pixels", first.shape, *_identity(container))}
        )

    def locate(self, index: int) -> str:
        return self._container.locate(index)

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, len(self))
        pixels = self._container.read(index)
        if isinstance(pixels, bytes) or pixels.shape != self._info.image_shape:
            shape = "an image file" if isinstance(pixels, bytes) else f"of shape {pixels.shape}"
            raise CorruptDataError(
                f"{shape}, where the first sample has pixels {self._info.image_shape}",
                where=self.locate(index),
                hint="Resize the images to one size, or store them as image files.",
            )
        return pixels, int(self._container.classes.labels[index])
