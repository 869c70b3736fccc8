"""Recognize containers by their content, in a file, a folder or a pattern, and divide their files into splits."""

import contextlib
import glob
import importlib
import itertools
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.datasets.containers.base import Container, NamedFields
from storebench.datasets.containers.tfrecord import masked
from storebench.datasets.image_folder import (
    TEST_FOLDERS,
    TRAIN_FOLDERS,
    are_both,
    is_left_out,
    like_split,
    split_of,
)
from storebench.datasets.images import EXTENSIONS, LFS_POINTER
from storebench.datasets.sources import open_source, read_file, unreadable
from storebench.errors import (
    CorruptDataError,
    DataNotFoundError,
    MissingDependencyError,
    StorebenchError,
    UsageError,
    install_line,
)
from storebench.settings.words import Split
from storebench.system.json_text import parse_json


@dataclass(frozen=True)
class Kind:
    """One kind of file: its name, the class that reads it, and the test of a file's first bytes."""

    words: str
    target: str  # "" for a kind that is known, and not read
    begins: Callable[[bytes], object]
    several: bool = True  # whether its samples may be in several files
    hint: str = ""  # what to do about a kind that is not read


def _is_tar(start: bytes) -> bool:
    if not start.strip(b"\0"):
        return len(start) >= tarfile.BLOCKSIZE  # an archive without members
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
    Kind("TFRecord", "tfrecord:TfRecords", lambda start: masked(start[:8]) == start[8:12]),
)


_PACKED = (
    ("gzip", rb"\x1f\x8b"),
    ("zstd", rb"\x28\xb5\x2f\xfd"),
    ("zip", rb"PK[\3\5]"),
    ("bzip2", rb"BZh[1-9]"),
)
_UNREAD = (
    Kind("a pointer of Git LFS, not the file", "", _starts(LFS_POINTER), hint="Run: git lfs pull."),
    *(Kind(f"compressed by {word}", "", _starts(start), hint="Unpack it first.") for word, start in _PACKED),
)
_MDS_SHARD = Kind(
    "a shard of MDS, read by its index.json", "", bool, hint="Put both in a folder, and name that."
)

START_BYTES = 4096
STATE, INDEX = "state.json", "index.json"
_LOOKED_AT = 64  # most entries of a folder that are looked at to know it

# What Hugging Face's datasets writes beside the data: results of map, filter and shuffle, and unfinished files.
_CACHES = re.compile(r"cache-.*\.arrow|tmp[a-z0-9_]{8}|.*\.incomplete")

_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_PATTERN = re.compile(rf"[*?\[]|::|{_BRACES.pattern}")


def divided(text: str) -> tuple[str, NamedFields]:
    """Return path and fields of ``PATH#IMAGE,LABEL``; a path that exists is taken as it is."""
    path, mark, fields = text.rpartition("#")
    if not mark or os.path.exists(text):  # noqa: PTH110 - the text may be a pattern
        return text, NamedFields()
    image, _, label = fields.partition(",")
    return path, NamedFields(image.strip(), label.strip())


def is_container(text: str) -> bool:
    """Whether a path is that of a file, a pattern, or a folder of containers, itself or in folders of splits."""
    path = divided(text)[0]
    if not os.path.isdir(path):  # noqa: PTH112 - Path raises where the text cannot be a path
        return bool(_PATTERN.search(path)) or os.path.isfile(path)  # noqa: PTH113 - as above
    folder = Path(path)
    if any((folder / name).is_file() for name in (INDEX, STATE)):
        return True
    if folder.stat().st_nlink > 2:  # it has folders, of classes or splits: a million images are not looked at
        return any(path.is_dir() and is_container(str(path)) for path in map(folder.joinpath, TRAIN_FOLDERS))
    with contextlib.suppress(OSError, StorebenchError), os.scandir(folder) as entries:
        files = [Path(entry) for entry in itertools.islice(entries, _LOOKED_AT) if entry.is_file()]
        images = [file for file in files if file.name.lower().endswith(EXTENSIONS)]
        others = (file for file in files if file not in images and not is_left_out(file.name))
        return len(images) < sum(kind_of(file) is not None for file in others)
    return False


