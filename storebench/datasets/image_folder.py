"""Folders and lists of image files: class folders, splits as people spell them, and what is left out."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storebench.datasets import images
from storebench.datasets.base import FOLDER_PREFIX, LIST_PREFIX, Dataset, Origin, Provenance
from storebench.datasets.files import FileDataset, FoundFiles, look_at
from storebench.datasets.images import EXTENSIONS
from storebench.datasets.listing import Listings, ScanSnapshot, found_files
from storebench.datasets.sources import read_file, unreadable
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.plain_text import text_of_name
from storebench.settings.words import Split
from storebench.units import number_of

# Folders that file systems, network drives and desktops make by themselves, in small letters.
SYSTEM_FOLDERS = (
    *("lost+found", "@eadir", "@recycle", "@recently-snapshot", "@tmp", "#recycle", "#snapshot", "__macosx"),
    *("$recycle.bin", "recycler", "system volume information", "network trash folder", "temporary items"),
)


def is_left_out(path: str) -> bool:
    """Whether a part of a path is hidden, or the name of a folder that a system makes."""
    parts = (part for part in path.split("/") if part not in ("", ".", ".."))
    return any(part.startswith(".") or part.lower() in SYSTEM_FOLDERS for part in parts)


def image_files(root: Path, seen: ScanSnapshot, others: Counter[str] | None = None) -> Iterator[str]:
    """Yield the image files below a folder, in no order, and its folders with a slash at the end, relative to it.

    The endings of the files that are no images, or of formats that are not read, are counted in `others`.
    """
    entered: dict[tuple[int, int], str] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        place = root / folder
        try:
            status = place.stat()
            seen.look(place, status)
            # Some network file systems have no inode numbers; there, links end at ELOOP.
            before = entered.setdefault((status.st_dev, status.st_ino), folder) if status.st_ino else folder
            if before != folder:
                what = f"a folder that was read already, {root / before}, so that images would count twice"
                raise CorruptDataError(what, where=place, hint="Remove the link.")
            with os.scandir(place) as entries:
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    if is_left_out(entry.name):
                        continue
                    if _is_folder(entry):
                        waiting.append(f"{path}/")
                        yield f"{path}/"
                    elif entry.name.lower().endswith(EXTENSIONS):
                        yield path
                    elif others is not None:
                        others[os.path.splitext(path)[1].lower() or "no ending"] += 1  # noqa: PTH122
        except OSError as error:
            raise unreadable(place, error) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder; a link that leads nowhere is refused, unless it is called as an image is."""
    try:
        is_folder = entry.is_dir()
        if not is_folder and entry.is_symlink():
            entry.stat()
    except OSError as error:
        if not entry.name.lower().endswith(EXTENSIONS):
            raise unreadable(Path(entry.path), error) from error
        return False
    return is_folder


TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("val", "valid", "test", "testing", "validation")  # the first of these is used
_WORDS = "|".join((*TRAIN_FOLDERS, *TEST_FOLDERS))
_ALIKE = re.compile(rf"(?<![A-Za-z])(?i:{_WORDS}|eval|dev|unlabell?ed)(?![a-z])", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Splits:
    train: Path | None = None  # the folder of the training images
    test: Path | None = None  # the folder of the test images; None without one
    beside: tuple[str, ...] = ()  # names of the folders beside them, which belong to no split


def find_splits(path: Path, seen: ScanSnapshot) -> Splits:
    """Return the splits of a folder of images. Capitals do not matter."""
    seen.look(path)
    if not path.is_dir():
        return Splits()
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208 - of a million names only a few become paths
    except OSError as error:
        raise unreadable(path, error) from error
    # Links that lead nowhere are no folders.
    folders = [name for name in names if not is_left_out(name) and (path / name).is_dir()]
    if not any(map(like_split, folders)):
        return Splits()
    holding = [name for name in folders if _has_images(path / name, seen)]
    named = [name for name in holding if split_of(name)]
    if named and (are_both(named) or named == holding):
        train, test = (_first(named, words) for words in (TRAIN_FOLDERS, TEST_FOLDERS))
        return Splits(
            train=path / train if train else None,
            test=path / test if test else None,
            beside=tuple(name for name in folders if name not in (train, test)),
        )
    if mixes_splits(holding) or any(has_class_folders(path / name, seen) for name in named):
        like = next(name for name in holding if like_split(name))
        raise CorruptDataError(
            f"{like}/ and the folders beside it may be splits or classes",
            where=path,
            hint=f"Name {path / like} to use it alone, call the splits train/ and val/, or rename what is a class.",
        )
    return Splits()


def _first(names: Sequence[str], words: Sequence[str]) -> str | None:
    """Return the name that is the first of some words."""
    return next((name for word in words for name in names if name.lower() == word), None)


def split_of(name: str) -> Split | None:
    """Return the split that a folder's name stands for; None for every other name."""
    word = name.lower()
    return Split.TRAIN if word in TRAIN_FOLDERS else Split.TEST if word in TEST_FOLDERS else None


def are_both(names: Iterable[str]) -> bool:
    """Whether some names are those of a train split and others those of a test split."""
    return {Split.TRAIN, Split.TEST} <= {split_of(name) for name in names}


def like_split(name: str) -> str:
    """Return the word for a split at the begin of a name or behind a separator, in small letters; "" without one."""
    match = _ALIKE.search(name)
    return match[0].lower() if match else ""


def mixes_splits(names: Iterable[str]) -> bool:
    """Whether some names are like that of a train split, and others like that of another one."""
    splits = {split_of(word) for word in map(like_split, names) if word}
    return Split.TRAIN in splits and len(splits) > 1


def has_class_folders(root: Path, seen: ScanSnapshot | None = None) -> bool:
    """Whether `root` holds a folder that contains an image."""
    return _has_images(root, seen or ScanSnapshot(), below=True)


def _has_images(root: Path, seen: ScanSnapshot, *, below: bool = False) -> bool:
    images = (path for path in image_files(root, seen) if not path.endswith("/")) if root.is_dir() else ()
    return any("/" in path or not below for path in images)


MOST_NAMED = 5  # most folders, or kinds of files, that a note names
ONE_CLASS = "images"  # name of the only class of images that are in no class folder


def open_folder(
    path: Path,
    split: Split,
    image_size: int | None = None,
    listings: Listings | None = None,
    *,
    name: str = "",
) -> Dataset:
    """Open ``folder:PATH``: its train and val folders (see `find_splits`), else PATH as the train split."""
    if listings is not None and path.is_dir():
        listings.refuse_within(path)
    files = found_files(path, ("folder", split), partial(_scan_split, path, split), listings)
    return FileDataset(name or FOLDER_PREFIX + text_of_name(str(path)), split, files, image_size)


def _scan_split(path: Path, split: Split, seen: ScanSnapshot) -> FoundFiles:
    splits = find_splits(path, seen)
    if split == Split.TRAIN:
        if splits.train is None and splits.test is not None:
            raise DataNotFoundError(
                f"only a test split, {splits.test.name}/, and no training images",
                where=path,
                hint=f"Put training images into train/, use --split test, or name {splits.test} to train on it.",
            )
        others = ", ".join(f"{name}/" for name in splits.beside)
        note = f"beside the splits, {others} left out" if others else ""
        return _scan_classes(splits.train or path, None, seen, note)
    if splits.test is None:
        raise DataNotFoundError(
            "no test split: there are no class folders in train and one of val, test, validation",
            where=path,
            hint="Put them there, or use the train split only.",
        )
    classes = None if splits.train is None else tuple(_images_by_class(splits.train, seen, []))
    return _scan_classes(splits.test, classes, seen)


def _scan_classes(
    root: Path, class_names: tuple[str, ...] | None, seen: ScanSnapshot, note: str = ""
) -> FoundFiles:
    """Find the images of class folders, sorted by class, then by file name."""
    left_out: list[str] = []
    by_class = _images_by_class(root, seen, left_out)
    classes = class_names or tuple(by_class)
    labels = {folder: label for label, folder in enumerate(classes)}
    kept = [(path, labels[folder]) for folder in by_class if folder in labels for path in by_class[folder]]
    if not kept:
        raise DataNotFoundError(
            "no images of these classes in its folders", where=root, hint="Put one folder per class there."
        )
    for folder, paths in by_class.items():
        if are_both({path.split("/")[1] for path in paths if path.count("/") > 1}):
            raise CorruptDataError(
                f"{folder}/ holds folders of a train and of a test split, so it is no class",
                where=root,
                hint=f"Name {root / folder}, or put the splits above the classes: train/CLASS and val/CLASS.",
            )
    beyond = sum(map(len, by_class.values())) - len(kept)
    notes = [
        f"{beyond} images left out: the train split lacks their classes" if beyond else "",
        "one class only, so every label is 0" if len(classes) == 1 else "",
        note,
        *left_out,
    ]
    provenance = Provenance(origin=Origin.REAL, source="image files in a folder").noted(*notes)
    return look_at(root, kept, classes, provenance)


def _images_by_class(root: Path, seen: ScanSnapshot, notes: list[str]) -> dict[str, list[str]]:
    """Return the images of every class that has any, relative to `root`, and note what is left out."""
    if not root.is_dir():
        raise DataNotFoundError(
            "a file, not a folder" if root.is_file() else "no such folder",
            where=root,
            hint="Name a folder of images, or of one folder of images per class, or --list FILE for a list.",
        )
    others, found, loose = Counter[str](), dict[str, list[str]](), list[str]()
    for path in image_files(root, seen, others):
        folder, slash, _ = path.partition("/")
        of_class = found.setdefault(folder, []) if slash else loose
        of_class += [] if path.endswith("/") else [path]
    by_class = {text_of_name(name): sorted(found[name]) for name in sorted(found) if found[name]}
    if others:
        kinds = ", ".join(sorted(others)[:MOST_NAMED])
        files = number_of(others.total(), "file")
        notes.append(f"{files} that are no images, or of other formats, left out: {kinds}")
    if not by_class and loose:
        return {ONE_CLASS: sorted(loose)}
    if not by_class:
        what = f"only {number_of(len(found), 'folder')} without images" if found else "no images"
        if notes:
            what = f"{what} that are read ({notes[-1]})"
        raise DataNotFoundError(
            f"{what} in it",
            where=root,
            hint=f"Put {', '.join(images.EXTENSIONS[:3])} ... files there, "
            "in one folder per class if they have classes, "
            f"or name other files by a pattern: '{root}/*.tar'.",
        )
    if empty := sorted(name for name in found if not found[name]):
        folders = ", ".join(f"{text_of_name(name)}/" for name in empty[:MOST_NAMED])
        notes.append(f"{number_of(len(empty), 'folder')} without an image left out, no class: {folders}")
    if loose:
        notes.append(f"{number_of(len(loose), 'image')} beside the class folders left out: no class")
    return by_class


MOST_LABEL = 99_999  # largest label: one class folder per label is written by the format ``files``


def open_list(
    path: Path, split: Split, image_size: int | None = None, listings: Listings | None = None
) -> Dataset:
    """Open ``list:FILE``: all its images are the train split, in the order of the lines."""
    if split != Split.TRAIN:
        raise DataNotFoundError(
            "no test split: a list is training data", where=path, hint="Name a folder with train/ and val/."
        )
    files = found_files(path.parent, ("list", path.name), partial(_scan_list, path), listings)
    return FileDataset(LIST_PREFIX + text_of_name(str(path)), split, files, image_size)


def _scan_list(path: Path, seen: ScanSnapshot) -> FoundFiles:
    seen.look(path)
    files = listed_files(path)
    names = tuple(map(str, range(max(label for _, label in files) + 1)))
    labels = {label for _, label in files}
    one_class = f"one class only, so every label is {next(iter(labels))}" if len(labels) == 1 else ""
    source = Provenance(origin=Origin.REAL, source="image files in a list")
    return look_at(path.parent, files, names, source.noted(one_class))


def listed_files(path: Path) -> list[tuple[str, int]]:
    """Return the name and label in each line of a list."""
    files = []
    for number, line in enumerate(
        read_file(path).decode("utf-8-sig", "surrogateescape").split("\n"), start=1
    ):
        if not (line := line.strip()):
            continue
        at = max(line.rfind(" "), line.rfind("\t"))
        name, label = line[: max(at, 0)].rstrip(), line[at + 1 :]
        is_label = re.fullmatch("[0-9]{1,9}", label) is not None and int(label) <= MOST_LABEL
        if not (name and "\0" not in name and is_label):
            raise CorruptDataError(
                f"a line without a path and a label from 0 to {MOST_LABEL:,}",
                where=f"{path}:{number}",
                hint="Write one PATH LABEL per line, without a heading, quotes or commas.",
            )
        files.append((name, int(label)))
    if not files:
        raise CorruptDataError("a list without a line", where=path, hint="Write one PATH LABEL per line.")
    return files
