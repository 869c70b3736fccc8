"""ImageNet from class folders and from its published archives, without unpacking anything."""

import os
import pickle
import tarfile
from pathlib import Path

import pytest

from storebench.datasets import DatasetSpec, Origin, open_dataset
from storebench.datasets.imagenet import TRAIN_TAR
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.settings.words import Split
from tests.support.dataset_files import digests, image_file, tar, write_class_folders

TRAIN = DatasetSpec(name="imagenet", synthetic=False)
TEST = DatasetSpec(name="imagenet", split=Split.TEST, synthetic=False)
CLASSES = {"n03": 2, "n01": 3, "n02": 1}


def train_tar(folder: Path) -> bytes:
    """Return the tar of tars of the class folders below `folder`, classes in no particular order."""
    inner = {}
    for name in CLASSES:
        files = {path.name: path.read_bytes() for path in sorted((folder / name).iterdir(), reverse=True)}
        inner[f"{name}.tar"] = tar(files)
    return tar(inner)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data folder whose imagenet/ is empty; the class folders lie in folders/imagenet/train."""
    write_class_folders(tmp_path / "folders" / "imagenet" / "train", CLASSES)
    (tmp_path / "imagenet").mkdir()
    return tmp_path


def put_train_tar(root: Path) -> Path:
    path = root / "imagenet" / TRAIN_TAR
    path.write_bytes(train_tar(root / "folders" / "imagenet" / "train"))
    return path


def test_the_archive_and_the_folders_give_the_same_samples(root: Path) -> None:
    put_train_tar(root)
    archive, folders = open_dataset(TRAIN, root), open_dataset(TRAIN, root / "folders")
    assert archive.info.class_names == folders.info.class_names == ("n01", "n02", "n03")
    assert [archive.sample(index)[1] for index in range(6)] == [0, 0, 0, 1, 2, 2]
    assert digests(archive) == digests(folders) == digests(pickle.loads(pickle.dumps(archive)))
    assert archive.info.image_shape == folders.info.image_shape == (30, 40, 3)
    assert archive.info.provenance.source == TRAIN_TAR


def test_an_image_that_does_not_decode_is_named_with_its_archive(root: Path) -> None:
    (root / "folders" / "imagenet" / "train" / "n01" / "n01_1.JPEG").write_bytes(b"no image")
    path = put_train_tar(root)
    with pytest.raises(CorruptDataError) as caught:
        open_dataset(TRAIN, root).sample(1)
    assert f"{path}:n01_1.JPEG at byte " in str(caught.value)


@pytest.mark.parametrize("cut", [0, 700, 3000, -10_200])
def test_a_truncated_archive_is_refused(root: Path, cut: int) -> None:
    path = put_train_tar(root)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptDataError):
        open_dataset(TRAIN, root)


def test_validation_folders_use_the_classes_of_train(root: Path) -> None:
    folder = root / "folders" / "imagenet"
    write_class_folders(folder / "val", {"n02": 2, "n09": 1, "n03": 1})
    dataset = open_dataset(TEST, root / "folders")
    assert [dataset.sample(index)[1] for index in range(len(dataset))] == [1, 1, 2]
    assert dataset.info.class_names == ("n01", "n02", "n03")
    assert dataset.info.provenance.note == "1 images left out: the train split lacks their classes"


def test_a_missing_validation_split_says_what_it_needs(root: Path) -> None:
    put_train_tar(root)
    for place in (root, root / "folders"):
        with pytest.raises(DataNotFoundError, match="no test split"):
            open_dataset(TEST, place)


def test_the_real_photographs_open_with_their_classes(data_root: Path) -> None:
    dataset = open_dataset(TRAIN, data_root)
    assert dataset.info.provenance.origin is Origin.REAL
    assert dataset.info.num_classes >= 1
    image, label = dataset.sample(len(dataset) - 1)
    assert image.shape == (256, 256, 3)
    assert label == dataset.info.num_classes - 1


def test_names_in_an_archive_that_are_no_utf8_are_read_and_named(root: Path) -> None:
    latin = os.fsdecode(b"\xe9")
    inner = tar({f"{latin}_1.JPEG": image_file(), f"{latin}_2.JPEG": b"no image"}, tarfile.GNU_FORMAT)
    (root / "imagenet" / TRAIN_TAR).write_bytes(tar({f"{latin}.tar": inner}, tarfile.GNU_FORMAT))
    dataset = open_dataset(TRAIN, root)
    assert dataset.info.class_names == (r"\xe9",)
    dataset.sample(0)
    with pytest.raises(CorruptDataError, match=r"_2\.JPEG at byte .*: does not decode"):
        dataset.sample(1)
