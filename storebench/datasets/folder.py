"""Folders and lists of image files: class folders, splits as people spell them, and what is left out."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storebench.datasets import images
from storebench.datasets.base import FOLDER_PREFIX, LIST_PREFIX, Dataset, Origin, Provenance
from storebench.datasets.files import FileDataset, FoundFiles, look_at
from storebench.datasets.images import EXTENSIONS, SUFFIXES, suffix_of
from storebench.datasets.listing import Listings, ScanSnapshot, found_files
from storebench.datasets.sources import read_file, unreadable
from storebench.errors import CorruptDataError, DataNotFoundError, StorebenchError
from storebench.plain_text import text_of_name
from storebench.settings.words import Split
from storebench.system.reading import open_regular
from storebench.units import number_of

# Endings of image files that are not read, and of copies that editors leave beside a file.
OTHER_IMAGES = (".avif", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".svg", ".tga")
COPIES = ("~", ".bak", ".orig")

# Endings of files that are known to be no images. A file with any other ending, or none, is known by its content.
NO_IMAGES = (".csv", ".db", ".ini", ".json", ".mat", ".md", ".npy", ".npz", ".txt", ".xml", ".yaml")

# Folders that file systems, network drives and desktops make by themselves, in small letters.
SYSTEM_FOLDERS = (
    *("lost+found", "@eadir", "@recycle", "@recently-snapshot", "@tmp", "#recycle", "#snapshot", "__macosx"),
    *("$recycle.bin", "recycler", "system volume information", "network trash folder", "temporary items"),
)


def is_left_out(path: str) -> bool:
    """Whether a part of a path is hidden, or the name of a folder that a system makes."""
    parts = (part for part in path.split("/") if part not in ("", ".", ".."))
    return any(part.startswith(".") or part.lower() in SYSTEM_FOLDERS for part in parts)


class ClassFolders:
    def __init__(self, root: Path, seen: ScanSnapshot | None = None) -> None:
        self._root = root
        self._seen = seen or ScanSnapshot()
        self._entered: dict[tuple[int, int], str] = {}
        self._enter("")

    def names(self) -> list[str]:
        """Return the names of the class folders, sorted; hidden ones are skipped."""
        return sorted(self._entries("")[0])

    def images(self, name: str) -> Iterator[str]:
        """Yield the image files of one class, in no particular order, as paths relative to the root."""
        waiting = [name]
        while waiting:
            folder = waiting.pop()
            self._enter(folder)
            within, files = self._entries(folder)
            waiting += within
            yield from files

    def loose(self) -> list[str]:
        """Return the image files that are in no class folder, sorted, as paths relative to the root."""
        return sorted(self._entries("")[1])

    def _enter(self, folder: str) -> None:
        """Refuse a folder that was entered before."""
        try:
            status = (self._root / folder).stat()
        except OSError as error:
            raise unreadable(self._root / folder, error) from error
        self._seen.look(self._root / folder, status)
        if not status.st_ino:  # some network file systems have no inode numbers; there, links end at ELOOP
            return
        before = self._entered.setdefault((status.st_dev, status.st_ino), folder)
        if before != folder:
            above = not before or folder.startswith(f"{before}/")
            problem = "a link back to a folder above it" if above else "a folder that was read already"
            raise self._bad_link(
                folder, f"{problem}, {self._root / before}, so that images would count twice"
            )

    def _entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the folders and the image files in a folder, as paths relative to the root."""
        folders, files = list[str](), list[str]()
        try:
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}".lstrip("/")
                    if is_left_out(entry.name):
                        continue
                    if self._is_folder(entry, path):
                        folders.append(path)
                    elif _is_image(entry):
                        files.append(path)
                    elif not path.lower().endswith(NO_IMAGES):
                        self._seen.others.add(self._root / path)
        except OSError as error:
            raise unreadable(self._root / folder, error) from error
        return folders, files

    def _is_folder(self, entry: os.DirEntry[str], path: str) -> bool:
        try:
            if entry.is_dir():
                return True
            if entry.is_symlink() and not _is_image(entry):
                entry.stat()
        except OSError as error:
            if _is_image(entry):
                return False
            reason = error.strerror or str(error)
            raise self._bad_link(path, f"a link that leads nowhere ({reason})") from error
        return False

    def _bad_link(self, path: str, what: str) -> CorruptDataError:
        return CorruptDataError(what, where=self._root / path, hint="Remove the link.")


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Whether a file's name ends as an image's, or has an unusual ending while its content begins as an image's."""
    name = entry.name.lower()
    if name.endswith((*EXTENSIONS, *OTHER_IMAGES, *NO_IMAGES, *COPIES)):
        return name.endswith(EXTENSIONS)
    try:
        with open_regular(Path(entry.path)) as stream:
            return suffix_of(stream.read(16)) != SUFFIXES[0]
    except (OSError, StorebenchError):
        return False


TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = (
    "val",
    "valid",
    "test",
    "testing",
    "validation",
)  # of several, the first in this order is used
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
    holding = [
        name
        for name in folders
        if has_class_folders(path / name, seen) or ClassFolders(path / name, seen).loose()
    ]
    named = [name for name in holding if split_of(name)]
    if named and (are_both(named) or named == holding):
        return _chosen(path, named, folders)
    if mixes_splits(holding) or any(has_class_folders(path / name, seen) for name in named):
        like = next(name for name in holding if like_split(name))
        raise CorruptDataError(
            f"{like}/ and the folders beside it may be splits or classes",
            where=path,
            hint=f"Name {path / like} to use it alone, call the splits train/ and val/, or rename what is a class.",
        )
    return Splits()


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
    if not root.is_dir():
        return False
    folders = ClassFolders(root, seen)
    return any(next(folders.images(name), None) is not None for name in folders.names())


def _chosen(path: Path, names: Sequence[str], folders: Sequence[str]) -> Splits:
    """Return the splits among folders that can be nothing else."""
    chosen: dict[Split, str] = {}
    for name in sorted(names, key=lambda name: (*TRAIN_FOLDERS, *TEST_FOLDERS).index(name.lower())):
        split = Split.TRAIN if name.lower() in TRAIN_FOLDERS else Split.TEST
        before = chosen.setdefault(split, name)
        if before != name and (split == Split.TRAIN or before.lower() == name.lower()):
            raise CorruptDataError(
                f"both {before}/ and {name}/ may be the {split} split",
                where=path,
                hint="Rename or remove one of them, or name the folder to train on.",
            )
    train, test = chosen.get(Split.TRAIN), chosen.get(Split.TEST)
    return Splits(
        train=path / train if train else None,
        test=path / test if test else None,
        beside=tuple(name for name in folders if name not in (train, test)),
    )


MOST_NAMED = 5  # most folders, or kinds of files, that a note names
ONE_CLASS = "images"  # name of the only class of images that are in no class folder


def open_folder(
    path: Path, split: Split, image_size: int | None = None, listings: Listings | None = None
) -> Dataset:
    """Open ``folder:PATH``: its train and val folders (see `find_splits`), else PATH as the train split."""
    if listings is not None and path.is_dir():
        listings.refuse_within(path)
    files = found_files(path, ("folder", split), partial(_scan_split, path, split), listings)
    return FileDataset(FOLDER_PREFIX + text_of_name(str(path)), split, files, image_size)


def open_class_folders(
    name: str,
    split: Split,
    root: Path,
    class_names: tuple[str, ...] | None,
    image_size: int | None,
    listings: Listings | None = None,
) -> Dataset:
    """Open class folders, sorted by class, then by file name, as 256 x 256 unless another size is asked for."""
    scan = partial(_scan_classes, root, class_names, images.SIDE)
    files = found_files(root, ("classes", class_names), scan, listings)
    return FileDataset(name, split, files, image_size)


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
        return _scan_classes(splits.train or path, None, None, seen, note)
    if splits.test is None:
        raise DataNotFoundError(
            "no test split: there are no class folders in train and one of val, test, validation",
            where=path,
            hint="Put them there, or use the train split only.",
        )
    classes = None if splits.train is None else tuple(_images_by_class(splits.train, seen))
    return _scan_classes(splits.test, classes, None, seen)


