"""The dataset contract: a sequence of (uint8 image, integer label) with a known geometry and origin."""

import enum
import hashlib
import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.names import name_of_text, printable
from storebench.settings.words import Split

FOLDER_PREFIX = "folder:"

MOST_SAMPLES = 10**9
"""Largest size or limit: the digests of so many samples alone take 16 GB."""

Image = npt.NDArray[np.uint8]
"""One decoded image, uint8 [H, W, C], C order; C is 1 or 3 (RGB)."""


class Origin(enum.StrEnum):
    """Where the pixels come from; derived and synthetic data is labelled wherever it appears."""

    REAL = "real"
    DERIVED = "derived"
    """Real images, some of them cropped, mirrored and brightened to reach a larger count."""
    SYNTHETIC = "synthetic"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a dataset's samples come from.

    Attributes
    ----------
    origin
        Real, derived from real, or synthetic.
    source
        The layout that was read, in words ("CIFAR-10 binary batches").
    derived_frac
        Share of the samples that are not unchanged images of the source, 0 to 1.
    note
        One line that a reader of a figure should see ("1 of 5 batches present"), or "".
    """

    origin: Origin
    source: str
    derived_frac: float = 0.0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The geometry and identity of a dataset, without its pixels.

    Attributes
    ----------
    name
        The requested name ("mnist", "folder:PATH").
    split
        "train" or "test".
    count
        Number of samples.
    image_shape
        (H, W, C) of every image.
    class_names
        One name per class; labels index it.
    fingerprint
        Hexadecimal digest of everything that determines the samples: source files
        with their sizes, split, size, limit, seed. Equal fingerprints mean equal
        samples.
    """

    name: str
    split: Split
    count: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    provenance: Provenance
    fingerprint: str

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def image_bytes(self) -> int:
        """Bytes of one decoded image."""
        height, width, channels = self.image_shape
        return height * width * channels


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    r"""A request for samples.

    Attributes
    ----------
    name
        "mnist", "cifar10", "imagenet" or "folder:PATH"; in PATH, ``\xNN`` stands for a byte that is not UTF-8.
    split
        "train" or "test" (the validation split of ImageNet).
    size
        Extend or cut the dataset to this many samples; None leaves it unchanged.
    limit
        Use only the first `limit` samples, after `size`; None uses all.
    seed
        Seed of the derived and synthetic samples.
    synthetic
        True requests the stand-in, False refuses it, None uses it if no real files are found.
    """

    name: str
    split: Split = Split.TRAIN
    size: int | None = None
    limit: int | None = None
    seed: int = 0
    synthetic: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))
        object.__setattr__(self, "split", Split.of(self.split))

    @property
    def folder(self) -> Path | None:
        """The PATH of ``folder:PATH``; None for every other dataset."""
        if not self.name.startswith(FOLDER_PREFIX):
            return None
        return Path(name_of_text(self.name.removeprefix(FOLDER_PREFIX)))

    @property
    def store_id(self) -> str:
        """The name of the folder that holds this dataset's stores ("imagenet-train-size4000")."""
        name = self.name
        if self.folder is not None:
            path = self.folder.resolve()
            tag = hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()
            name = f"folder-{re.sub(r'[^A-Za-z0-9_.-]', '_', path.name)}-{tag}"
        parts = [name, self.split]
        parts += [f"size{self.size}"] if self.size is not None else []
        parts += [f"limit{self.limit}"] if self.limit is not None else []
        parts += [f"seed{self.seed}"] if self.seed else []
        parts += ["synthetic"] if self.synthetic else []
        return "-".join(parts)


class Dataset(ABC):
    """A sequence of samples; picklable, so that several processes can encode it."""

    @property
    @abstractmethod
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset."""

    @abstractmethod
    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, C], label).

        Raises
        ------
        CorruptDataError
            The sample does not decode; the message names its file.
        IndexError
            `index` is not in ``range(len(self))``.
        """

    def __len__(self) -> int:
        return self.info.count
