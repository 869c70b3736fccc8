"""Recognize containers by their content, in a file, a folder or a pattern, and divide their files into splits."""

import contextlib
import glob
import importlib
import itertools
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.datasets.containers.base import Asked, Container
from storebench.datasets.containers.crc32c import crc32c, masked
from storebench.datasets.folder import (
    TEST_FOLDERS,
    TRAIN_FOLDERS,
    are_both,
    is_left_out,
    split_of,
    split_word,
)
from storebench.datasets.images import EXTENSIONS
from storebench.datasets.sources import open_source, read_file, unreadable
from storebench.errors import (
    CorruptDataError,
    DataNotFoundError,
    MissingDependencyError,
    StorebenchError,
    UsageError,
    install_line,
)
from storebench.fileio.json_text import parse_json
from storebench.settings.words import Split


@dataclass(frozen=True)
class Kind:
    """One kind of container: its name, the class that reads it, and the test of a file's first bytes."""

    words: str
    target: str
    begins: Callable[[bytes], object]
    several: bool = True  # whether its samples may be in several files


def _is_tar(start: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(start[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _starts(pattern: bytes) -> Callable[[bytes], object]:
    return re.compile(pattern, re.DOTALL).match


_HDF5 = rb"(.{512}|.{1024}|.{2048})?\x89HDF\r\n\x1a\n"  # behind a user's block

KINDS = (
    Kind("tar shards", "tar:TarShards", _is_tar),
    Kind("Parquet", "arrow:ParquetRows", _starts(rb"PAR1")),
    Kind("Arrow", "arrow:ArrowRows", _starts(rb"ARROW1\0\0|\xff\xff\xff\xff")),
    Kind("LMDB", "lmdb:LmdbRecords", _starts(rb".{16}\xde\xc0\xef\xbe"), several=False),
    Kind("HDF5", "hdf5:Hdf5Arrays", _starts(_HDF5), several=False),
    Kind("MDS", "mds:MdsShards", _starts(rb'\s*\{.*"shards"'), several=False),
    Kind("TFRecord", "tfrecord:TfRecords", lambda start: masked(crc32c(start[:8])) == start[8:12]),
)

START_BYTES = 4096
STATE, INDEX = "state.json", "index.json"
_LOOKED_AT = 64  # most entries of a folder that are looked at to know it

_PATTERN = re.compile(r"[*?\[]")
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(TRAIN_FOLDERS + TEST_FOLDERS)})(?![a-z])", re.IGNORECASE)


def divided(text: str) -> tuple[str, Asked]:
    """Return path and fields of ``PATH#IMAGE,LABEL``; a path that exists is taken as it is."""
    path, mark, fields = text.rpartition("#")
    if not mark or os.path.exists(text):  # noqa: PTH110 - the text may be a pattern
        return text, Asked()
    image, _, label = fields.partition(",")
    return path, Asked(image.strip(), label.strip())


def is_container(text: str) -> bool:
    """Return whether a path is that of a file, a pattern, or a folder of containers, itself or in folders of splits."""
    path = divided(text)[0]
    if not os.path.isdir(path):  # noqa: PTH112 - Path raises where the text cannot be a path
        return bool(_PATTERN.search(path)) or os.path.isfile(path)  # noqa: PTH113 - as above
    folder = Path(path)
    if any((folder / name).is_file() for name in (INDEX, STATE)):
        return True
    if folder.stat().st_nlink > 2:  # it has folders, of classes or splits: a million images are not looked at
        return any(path.is_dir() and is_container(str(path)) for path in map(folder.joinpath, TRAIN_FOLDERS))
    with contextlib.suppress(OSError, StorebenchError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _LOOKED_AT):
            if entry.name.lower().endswith(EXTENSIONS):
                return False
            if entry.is_file() and not is_left_out(entry.name) and kind_of(Path(entry.path)) is not None:
                return True
    return False


def find_container(text: str, split: Split) -> Container:
    """Return the container at a path, whose samples are not looked at yet."""
    path, asked = divided(text)
    place = Path(path)
    if place.is_dir():
        files = _in_folder(place, split)
        missing, hint = f"no file is {known_kinds()} by its content", "Name a file of it."
    else:
        is_pattern = _PATTERN.search(path) and not place.exists()
        named = [Path(name) for name in sorted(glob.glob(path, recursive=True))] if is_pattern else [place]  # noqa: PTH207
        files = _of_split(named, split, place)
        missing, hint = "no file has such a name", "Check the pattern."
    if not files:
        raise DataNotFoundError(missing, where=place, hint=hint)
    kinds = [kind_of(file) for file in files]
    first = kinds[0]
    if first is None:
        packed = files[0].suffix in (".gz", ".tgz", ".zst", ".bz2", ".xz")
        advice = "Name such a file, a folder of images, or --list FILE for a list."
        hint = "Unpack it first." if packed else advice
        raise DataNotFoundError(f"not {known_kinds()} by its content", where=files[0], hint=hint)
    other = next((file for file, kind in zip(files, kinds, strict=True) if kind is not first), None)
    if other is not None:
        what = f"not {first.words} by its content, as {files[0].name} is"
        raise CorruptDataError(what, where=other, hint="Replace it, or leave it out of the pattern.")
    if len(files) > 1 and not first.several:
        raise UsageError(f"several files of {first.words}, and one is read", where=place, hint="Name one.")
    module, _, name = first.target.partition(":")
    try:
        # Imported here, because Parquet and Arrow need a large library, and others one that may be missing.
        found = getattr(importlib.import_module(f"storebench.datasets.containers.{module}"), name)
    except ModuleNotFoundError as error:
        what, hint = f"{first.words} needs the package {error.name}", f"Run: {install_line(str(error.name))}."
        raise MissingDependencyError(what, where=place, hint=hint) from error
    container: Container = found(first.words, [file.absolute() for file in files], asked)
    return container


def known_kinds() -> str:
    return ", ".join(kind.words for kind in KINDS[:-1]) + f" or {KINDS[-1].words}"


def kind_of(path: Path) -> Kind | None:
    with open_source(path) as stream:
        start = stream.read(START_BYTES)
    return next((kind for kind in KINDS if kind.begins(start)), None)


def _in_folder(folder: Path, split: Split) -> list[Path]:
    """Return the containers in a folder; other files in it are not read."""
    try:
        names = sorted(name for name in os.listdir(folder) if not is_left_out(name))  # noqa: PTH208 - names only
    except OSError as error:
        raise unreadable(folder, error) from error
    if STATE in names:
        names = _saved(folder / STATE, names)
    below = [folder / name for name in names if split_of(name) is not None and (folder / name).is_dir()]
    if below:
        of_split = _named(below, [split_word(path.name) for path in below], split)
        if not of_split:
            raise _no_split(folder, split)
        return _in_folder(of_split[0], Split.TRAIN)
    files = [folder / name for name in names if not name.lower().endswith(EXTENSIONS)]
    return _of_split([file for file in files if file.is_file() and kind_of(file) is not None], split, folder)


def _saved(state: Path, beside: Sequence[str]) -> list[str]:
    """Return the data files of a dataset that Hugging Face's `save_to_disk` wrote; beside them are caches."""
    about, hint = parse_json(read_file(state), state), "Save the dataset again."
    try:
        names = [str(entry["filename"]) for entry in about["_data_files"]]
    except (KeyError, TypeError) as error:
        raise CorruptDataError("lists no data files", where=state, hint=hint) from error
    if not set(names) <= set(beside):
        raise CorruptDataError("lists files that are not in its folder", where=state, hint=hint)
    return names


def _of_split(files: Sequence[Path], split: Split, where: Path) -> list[Path]:
    """Return the files of a split: by their names if these name both splits, else all as training data."""
    words = [match[1].lower() if (match := _SPLIT.search(file.name)) else "" for file in files]
    if are_both(words):
        return _named(files, words, split)
    if split != Split.TRAIN:
        raise _no_split(where, split)
    return list(files)


def _named(paths: Sequence[Path], words: Sequence[str], split: Split) -> list[Path]:
    """Return the paths whose words stand for a split; of several for a test split, only the one that folders use first."""
    of_split = {word for word in words if split_of(word) == split}
    if split == Split.TEST:
        of_split = set(sorted(of_split, key=TEST_FOLDERS.index)[:1])
    return [path for path, word in zip(paths, words, strict=True) if word in of_split]


def _no_split(where: Path, split: Split) -> DataNotFoundError:
    return DataNotFoundError(
        f"no {split} split: no file or folder of it is named so",
        where=where,
        hint="Name the files train-... and val-..., or use the train split only.",
    )
