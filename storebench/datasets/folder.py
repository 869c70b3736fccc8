"""A folder of class folders with image files, as for an unpacked ImageNet or any other set of images."""

from pathlib import Path

import numpy as np

from storebench.datasets import images
from storebench.datasets.base import FOLDER_PREFIX, Dataset, DatasetInfo, Image, Origin, Provenance
from storebench.datasets.sources import check_index, files_digest, fingerprint, unreadable
from storebench.datasets.walk import ClassFolders
from storebench.errors import DataNotFoundError
from storebench.fileio.reading import open_regular
from storebench.names import text_of_name
from storebench.settings.words import Split

IMAGE_SHAPE = (images.SIDE, images.SIDE, 3)

TEST_FOLDERS = ("val", "test", "validation")


class FolderDataset(Dataset):
    """Serve the images of class folders, sorted by class, then by file name.

    Parameters
    ----------
    name, split
        As in `DatasetInfo`.
    root
        The folder that holds one folder per class.
    class_names
        The classes that labels index, if another split has defined them; images
        of other classes are left out. None uses the class folders, sorted.

    Raises
    ------
    DataNotFoundError
        There is no image in any class folder.
    CorruptDataError
        See `ClassFolders.images`.
    """

    def __init__(
        self, name: str, split: Split, root: Path, class_names: tuple[str, ...] | None = None
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
        self._root = root
        self._paths = [path for path, _ in kept]
        self._labels = np.array([label for _, label in kept], dtype=np.int64)
        left_out = sum(map(len, found.values())) - len(kept)
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=len(kept),
            image_shape=IMAGE_SHAPE,
            class_names=classes,
            provenance=Provenance(
                origin=Origin.REAL,
                source="image files in class folders",
                note=f"{left_out} images left out: the train split lacks their classes" if left_out else "",
            ),
            fingerprint=fingerprint(
                "folder",
                IMAGE_SHAPE,
                self._labels.tolist(),
                files_digest(root, [root / p for p in self._paths]),
            ),
        )

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset."""
        return self._info

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [256, 256, 3], label)."""
        check_index(index, self._info.count)
        path = self._root / self._paths[index]
        try:
            stream = open_regular(path, most_bytes=images.MOST_FILE_BYTES)
        except OSError as error:
            raise unreadable(path, error) from error
        with stream:
            return images.decode_rgb(stream, str(path)), int(self._labels[index])


def has_class_folders(root: Path) -> bool:
    """Return whether `root` holds a folder that contains an image."""
    if not root.is_dir():
        return False
    folders = ClassFolders(root)
    return any(next(folders.images(name), None) is not None for name in folders.names())


def _scan(root: Path) -> dict[str, list[str]]:
    """Return the image files of every class that has any, relative to `root`; class names are text."""
    if not root.is_dir():
        raise DataNotFoundError(
            "no such folder", where=root, hint="Name a folder that holds one folder per class."
        )
    folders = ClassFolders(root)
    names = folders.names()
    scanned = {text_of_name(name): sorted(folders.images(name)) for name in names}
    found = {name: files for name, files in scanned.items() if files}
    if not found:
        what = f"{len(names)} folders without images" if names else "no class folders"
        raise DataNotFoundError(
            f"{what} in it",
            where=root,
            hint=f"Put one folder per class there, with {', '.join(images.EXTENSIONS[:3])} ... files.",
        )
    return found


def open_folder(path: Path, split: Split) -> Dataset:
    """Open ``folder:PATH``: PATH/train and PATH/val (or test, validation) if they exist, else PATH as the train split.

    Raises
    ------
    DataNotFoundError
        The folder is missing, holds no images, or has no such split.
    CorruptDataError
        The folder holds something that is refused; see `ClassFolders.images`.
    """
    name = FOLDER_PREFIX + text_of_name(str(path))
    train = path / "train" if has_class_folders(path / "train") else path
    if split == Split.TRAIN:
        return FolderDataset(name, split, train)
    test = next((path / one for one in TEST_FOLDERS if has_class_folders(path / one)), None)
    if test is None or train == path:
        raise DataNotFoundError(
            "no test split: there are no class folders in train and one of val, test, validation",
            where=path,
            hint="Put them there, or use the train split only.",
        )
    return FolderDataset(name, split, test, class_names=tuple(_scan(train)))
