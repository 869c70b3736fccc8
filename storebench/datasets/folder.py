"""A folder of image files: one folder per class, as of an unpacked ImageNet, or images without classes."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from storebench.datasets import images
from storebench.datasets.base import FOLDER_PREFIX, Dataset, DatasetInfo, Image, Origin, Provenance
from storebench.datasets.geometry import HEADER_BYTES, Shape, change_note, common_small_shape, square
from storebench.datasets.originals import checked
from storebench.datasets.sources import check_index, fingerprint, names_digest, read_file, unreadable
from storebench.datasets.walk import ClassFolders
from storebench.errors import DataNotFoundError
from storebench.fileio.reading import open_regular
from storebench.names import text_of_name
from storebench.settings.words import Split

TRAIN_FOLDER = "train"
TEST_FOLDERS = ("val", "test", "validation")

ONE_CLASS = "images"
"""Name of the only class of images that are in no class folder."""


class FileDataset(Dataset):
    """Serve image files, in the order in which they are listed.

    Parameters
    ----------
    name, split
        As in `DatasetInfo`.
    root
        The folder that the paths are relative to.
    files
        Path and class index of each file.
    class_names
        The classes that labels index.
    provenance
        Where the files come from.
    image_size
        Side of the square images; None for the dataset's own size.
    own_side
        Side of the dataset's own square images; None for the size that all files have if that is below 256 x 256, and
        for 256 otherwise.
    """

    def __init__(
        self,
        name: str,
        split: Split,
        root: Path,
        files: Sequence[tuple[str, int]],
        class_names: tuple[str, ...],
        provenance: Provenance,
        image_size: int | None = None,
        own_side: int | None = None,
    ) -> None:
        self._root = root
        self._own_side = own_side
        self._paths = [path for path, _ in files]
        self._labels = np.array([label for _, label in files], dtype=np.int64)
        shape = self._own_shape if image_size is None else square(image_size)
        self._resize_note = change_note(self._start, len(self._paths), shape)
        note = "; ".join(filter(None, (provenance.note, self._resize_note)))
        self._plain = provenance
        self._digest = names_digest(root, self._paths)
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=len(self._paths),
            image_shape=shape,
            class_names=class_names,
            provenance=dataclasses.replace(provenance, note=note),
            fingerprint=fingerprint("folder", shape, self._labels.tolist(), self._digest),
        )

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset."""
        return self._info

    @property
    def resize_note(self) -> str:
        """One clause if images are resized by a large factor."""
        return self._resize_note

    @property
    def original_info(self) -> DatasetInfo:
        """The geometry and identity of the files as they are, whatever size was asked for."""
        return dataclasses.replace(
            self._info,
            image_shape=self._own_shape,
            provenance=self._plain,
            fingerprint=fingerprint("originals", self._own_shape, self._labels.tolist(), self._digest),
        )

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, 3], label)."""
        check_index(index, self._info.count)
        path = self._root / self._paths[index]
        try:
            stream = open_regular(path, most_bytes=images.MOST_FILE_BYTES)
        except OSError as error:
            raise unreadable(path, error) from error
        with stream:
            pixels = images.decode_rgb(stream, str(path), self._info.image_shape[:2])
        return pixels, int(self._labels[index])

    def original(self, index: int) -> tuple[bytes, int]:
        """Return the bytes of file `index`, and its label."""
        check_index(index, self._info.count)
        path = self._root / self._paths[index]
        content = read_file(path, most_bytes=images.MOST_FILE_BYTES)
        return checked(content, str(path)), int(self._labels[index])

    @functools.cached_property
    def _own_shape(self) -> Shape:
        """The shape where no size was asked for."""
        if self._own_side is not None:
            return square(self._own_side)
        return common_small_shape(self._start, len(self._paths)) or square(None)

    def _start(self, index: int) -> bytes:
        with open_regular(self._root / self._paths[index]) as stream:
            return stream.read(HEADER_BYTES)


class FolderDataset(FileDataset):
    """Serve the images of class folders, sorted by class, then by file name.

    Parameters
    ----------
    name, split
        As in `DatasetInfo`.
    root
        The folder that holds one folder per class, or the images of a single class.
    class_names
        The classes that labels index, if another split has defined them; images
        of other classes are left out. None uses the class folders, sorted.
    image_size, own_side
        See `FileDataset`.

    Raises
    ------
    DataNotFoundError
        There is no image in it.
    CorruptDataError
        See `ClassFolders.images`.
    """

    def __init__(
        self,
        name: str,
        split: Split,
        root: Path,
        class_names: tuple[str, ...] | None = None,
        image_size: int | None = None,
        own_side: int | None = None,
    ) -> None:
        found = _scan(root)
        classes = class_names or tuple(found)
        labels = {folder: label for label, folder in enumerate(classes)}
        kept = [(path, labels[folder]) for folder in found if folder in labels for path in found[folder]]
        if not kept:
            raise DataNotFoundError(
                "no images of these classes in its folders",
                where=root,
                hint="Put one folder per class there.",
            )
        left_out = sum(map(len, found.values())) - len(kept)
        notes = [
            f"{left_out} images left out: the train split lacks their classes" if left_out else "",
            "one class only, so every label is 0" if len(classes) == 1 else "",
        ]
        flat = list(found) == [ONE_CLASS] and not (root / ONE_CLASS).is_dir()
        super().__init__(
            name,
            split,
            root,
            kept,
            classes,
            Provenance(
                origin=Origin.REAL,
                source="image files without class folders" if flat else "image files in class folders",
                note="; ".join(filter(None, notes)),
            ),
            image_size,
            own_side,
        )


def has_class_folders(root: Path) -> bool:
    """Return whether `root` holds a folder that contains an image."""
    if not root.is_dir():
        return False
    folders = ClassFolders(root)
    return any(next(folders.images(name), None) is not None for name in folders.names())


def has_images(root: Path) -> bool:
    """Return whether `root` holds an image, in a folder or directly."""
    return root.is_dir() and (has_class_folders(root) or bool(ClassFolders(root).loose()))


def _scan(root: Path) -> dict[str, list[str]]:
    """Return the image files of every class that has any, relative to `root`; class names are text.

    Images that are in no class folder are one class where there are no others.
    """
    if not root.is_dir():
        raise DataNotFoundError(
            "no such folder", where=root, hint="Name a folder that holds one folder per class."
        )
    folders = ClassFolders(root)
    names = folders.names()
    scanned = {text_of_name(name): sorted(folders.images(name)) for name in names}
    found = {name: files for name, files in scanned.items() if files}
    if not found and (loose := folders.loose()):
        return {ONE_CLASS: loose}
    if not found:
        what = f"{len(names)} folders without images" if names else "no class folders"
        raise DataNotFoundError(
            f"{what} in it",
            where=root,
            hint=f"Put one folder per class there, with {', '.join(images.EXTENSIONS[:3])} ... files.",
        )
    return found


def open_folder(path: Path, split: Split, image_size: int | None = None) -> Dataset:
    """Open ``folder:PATH``: PATH/train and PATH/val (or test, validation) if they exist, else PATH as the train split.

    Parameters
    ----------
    image_size
        See `FileDataset`.

    Raises
    ------
    DataNotFoundError
        The folder is missing, holds no images, or has no such split.
    CorruptDataError
        The folder holds something that is refused; see `ClassFolders.images`.
    """
    name = FOLDER_PREFIX + text_of_name(str(path))
    train = path / TRAIN_FOLDER if _is_split(path, TRAIN_FOLDER) else path
    test = next((path / one for one in TEST_FOLDERS if _is_split(path, one)), None)
    if split == Split.TRAIN:
        if train == path and test is not None:
            _refuse_test_only(path, test)
        return FolderDataset(name, split, train, image_size=image_size)
    if test is None or (train == path and not _only_tests(path)):
        raise DataNotFoundError(
            "no test split: there are no class folders in train and one of val, test, validation",
            where=path,
            hint="Put them there, or use the train split only.",
        )
    classes = None if train == path else tuple(_scan(train))
    return FolderDataset(name, split, test, class_names=classes, image_size=image_size)


def _is_split(path: Path, name: str) -> bool:
    """Return whether a folder is a split: it has class folders, or it has images and all folders beside it are splits.

    A class may be called "train".
    """
    if has_class_folders(path / name):
        return True
    return has_images(path / name) and set(ClassFolders(path).names()) <= {TRAIN_FOLDER, *TEST_FOLDERS}


def _only_tests(path: Path) -> bool:
    """Return whether all folders of `path` are those of test splits."""
    return set(ClassFolders(path).names()) <= set(TEST_FOLDERS)


def _refuse_test_only(path: Path, test: Path) -> None:
    """Refuse to train on a folder that holds test splits and nothing else."""
    if _only_tests(path):
        raise DataNotFoundError(
            f"only a test split, {test.name}/, and no training images",
            where=path,
            hint=f"Put training images into {TRAIN_FOLDER}/, use --split test, or name {test} to train on it.",
        )
