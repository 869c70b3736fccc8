"""The dataset contract, a sequence of (uint8 image, integer label), and the dataset that is held in memory."""

import dataclasses
import enum
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.datasets.sources import check_index, fingerprint
from storebench.plain_text import name_of_text, printable
from storebench.settings.words import Split

FOLDER_PREFIX = "folder:"
LIST_PREFIX = "list:"
CONTAINER_PREFIX, HF_PREFIX = "container:", "hf:"
# What begins the name of a dataset that is named by its path.
PATH_PREFIXES = (FOLDER_PREFIX, LIST_PREFIX, CONTAINER_PREFIX, HF_PREFIX)

MOST_SAMPLES = 10**9  # largest size or limit: the digests alone of this many samples take 16 GB

# Smallest and largest side of images that may be asked for, in pixels.
LEAST_IMAGE_SIZE, MOST_IMAGE_SIZE = 8, 4096

Image = npt.NDArray[np.uint8]  # one decoded image, uint8 [H, W, C], C order; C is 1 or 3 (RGB)


class Origin(enum.StrEnum):
    """The origin of the pixels; derived and synthetic data is labelled wherever it appears."""

    REAL = "real"
    DERIVED = "derived"  # Real images, some of them cropped, mirrored and brightened to reach a larger count.
    SYNTHETIC = "synthetic"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    origin: Origin  # real, derived from real, or synthetic
    source: str  # the layout that was read, in words ("CIFAR-10 binary batches")
    derived_frac: float = 0.0  # share of the samples that are not unchanged images of the source, 0 to 1
    note: str = ""  # one line that a reader of a figure should see ("1 of 5 batches present"), or ""
    skipped_files: int = 0  # number of unreadable image files that were left out, as asked

    def noted(self, *clauses: str) -> "Provenance":
        """Return this with further clauses in its note; empty ones are left out."""
        return dataclasses.replace(self, note="; ".join(filter(None, (self.note, *clauses))))


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The geometry and identity of a dataset, without its pixels."""

    name: str  # the requested name ("mnist", "folder:PATH")
    split: Split  # "train" or "test"
    count: int  # number of samples
    image_shape: tuple[int, int, int]  # (H, W, C) of every image
    class_names: tuple[str, ...]  # one name per class; labels index it
    provenance: Provenance
    fingerprint: str

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_bytes(self) -> int:
        height, width, channels = self.image_shape
        return height * width * channels


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    name: str
    split: Split = Split.TRAIN  # "train" or "test" (the validation split of ImageNet)
    size: int | None = None  # extend or cut the dataset to this many samples; None leaves it unchanged
    limit: int | None = None  # use only the first `limit` samples, after `size`; None uses all
    seed: int = 0  # seed of the derived and synthetic samples
    synthetic: bool | None = None
    image_size: int | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))
        object.__setattr__(self, "split", Split.of(self.split))

    @property
    def folder(self) -> Path | None:
        """The PATH of ``folder:PATH``; None for every other dataset."""
        return self._path_after(FOLDER_PREFIX)

    @property
    def file_list(self) -> Path | None:
        """The FILE of ``list:FILE``; None for every other dataset."""
        return self._path_after(LIST_PREFIX)

    @property
    def container(self) -> str | None:
        """The PATH of ``container:PATH``, with its pattern and fields; ``hf:PATH`` means the same."""
        path = self._path_after(CONTAINER_PREFIX) or self._path_after(HF_PREFIX)
        return None if path is None else str(path)

    def _path_after(self, prefix: str) -> Path | None:
        if not self.name.startswith(prefix):
            return None
        return Path(name_of_text(self.name.removeprefix(prefix)))

    @property
    def store_id(self) -> str:
        """The name of the folder that holds this dataset's stores ("imagenet-train-size4000")."""
        name = self.name
        if (prefix := next(filter(name.startswith, PATH_PREFIXES), None)) is not None:
            path = Path(name_of_text(name.removeprefix(prefix))).resolve()
            kind = "container" if prefix == HF_PREFIX else prefix.removesuffix(":")
            tag = hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()
            before, *fields = str(path).split("#", 1)  # fields may have slashes
            title = re.sub(r"[^A-Za-z0-9_.-]", "_", "_".join([Path(before).name, *fields]))
            name = f"{kind}-{title}-{tag}"
        parts = [name, self.split]
        parts += [f"size{self.size}"] if self.size is not None else []
        parts += [f"limit{self.limit}"] if self.limit is not None else []
        parts += [f"seed{self.seed}"] if self.seed else []
        parts += ["synthetic"] if self.synthetic else []
        parts += [f"px{self.image_size}"] if self.image_size is not None else []
        parts += ["readable"] if self.skip_unreadable else []
        return "-".join(parts)


class Dataset(ABC):
    """A sequence of samples; picklable, so that several processes can encode it."""

    resize_note: str = ""  # one clause if `sample` changes the number of an image's pixels by a large factor
    layout_note: str = ""  # clauses on labels and images that depend on the folders of the image files
    skip_note: str = ""  # one clause that counts the unreadable files that were left out and names some
    original_info: DatasetInfo | None = None
    """The geometry and identity of the image files as they are; None if the samples are no image files."""

    in_memory: bool = False  # whether all images are in memory
    thread_safe: bool = False  # whether several threads may call `original` at the same time
    _info: DatasetInfo

    @property
    def info(self) -> DatasetInfo:
        return self._info

    @abstractmethod
    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, C], label)."""

    def locate(self, index: int) -> str:
        """Return the file of sample `index`, for messages; or which sample it is, where it has no file."""
        return f"sample {index} of {self.info.name}"

    def name(self, index: int) -> str:
        """Return the path of the file of sample `index` in its folder, or its key in a container; else its number."""
        return str(index)

    def original(self, index: int) -> tuple[bytes, int]:
        """Return the bytes of the image file of sample `index`, unchanged, and its label."""
        raise NotImplementedError(f"{type(self).__name__} has no image files")

    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        """Return the bytes of each sample's image file, int64 [n]; None if they are known only by reading it."""
        return None

    def __len__(self) -> int:
        return self.info.count


_DIGEST_BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Images, uint8 [N, H, W, C] in any memory order, and their labels, int64 [N]."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    provenance: Provenance

    def digest(self) -> str:
        """Return the digest of all pixels and labels, which does not depend on the memory order."""
        digest = hashlib.blake2b(digest_size=16)
        for start in range(0, len(self.images), _DIGEST_BLOCK):
            digest.update(np.ascontiguousarray(self.images[start : start + _DIGEST_BLOCK]).data)
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return digest.hexdigest()


class ArrayDataset(Dataset):
    """Serve samples from arrays that `load` reads."""

    in_memory = True

    def __init__(self, name: str, split: Split, load: Callable[[], Arrays]) -> None:
        arrays = load()
        self._load = load
        self._arrays: Arrays | None = arrays
        count, height, width, channels = arrays.images.shape
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=count,
            image_shape=(height, width, channels),
            class_names=arrays.class_names,
            provenance=arrays.provenance,
            fingerprint=fingerprint("arrays", arrays.images.shape, arrays.digest()),
        )

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, self._info.count)
        if self._arrays is None:
            self._arrays = self._load()
        return np.array(self._arrays.images[index], order="C"), int(self._arrays.labels[index])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}