def _files_named(path: str) -> list[Path]:
    """Return the files that a path or a pattern names, as a shell and WebDataset read it: {000..031}, {a,b}, and ::."""
    if not _PATTERN.search(path) or os.path.exists(path):  # noqa: PTH110 - Path raises for a long name
        return [Path(path)]
    names = set[str]()
    for pattern in itertools.chain.from_iterable(map(_without_braces, path.split("::"))):
        is_glob = re.search(r"[*?\[]", pattern) and not os.path.exists(pattern)  # noqa: PTH110 - as above
        matches = glob.glob(pattern, recursive=True) if is_glob else [pattern]  # noqa: PTH207
        if not matches:
            raise DataNotFoundError("no file has such a name", where=pattern, hint="Check the pattern.")
        names.update(name for name in matches if not (is_glob and os.path.isdir(name)))  # noqa: PTH112
    return list(map(Path, sorted(names)))


def _without_braces(pattern: str) -> Iterator[str]:
    """Yield the patterns that braces stand for, also nested ones."""
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    low, high = sorted((match[1] or "0", match[2] or "0"), key=int)
    numbers = (f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1))
    for word in match[3].split(",") if match[3] else numbers:
        yield from _without_braces(pattern[: match.start()] + word + pattern[match.end() :])


def find_container(text: str, split: Split) -> Container:
    """Return the container at a path, whose samples are not looked at yet."""
    path, asked = divided(text)
    place = Path(path)
    look = _in_folder(place, split) if place.is_dir() else _of_split(_files_named(path), split, place)
    files, others = look
    if not files:
        what, hint = f"no file is {known_kinds()} by its content", "Name a file or a folder of it."
        raise DataNotFoundError(what, where=place, hint=hint)
    kinds = [kind_of(file) for file in files]
    first = next((kind for kind in kinds if kind is not None and kind.target), None)
    for file, kind in zip(files, kinds, strict=True):
        is_empty = first is KINDS[-1] and not file.stat().st_size  # a TFRecord file without records
        if first is None or not (kind is first or is_empty):
            what, hint = f"not {first.words if first else known_kinds()} by its content", ""
            if kind is not None and not kind.target:
                what, hint = kind.words, kind.hint
            if first is None:
                advice = "Name such a file, a folder of images, or --list FILE for a list."
                raise DataNotFoundError(what, where=file, hint=hint or advice)
            raise CorruptDataError(what, where=file, hint=hint or "Replace it, or name a pattern without it.")
    assert first is not None
    if len(files) > 1 and not first.several:
        raise UsageError(f"several files of {first.words}, and one is read", where=place, hint="Name one.")
    module, _, name = first.target.partition(":")
    try:
        # Imported here, because Parquet and Arrow need a large library, and others one that may be missing.
        container_type = getattr(importlib.import_module(f"storebench.datasets.containers.{module}"), name)
    except ModuleNotFoundError as error:
        what, hint = f"{first.words} needs the package {error.name}", f"Run: {install_line(str(error.name))}."
        raise MissingDependencyError(what, where=place, hint=hint) from error
    container: Container = container_type(first.words, [file.absolute() for file in files], asked)
    container.beside = others
    return container


def known_kinds() -> str:
    return ", ".join(kind.words for kind in KINDS[:-1]) + f" or {KINDS[-1].words}"


def kind_of(path: Path) -> Kind | None:
    with open_source(path) as stream:
        start = stream.read(START_BYTES)
    if ".mds" in path.suffixes:
        return _MDS_SHARD
    return next((kind for kind in (*KINDS, *_UNREAD) if kind.begins(start)), None)


