"""Find the splits in a folder of images: train and val, as people spell them. Ambiguous layouts are refused."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from storebench.datasets.sources import unreadable
from storebench.datasets.walk import ClassFolders, ScanSnapshot, is_left_out
from storebench.errors import CorruptDataError

TEST_FOLDERS = ("val", "valid", "test", "testing", "validation")
"""Words for a test split; of several splits, the first one in this order is used."""

_TRAIN_FOLDERS = ("train", "training")
_NAME = re.compile(
    rf"({'|'.join((*_TRAIN_FOLDERS, *TEST_FOLDERS))})([ _-]?(set|images|data))?", re.IGNORECASE | re.ASCII
)
_ALIKE = re.compile(
    rf"({'|'.join((*_TRAIN_FOLDERS, *TEST_FOLDERS))}|eval|dev|unlabell?ed)(?![a-z])", re.IGNORECASE | re.ASCII
)
_ENDING = re.compile(rf"[ _-]({'|'.join((*_TRAIN_FOLDERS, *TEST_FOLDERS))})$", re.IGNORECASE | re.ASCII)
_CAMEL = re.compile(rf"({'|'.join((*_TRAIN_FOLDERS, *TEST_FOLDERS))})(?=[A-Z])", re.ASCII)
"""Names that begin as a split's does and go on with something else than a small letter."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The folders of the splits."""

    train: Path | None = None  # the folder of the training images
    test: Path | None = None  # the folder of the test images; None without one
    beside: tuple[str, ...] = ()  # names of the folders beside them, which belong to no split


def find_splits(path: Path, seen: ScanSnapshot) -> Splits:
    """Return the splits of a folder of images. Capitals do not matter."""
    seen.look(path)
    if not path.is_dir():
        return Splits()
    folders = _folders(path)
    named = [name for name in folders if _word(name)]
    deep = [name for name in named if has_class_folders(path / name, seen)]
    if {_is_train(name) for name in deep} == {True, False}:
        return _chosen(path, deep, folders)
    flat = [name for name in named if name not in deep and _has_images(path / name, seen)]
    others = [name for name in folders if name not in named and _has_images(path / name, seen)]
    if (deep or flat) and not others:
        return _chosen(path, deep + flat, folders)
    if deep:
        _refuse_split_or_class(path, deep[0], others[0])
    alike = [name for name in (*flat, *others) if _ALIKE.match(name) or _CAMEL.match(name)]
    ending = [name for name in (*flat, *others) if _ENDING.search(name)]
    if len(ending) > 1 and len(ending) == len(flat) + len(others):
        alike = ending
    if len(alike) > 1:
        raise CorruptDataError(
            f"{alike[0]}/ and {alike[1]}/ look like splits, not classes, and it is not clear which",
            where=path,
            hint=f"Name {path / alike[0]} to use it alone, or call the splits train/ and val/.",
        )
    return Splits()


def are_both(names: Iterable[str]) -> bool:
    """Return whether some names are those of a train split and others those of a test split."""
    return {_is_train(name) for name in names if _word(name)} == {True, False}


def has_class_folders(root: Path, seen: ScanSnapshot | None = None) -> bool:
    """Return whether `root` holds a folder that contains an image."""
    if not root.is_dir():
        return False
    folders = ClassFolders(root, seen)
    return any(next(folders.images(name), None) is not None for name in folders.names())


def _has_images(root: Path, seen: ScanSnapshot) -> bool:
    """Return whether `root` holds an image, in a folder or directly."""
    return has_class_folders(root, seen) or bool(ClassFolders(root, seen).loose())


def _folders(path: Path) -> list[str]:
    """Return the names of the folders in `path`, sorted. Links that lead nowhere and hidden names are skipped."""
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208 - of a million names only a few become paths
    except OSError as error:
        raise unreadable(path, error) from error
    return [name for name in names if not is_left_out(name) and (path / name).is_dir()]


def _word(name: str) -> str:
    """Return the word for a split that a folder's name stands for, in small letters; "" if there is none."""
    match = _NAME.fullmatch(name)
    return match[1].lower() if match else ""


def _is_train(name: str) -> bool:
    return _word(name) in _TRAIN_FOLDERS


def _chosen(path: Path, names: Sequence[str], folders: Sequence[str]) -> Splits:
    """Return the splits among folders that can be nothing else."""
    trains = [name for name in names if _is_train(name)]
    tests = sorted(set(names) - set(trains), key=lambda name: (TEST_FOLDERS.index(_word(name)), name))
    for title, several in (
        ("training", trains),
        ("test", [name for name in tests if _word(name) == _word(tests[0])]),
    ):
        if len(several) > 1:
            raise CorruptDataError(
                f"both {several[0]}/ and {several[1]}/ may be the {title} split",
                where=path,
                hint="Rename or remove one of them, or name the folder to train on.",
            )
    return Splits(
        train=path / trains[0] if trains else None,
        test=path / tests[0] if tests else None,
        beside=tuple(name for name in folders if name not in (*trains[:1], *tests[:1])),
    )


def _refuse_split_or_class(path: Path, name: str, other: str) -> NoReturn:
    """Refuse a folder that holds class folders and lies beside other folders with images."""
    if (path / name).samefile(path):
        raise CorruptDataError(
            "a link back to the folder that it is in", where=path / name, hint="Remove the link."
        )
    raise CorruptDataError(
        f"{name}/ has class folders of its own, and {other}/ beside it has images: it may be a split or a class",
        where=path,
        hint=f"Name {path / name} to use it alone, move one of them, or rename {name}/ if it is a class.",
    )
