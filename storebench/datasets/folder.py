"""A folder of image files: one folder per class, as of an unpacked ImageNet, or images without classes."""

from pathlib import Path
from typing import NoReturn

from storebench.datasets import images
from storebench.datasets.base import FOLDER_PREFIX, Dataset, Origin, Provenance
from storebench.datasets.files import FileDataset, FoundFiles, look_at
from storebench.datasets.listing import Listings, found_files
from storebench.datasets.sources import Statuses
from storebench.datasets.splits import are_both, find_splits
from storebench.datasets.walk import ClassFolders, ScanSnapshot
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.plain_text import text_of_name
from storebench.settings.words import Split
from storebench.units import number_of

MOST_NAMED = 5
"""Most folders that a note names."""

ONE_CLASS = "images"
"""Name of the only class of images that are in no class folder."""


def open_folder(
    path: Path, split: Split, image_size: int | None = None, listings: Listings | None = None
) -> Dataset:
    """Open ``folder:PATH``: its train and val folders (see `find_splits`) if it has them, else PATH as the train split.

    Parameters
    ----------
    image_size
        See `FileDataset`.
    listings
        See `storebench.datasets.listing.found_files`.

    Raises
    ------
    DataNotFoundError
        The folder is missing, holds no images, or has no such split.
    CorruptDataError
        The folder holds something that is refused (see `ClassFolders.images`), or its layout is ambiguous.
    UsageError
        The stores would be written into this folder.
    """
    if listings is not None and path.is_dir():
        listings.refuse_within(path)

    def scan(seen: ScanSnapshot) -> tuple[FoundFiles, Statuses]:
        return _scan_split(path, split, seen)

    files = found_files(path, ("folder", split), scan, listings)
    return FileDataset(FOLDER_PREFIX + text_of_name(str(path)), split, files, image_size)


def open_class_folders(
    name: str,
    split: Split,
    root: Path,
    class_names: tuple[str, ...] | None,
    image_size: int | None,
    listings: Listings | None = None,
) -> Dataset:
    """Open class folders, sorted by class, then by file name, as 256 x 256 unless another size is asked for.

    Parameters
    ----------
    name, split
        As in `DatasetInfo`.
    root
        The folder that holds one folder per class, or the images of a single class.
    class_names
        The classes that labels index, if another split has defined them; images
        of other classes are left out. None uses the class folders, sorted.
    image_size, listings
        As in `open_folder`.

    Raises
    ------
    DataNotFoundError
        There is no image in it.
    CorruptDataError
        See `ClassFolders.images`.
    """

    def scan(seen: ScanSnapshot) -> tuple[FoundFiles, Statuses]:
        return _scan_classes(root, class_names, images.SIDE, seen)

    files = found_files(root, ("classes", class_names), scan, listings)
    return FileDataset(name, split, files, image_size)


def _scan_split(path: Path, split: Split, seen: ScanSnapshot) -> tuple[FoundFiles, Statuses]:
    """Find the images of a split of ``folder:PATH``."""
    splits = find_splits(path, seen)
    if split == Split.TRAIN:
        if splits.train is None and splits.test is not None:
            _refuse_test_only(path, splits.test)
        if splits.train is None:
            _refuse_splits_below(path, seen)
        beside = ", ".join(f"{name}/" for name in splits.beside)
        note = f"beside the splits, {beside} left out" if beside else ""
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
) -> tuple[FoundFiles, Statuses]:
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
                hint="Put the splits above the classes: train/CLASS and val/CLASS.",
            )
    left_out = sum(map(len, by_class.values())) - len(kept)
    flat = list(by_class) == [ONE_CLASS] and not (root / ONE_CLASS).is_dir()
    notes = [
        f"{left_out} images left out: the train split lacks their classes" if left_out else "",
        "one class only, so every label is 0" if len(classes) == 1 else "",
    ]
    notes += [
        note,
        _other_formats(seen, root),
        _without_images(by_class, seen, root),
        _by_systems(seen, root),
    ]
    if not flat and (loose := len(ClassFolders(root, seen).loose())):
        notes.append(f"{number_of(loose, 'image')} beside the class folders left out: no class")
    provenance = Provenance(
        origin=Origin.REAL,
        source="image files without class folders" if flat else "image files in class folders",
        note="; ".join(filter(None, notes)),
    )
    return look_at(root, kept, classes, provenance, own_side)


def _other_formats(seen: ScanSnapshot, root: Path) -> str:
    """Return a clause that counts the images of formats that are not read; "" if there are none."""
    others = [path for path in seen.others if path.is_relative_to(root)]
    kinds = ", ".join(sorted({path.suffix.lower() for path in others}))
    return f"{number_of(len(others), 'file')} in other image formats left out: {kinds}" if others else ""


def _without_images(by_class: dict[str, list[str]], seen: ScanSnapshot, root: Path) -> str:
    """Return a clause that names the folders which are no class, because no image in them is read; "" if there are none."""
    empty = [name for name in ClassFolders(root, seen).names() if text_of_name(name) not in by_class]
    if not empty or list(by_class) == [ONE_CLASS]:
        return ""
    words = []
    for name in empty[:MOST_NAMED]:
        held = ", ".join(sorted(seen.endings.get(root / name, {"empty"})))
        words.append(f"{text_of_name(name)}/ ({held})")
    more = f" and {len(empty) - MOST_NAMED} more" if len(empty) > MOST_NAMED else ""
    return f"{number_of(len(empty), 'folder')} without an image that is read left out, no class: {', '.join(words)}{more}"


def _by_systems(seen: ScanSnapshot, root: Path) -> str:
    """Return a clause that counts the folders that a system made; "" if there are none."""
    made = [path for path in seen.systems if path.is_relative_to(root)]
    names = ", ".join(sorted({path.name for path in made}))
    return f"{number_of(len(made), 'folder')} that a system made left out: {names}" if made else ""


def _images_by_class(root: Path, seen: ScanSnapshot) -> dict[str, list[str]]:
    """Return the image files of every class that has any, relative to `root`; class names are text.

    Images that are in no class folder are one class where there are no others.
    """
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
        if formats := _other_formats(seen, root):
            what = f"{what} that are read ({formats})"
        raise DataNotFoundError(
            f"{what} in it",
            where=root,
            hint=f"Put {', '.join(images.EXTENSIONS[:3])} ... files there, in one folder per class if they have classes.",
        )
    return by_class


def _refuse_splits_below(path: Path, seen: ScanSnapshot) -> None:
    """Refuse a folder whose only folder holds train and test splits: they would become one class."""
    names = ClassFolders(path, seen).names() if path.is_dir() else []
    below = path / names[0] if len(names) == 1 else None
    splits = None if below is None else find_splits(below, seen)
    if splits is not None and splits.train is not None and splits.test is not None:
        raise DataNotFoundError(
            f"its only folder, {splits.train.parent.name}/, holds {splits.train.name}/ and {splits.test.name}/",
            where=path,
            hint=f"Name {splits.train.parent}.",
        )


def _refuse_test_only(path: Path, test: Path) -> NoReturn:
    """Refuse to train on a folder that holds test splits and nothing else."""
    raise DataNotFoundError(
        f"only a test split, {test.name}/, and no training images",
        where=path,
        hint=f"Put training images into train/, use --split test, or name {test} to train on it.",
    )
