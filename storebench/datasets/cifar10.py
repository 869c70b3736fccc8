"""CIFAR-10 in its binary and its Python layout, from a folder or directly from the official archive."""

import functools
import gzip
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.datasets.base import ArrayDataset, Arrays, Dataset, Origin, Provenance
from storebench.datasets.sources import members, read_file, unzipping
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.settings.words import Split
from storebench.system.pickles import unpickled

CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
RECORD_BYTES = 3073

_ARCHIVE_BYTES_MAX = 256 << 20  # the official archives unpack to 177 and 178 MiB
_BATCHES = {Split.TRAIN: tuple(f"data_batch_{number}" for number in range(1, 6)), Split.TEST: ("test_batch",)}
_FETCH_HINT = "Delete it and fetch the data again: storebench data fetch cifar10."
_damaged = functools.partial(CorruptDataError, hint=_FETCH_HINT)

# Planar images, uint8 [n, 3, 32, 32], and labels, int64 [n].
Records = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def parse_binary(raw: bytes, where: str) -> Records:
    if not raw or len(raw) % RECORD_BYTES:
        raise _damaged(f"its size, {len(raw):,} bytes, is not a multiple of {RECORD_BYTES:,}", where=where)
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:].reshape(-1, 3, 32, 32), _checked_labels(records[:, 0], where)


def parse_python(raw: bytes, where: str) -> Records:
    try:
        loaded = dict(unpickled(raw))
        batch = {
            str(key, "latin-1") if isinstance(key, bytes) else key: value for key, value in loaded.items()
        }
        pixels, labels = batch["data"], np.asarray(batch["labels"])
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), RECORD_BYTES - 1) or not len(labels):
            raise ValueError(f"{len(labels)} labels for {pixels.dtype} {pixels.shape} pixels")  # noqa: TRY301
    except (pickle.UnpicklingError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(f"not a pickle of CIFAR-10 data ({error})", where=where) from error
    return pixels.reshape(-1, 3, 32, 32), _checked_labels(labels, where)


def _checked_labels(labels: npt.NDArray[Any], where: str) -> npt.NDArray[np.int64]:
    if (wrong := labels[~np.isin(labels, range(10))]).size:
        raise _damaged(f"label {wrong[0]} is not a class from 0 to 9", where=where)
    return labels.astype(np.int64)


# Layout: its folder, the ending of its batches, and their parser.
_LAYOUTS: dict[str, tuple[str, str, Callable[[bytes, str], Records]]] = {
    "binary": ("cifar-10-batches-bin", ".bin", parse_binary),
    "python": ("cifar-10-batches-py", "", parse_python),
}


@dataclass(frozen=True, kw_only=True)
class LayoutSource:
    """The place of one layout: a folder of batches, or an archive."""

    layout: str
    path: Path

    def names(self, split: Split) -> list[str]:
        return [batch + _LAYOUTS[self.layout][1] for batch in _BATCHES[split]]

    def is_here(self) -> bool:
        """Whether a batch of any split is here; an archive has all."""
        names = [name for split in _BATCHES for name in self.names(split)]
        return self.path.is_file() or any((self.path / name).is_file() for name in names)


def find(root: Path) -> LayoutSource | None:
    """Return the first source of CIFAR-10 below a data folder: binary before Python, folders before archives."""
    sources = []
    parents = (root / "cifar10", root)
    for layout, (folder, *_) in _LAYOUTS.items():
        below = [parent / name for name in (folder, f"cifar-10-{layout}.tar.gz") for parent in parents]
        sources += [LayoutSource(layout=layout, path=path) for path in (*below[:2], *parents, *below[2:])]
    return next(filter(LayoutSource.is_here, sources), None)


def open_cifar10(source: LayoutSource, split: Split, *_: object) -> Dataset:
    return ArrayDataset("cifar10", split, functools.partial(_load, source, split))


def _load(source: LayoutSource, split: Split) -> Arrays:
    names, archived = source.names(split), source.path.is_file()
    folder, _, parse = _LAYOUTS[source.layout]
    if archived:
        raw = _read_archive(source.path, folder, names)
    else:
        raw = {name: read_file(source.path / name) for name in names if (source.path / name).is_file()}
    if not raw:
        raise DataNotFoundError(
            f"CIFAR-10 has no batch of its {split} split here",
            where=source.path,
            hint="Put its batches there or run: storebench data fetch cifar10.",
        )
    batches = [parse(raw[name], f"{source.path}/{name}") for name in names if name in raw]
    planar = np.concatenate([images for images, _ in batches])
    return Arrays(
        images=planar.transpose(0, 2, 3, 1),
        labels=np.concatenate([labels for _, labels in batches]),
        class_names=CLASS_NAMES,
        provenance=Provenance(
            origin=Origin.REAL,
            source=f"CIFAR-10 {source.layout} {'archive' if archived else 'batches'}",
            note=f"{len(raw)} of {len(names)} batches present" if len(raw) < len(names) else "",
        ),
    )


def _read_archive(path: Path, folder: str, names: list[str]) -> dict[str, bytes]:
    with unzipping(path, _FETCH_HINT), gzip.open(path) as unzipped:
        data = unzipped.read(_ARCHIVE_BYTES_MAX + 1)
    if len(data) > _ARCHIVE_BYTES_MAX:
        raise _damaged("unpacks to far more than CIFAR-10 holds", where=path)
    contents = {}
    for member in members(io.BytesIO(data), str(path)):
        inside, _, name = member.name.removeprefix("./").rpartition("/")
        if inside == folder and name in names:
            contents[name] = data[member.offset : member.offset + member.size]
    return contents