def _in_folder(folder: Path, split: Split) -> tuple[list[Path], list[str]]:
    """Return the containers in a folder, and what is left out beside its splits; other files in it are not read."""
    try:
        names = sorted(name for name in os.listdir(folder) if not is_left_out(name))  # noqa: PTH208 - names only
    except OSError as error:
        raise unreadable(folder, error) from error
    if STATE in names:
        names = _saved(folder / STATE, names)
    if any(split_of(name) and (folder / name).is_dir() for name in names):
        below = [path for path in map(folder.joinpath, names) if path.is_dir()]
        of_split, others = _named(below, [path.name.lower() for path in below], split)
        if not of_split:
            raise _no_split(folder, split)
        files, deeper = _in_folder(of_split[0], Split.TRAIN)
        return files, [*(f"{path.name}/" for path in (*of_split[1:], *others)), *deeper]
    # Parquet beside a cache of Arrow is one kind.
    names = [name for name in names if not _CACHES.fullmatch(name)]
    paths = (folder / name for name in names if not name.lower().endswith(EXTENSIONS))
    files = [path for path in paths if path.is_file()]
    kinds = {file: kind for file in files if (kind := kind_of(file)) is not None}
    read = {file: kind for file, kind in kinds.items() if kind.target}
    examples = {kind.words: file for file, kind in read.items()}
    if len(examples) > 1:
        patterns = " or ".join(sorted(f"'{folder}/*{file.suffix}'" for file in examples.values()))
        raise UsageError(f"{' and '.join(examples)} in one folder", where=folder, hint=f"Name {patterns}.")
    # Files that are named like those of the container belong to it, whatever they hold.
    alike = {_numberless(file) for file, kind in read.items() if kind.several}
    belong = [file for file in files if file in read or _numberless(file) in alike]
    return _of_split(belong or list(kinds), split, folder)


def _numberless(file: Path) -> str:
    """Return the ending of a name, or a name without ending, with the same sign for all numbers."""
    return re.sub(r"\d+", "#", file.suffix or file.name)


def _saved(state: Path, beside: Sequence[str]) -> list[str]:
    """Return the data files of a dataset that Hugging Face's `save_to_disk` wrote; beside them are caches."""
    about, hint = parse_json(read_file(state), state), "Save the dataset again."
    try:
        names = [str(entry["filename"]) for entry in about["_data_files"]]
        parts = [key for entry in about["_data_files"] for key in ("skip", "take") if entry.get(key)]
        chosen = [key for key in about if key.startswith("_indices") and about[key]] + parts
    except (AttributeError, KeyError, TypeError) as error:
        raise CorruptDataError("lists no data files", where=state, hint=hint) from error
    if chosen:
        what = f"a selection of the rows ({chosen[0]}), which is not read"
        raise UsageError(what, where=state, hint="Call flatten_indices() and save the dataset again.")
    if not set(names) <= set(beside):
        raise CorruptDataError("lists files that are not in its folder", where=state, hint=hint)
    return names


def _of_split(files: Sequence[Path], split: Split, where: Path) -> tuple[list[Path], list[str]]:
    """Return the files of a split and the names of those of none: all are training data if no name tells a split."""
    files = [file for file in files if not _CACHES.fullmatch(file.name)] or list(files)
    words = [like_split(file.name) for file in files]
    if are_both(words):
        of_split, others = _named(files, words, split)
        return of_split, [path.name for path in others]
    if len(set(words)) > 1:
        other = next(file for file, word in zip(files, words, strict=True) if word != words[0])
        raise UsageError(
            f"{files[0].name} and {other.name}: at least one looks like a split, and it is not clear which",
            where=where,
            hint="Name the files of one, or call those of the splits train-... and val-....",
        )
    if split != Split.TRAIN:
        raise _no_split(where, split)
    return files, []


def _named(paths: Sequence[Path], words: Sequence[str], split: Split) -> tuple[list[Path], list[Path]]:
    """Return the paths of a split, and those of none; of several words for a test split, the first in use counts."""
    tests = sorted({word for word in words if split_of(word) == Split.TEST}, key=TEST_FOLDERS.index)[:1]
    splits = [
        Split.TEST if word in tests else Split.TRAIN if word in TRAIN_FOLDERS else None for word in words
    ]
    chosen, others = (
        [path for path, its in zip(paths, splits, strict=True) if its == asked] for asked in (split, None)
    )
    return chosen, others


def _no_split(where: Path, split: Split) -> DataNotFoundError:
    return DataNotFoundError(
        f"no {split} split: no file or folder of it is named so",
        where=where,
        hint="Name the files train-... and val-..., or use the train split only.",
    )