def _scan_classes(
    root: Path,
    class_names: tuple[str, ...] | None,
    own_side: int | None,
    seen: ScanSnapshot,
    note: str = "",
) -> FoundFiles:
    """Find the images of class folders, sorted by class, then by file name; see `open_class_folders`."""
    by_class = _images_by_class(root, seen)
    classes = class_names or tuple(by_class)
    labels = {folder: label for label, folder in enumerate(classes)}
    kept = [(path, labels[folder]) for folder in by_class if folder in labels for path in by_class[folder]]
    if not kept:
        raise DataNotFoundError(
            "no images of these classes in its folders",
            where=root,
            hint="Put one folder per class there.",
        )
    for folder, paths in by_class.items():
        if are_both({path.split("/")[1] for path in paths if path.count("/") > 1}):
            raise CorruptDataError(
                f"{folder}/ holds folders of a train and of a test split, so it is no class",
                where=root,
                hint=f"Name {root / folder}, or put the splits above the classes: train/CLASS and val/CLASS.",
            )
    beyond = sum(map(len, by_class.values())) - len(kept)
    flat = list(by_class) == [ONE_CLASS] and not (root / ONE_CLASS).is_dir()
    empty = [name for name in ClassFolders(root, seen).names() if text_of_name(name) not in by_class]
    notes = [
        f"{beyond} images left out: the train split lacks their classes" if beyond else "",
        "one class only, so every label is 0" if len(classes) == 1 else "",
        note,
        _other_files(seen, root),
    ]
    if empty and not flat:
        folders = ", ".join(f"{text_of_name(name)}/" for name in empty[:MOST_NAMED])
        notes.append(f"{number_of(len(empty), 'folder')} without an image left out, no class: {folders}")
    if not flat and (loose := len(ClassFolders(root, seen).loose())):
        notes.append(f"{number_of(loose, 'image')} beside the class folders left out: no class")
    source = "image files without class folders" if flat else "image files in class folders"
    provenance = Provenance(origin=Origin.REAL, source=source).noted(*notes)
    return look_at(root, kept, classes, provenance, own_side)


def _other_files(seen: ScanSnapshot, root: Path) -> str:
    """Return a clause that counts the files below a folder that are no image which is read; "" if there are none."""
    paths = [path for path in seen.others if path.is_relative_to(root)]
    kinds = ", ".join(sorted({path.suffix.lower() or "no ending" for path in paths})[:MOST_NAMED])
    return (
        f"{number_of(len(paths), 'file')} that are no images, or of other formats, left out: {kinds}"
        if paths
        else ""
    )


def _images_by_class(root: Path, seen: ScanSnapshot) -> dict[str, list[str]]:
    """Return the image files of every class that has any, relative to `root`; class names are text."""
    if root.is_file():
        raise DataNotFoundError(
            "a file, not a folder",
            where=root,
            hint="Name the folder of the images, or --list FILE for a list.",
        )
    if not root.is_dir():
        raise DataNotFoundError(
            "no such folder",
            where=root,
            hint="Name a folder of images, or of one folder of images per class.",
        )
    folders = ClassFolders(root, seen)
    names = folders.names()
    scanned = {text_of_name(name): sorted(folders.images(name)) for name in names}
    by_class = {name: files for name, files in scanned.items() if files}
    if not by_class and (loose := folders.loose()):
        return {ONE_CLASS: loose}
    if not by_class:
        what = f"only {number_of(len(names), 'folder')} without images" if names else "no images"
        if others := _other_files(seen, root):
            what = f"{what} that are read ({others})"
        raise DataNotFoundError(
            f"{what} in it",
            where=root,
            hint=f"Put {', '.join(images.EXTENSIONS[:3])} ... files there, "
            "in one folder per class if they have classes, "
            f"or name other files by a pattern: '{root}/*.tar'.",
        )
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
