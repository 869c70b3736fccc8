"""MNIST from its IDX files, gzipped or not: a magic number, big-endian dimensions, then the bytes."""

import functools
import gzip
import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from storebench.datasets.base import ArrayDataset, Arrays, Dataset, Origin, Provenance
from storebench.datasets.sources import open_source, unzipping
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.settings.words import Split
from storebench.units import number_of

CLASS_NAMES = tuple(str(digit) for digit in range(10))
IMAGE_SIDE = 28

_PREFIX = {Split.TRAIN: "train", Split.TEST: "t10k"}
_BYTES_MAX = 1 << 30  # most bytes that the header of one file may declare; MNIST has 47 MB, EMNIST 638 MB
_FETCH_HINT = "Delete it and fetch the data again: storebench data fetch mnist."
_damaged = functools.partial(CorruptDataError, hint=_FETCH_HINT)


def find(root: Path) -> Path | None:
    kinds = [(prefix, kind) for prefix in _PREFIX.values() for kind in ("images-idx3", "labels-idx1")]
    folders = (root / "mnist", root, root / "MNIST" / "raw")
    return next((place for place in folders if any(_locate(place, *parts) for parts in kinds)), None)


def open_mnist(folder: Path, split: Split, *_: object) -> Dataset:
    return ArrayDataset("mnist", split, functools.partial(_load, folder, split))


def _load(folder: Path, split: Split) -> Arrays:
    images_path = _require(folder, _PREFIX[split], "images-idx3")
    labels_path = _require(folder, _PREFIX[split], "labels-idx1")
    images = read_idx(images_path, dimensions=3)
    labels = read_idx(labels_path, dimensions=1)
    if images.shape[1:] != (IMAGE_SIDE, IMAGE_SIDE) or not len(images):
        raise _damaged(f"holds {images.shape} pixels, not N x 28 x 28", where=images_path)
    if len(labels) != len(images):
        raise _damaged(f"{len(labels)} labels for {len(images)} images", where=labels_path)
    if labels.max() > 9:
        raise _damaged(f"label {labels.max()} is not a digit from 0 to 9", where=labels_path)
    return Arrays(
        images=images[..., np.newaxis],
        labels=labels.astype(np.int64),
        class_names=CLASS_NAMES,
        provenance=Provenance(origin=Origin.REAL, source="MNIST IDX files"),
    )


def _locate(folder: Path, prefix: str, kind: str) -> Path | None:
    # Some tools unpack the authors' files to "train-images.idx3-ubyte".
    stems = (f"{prefix}-{kind}-ubyte", f"{prefix}-{kind.replace('-', '.')}-ubyte")
    return next((p for stem in stems for p in (folder / stem, folder / f"{stem}.gz") if p.is_file()), None)


def _require(folder: Path, prefix: str, kind: str) -> Path:
    path = _locate(folder, prefix, kind)
    if path is None:
        raise DataNotFoundError(
            f"the MNIST file {prefix}-{kind}-ubyte(.gz) is missing",
            where=folder,
            hint="Put it there or run: storebench data fetch mnist.",
        )
    return path


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    with open_source(path) as raw:
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        with unzipping(path, _FETCH_HINT), gzip.open(raw) if zipped else raw as stream:
            return _parse_idx(stream, path, dimensions)  # type: ignore[arg-type]


def _parse_idx(stream: BinaryIO, path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    header = stream.read(4 + 4 * dimensions)
    if header[:4] != bytes((0, 0, 8, dimensions)):  # 8 is the type of unsigned bytes
        what = f"unsigned bytes with {number_of(dimensions, 'dimension')}"
        magic = header[:4].hex() or "(empty file)"
        raise _damaged(f"wrong magic number {magic}: not an IDX file of {what}", where=path)
    if len(header) < 4 + 4 * dimensions:
        raise _damaged("truncated inside its header", where=path)
    shape = struct.unpack(f">{dimensions}I", header[4:])
    expected = math.prod(shape)
    sides = "x".join(map(str, shape))
    if expected > _BYTES_MAX:
        raise _damaged(f"its dimensions {sides} declare {expected:,} bytes", where=path)
    # One byte more than the dimensions declare, to detect a file with a tail.
    data = stream.read(expected + 1)
    if len(data) != expected:
        size = f"only {len(data):,}" if len(data) < expected else "more"
        raise _damaged(f"its dimensions {sides} need {expected:,} bytes, it has {size}", where=path)
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
