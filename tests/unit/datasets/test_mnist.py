"""MNIST's IDX files: read exactly, and refused when they are not what they say."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.datasets import DatasetSpec, Origin, open_dataset
from storebench.datasets.mnist import open_mnist, read_idx
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.settings.words import Split
from tests.support.dataset_files import damaged, digests, idx, labels, pixels, write_mnist
from tests.support.thinning import examples

TRAIN = DatasetSpec(name="mnist", synthetic=False)
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@examples(300)
@given(data=st.one_of(damaged(idx(pixels(3, 4, 5))), damaged(gzip.compress(idx(pixels(3, 4, 5))))))
def test_a_damaged_idx_file_is_refused_or_read_and_never_fails_otherwise(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "idx-fuzz"
    path.write_bytes(data)
    try:
        array = read_idx(path, 3)
    except CorruptDataError as error:
        refusal = str(error)
    else:
        assert (array.dtype, array.ndim) == (np.uint8, 3)
        return
    assert str(path) in refusal


def test_images_and_labels_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    dataset = open_dataset(TRAIN, tmp_path)
    assert dataset.info.image_shape == (28, 28, 1)
    assert dataset.info.provenance.origin is Origin.REAL
    for index, (image, label) in enumerate(map(dataset.sample, range(7))):
        assert np.array_equal(image[:, :, 0], pixels(7, 28, 28, seed=7)[index])
        assert label == labels(7)[index]


@pytest.mark.parametrize("layout", ["mnist", ".", "MNIST/raw"])
def test_the_files_are_found_where_other_tools_put_them(tmp_path: Path, layout: str) -> None:
    write_mnist(tmp_path / layout)
    assert len(open_dataset(TRAIN, tmp_path)) == 7
    assert len(open_dataset(DatasetSpec(name="mnist", split=Split.TEST), tmp_path)) == 3


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        (IMAGES, lambda data: data[:-1], "has only 5,487"),
        (IMAGES, lambda data: data + b"x", "has more"),
        (IMAGES, lambda data: b"\0\0\x08\x01" + data[4:], "wrong magic number 00000801"),
        (IMAGES, lambda _: b"", "(empty file)"),
        (IMAGES, lambda _: idx(pixels(7, 28, 27)), "not N x 28 x 28"),
        (LABELS, lambda _: idx(labels(6)), "6 labels for 7 images"),
        (LABELS, lambda _: idx(np.full(7, 10, np.uint8)), "label 10 is not a digit"),
        (IMAGES, lambda data: gzip.compress(data)[:-9], "damaged or truncated gzip"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(tmp_path: Path, name: str, damage: object, says: str) -> None:
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(CorruptDataError) as caught:
        open_mnist(tmp_path, Split.TRAIN)
    assert says in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_split_of_real_data_is_not_replaced_by_a_stand_in(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    for file in tmp_path.glob("t10k*"):
        file.unlink()
    with pytest.raises(DataNotFoundError, match="t10k-images-idx3-ubyte"):
        open_dataset(DatasetSpec(name="mnist", split=Split.TEST), tmp_path)


def test_a_sample_may_be_changed_without_changing_the_dataset(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    dataset = open_mnist(tmp_path, Split.TRAIN)
    before = digests(dataset)
    dataset.sample(0)[0][:] = 0
    assert digests(dataset) == before
    for index in (-1, 7):
        with pytest.raises(IndexError):
            dataset.sample(index)


def test_the_real_mnist_has_its_known_counts_and_labels(data_root: Path) -> None:
    train = open_dataset(TRAIN, data_root)
    assert len(train) == 60_000
    assert [train.sample(index)[1] for index in range(10)] == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert len(open_dataset(DatasetSpec(name="mnist", split=Split.TEST), data_root)) == 10_000
