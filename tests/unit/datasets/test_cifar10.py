"""CIFAR-10 in both layouts: the same images, and no pickle that runs anything."""

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.datasets import DatasetSpec, open_dataset
from storebench.datasets.cifar10 import parse_python
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.settings.words import Split
from tests.support.dataset_files import cifar_binary, cifar_pickle, digests, labels, pixels, tar

SPEC = DatasetSpec(name="cifar10", synthetic=False)


def batch(number: int, count: int = 4) -> tuple[np.ndarray, np.ndarray]:
    return pixels(count, 3, 32, 32, seed=number), labels(count)


def write_binary(folder: Path, batches: int = 5) -> None:
    folder.mkdir(parents=True)
    for number in range(1, batches + 1):
        (folder / f"data_batch_{number}.bin").write_bytes(cifar_binary(*batch(number)))
    (folder / "test_batch.bin").write_bytes(cifar_binary(*batch(99)))


def write_python(folder: Path, batches: int = 5) -> None:
    folder.mkdir(parents=True)
    for number in range(1, batches + 1):
        (folder / f"data_batch_{number}").write_bytes(cifar_pickle(*batch(number)))
    (folder / "test_batch").write_bytes(cifar_pickle(*batch(99)))


def test_planar_records_become_images_with_their_labels(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar10" / "cifar-10-batches-bin")
    dataset = open_dataset(SPEC, tmp_path)
    assert len(dataset) == 20
    image, label = dataset.sample(5)
    planar, classes = batch(2)
    assert image.flags.c_contiguous
    assert np.array_equal(image, planar[1].transpose(1, 2, 0))
    assert label == classes[1]


@pytest.mark.parametrize("split", ["train", "test"])
def test_both_layouts_and_both_archives_give_the_same_samples(tmp_path: Path, split: str) -> None:
    write_binary(tmp_path / "a" / "cifar10" / "cifar-10-batches-bin")
    write_python(tmp_path / "b" / "cifar-10-batches-py")
    write_binary(tmp_path / "flat" / "cifar10")
    for root, layout, archive in (("a", "bin", "binary"), ("b", "py", "python")):
        folder = next((tmp_path / root).rglob(f"cifar-10-batches-{layout}"))
        files = {f"{folder.name}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
        target = tmp_path / f"{root}-archive" / f"cifar-10-{archive}.tar.gz"
        target.parent.mkdir()
        target.write_bytes(gzip.compress(tar(files), 1))
    roots = ("a", "b", "flat", "a-archive", "b-archive")
    opened = [
        open_dataset(DatasetSpec(name="cifar10", split=Split(split), synthetic=False), tmp_path / root)
        for root in roots
    ]
    assert all(digests(dataset) == digests(opened[0]) for dataset in opened)
    assert {dataset.info.fingerprint for dataset in opened} == {opened[0].info.fingerprint}
    assert [dataset.info.provenance.source for dataset in opened] == [
        "CIFAR-10 binary batches",
        "CIFAR-10 python batches",
        "CIFAR-10 binary batches",
        "CIFAR-10 binary archive",
        "CIFAR-10 python archive",
    ]
    assert digests(pickle.loads(pickle.dumps(opened[-1]))) == digests(opened[0])


def test_the_layout_with_more_records_wins_and_missing_batches_are_said(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", batches=2)
    assert open_dataset(SPEC, tmp_path).info.provenance.note == "2 of 5 batches present"
    write_python(tmp_path / "cifar-10-batches-py")
    info = open_dataset(SPEC, tmp_path).info
    assert (info.provenance.source, info.count, info.provenance.note) == ("CIFAR-10 python batches", 20, "")


def test_a_missing_split_is_said(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(DataNotFoundError, match="no batch of its test split"):
        open_dataset(DatasetSpec(name="cifar10", split=Split.TEST), tmp_path)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (cifar_binary(*batch(1))[:-1], "not a multiple of 3,073"),
        (b"", "not a multiple of 3,073"),
        (b"\x0a" + cifar_binary(*batch(1))[1:], "label 10 is not a class"),
    ],
)
def test_a_wrong_binary_file_is_refused_by_its_name(tmp_path: Path, raw: bytes, says: str) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").write_bytes(raw)
    with pytest.raises(CorruptDataError, match=says) as caught:
        open_dataset(SPEC, tmp_path)
    assert "data_batch_3.bin" in str(caught.value)


class Hostile:
    """Pickles to a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_refused_and_never_runs(tmp_path: Path, protocol: int) -> None:
    proof = tmp_path / "proof"
    hostile = pickle.dumps({"data": Hostile(f"touch {proof}"), "labels": []}, protocol)
    pickle.loads(hostile)
    assert proof.exists(), "the pickle must be one that works, or this test proves nothing"
    proof.unlink()

    write_python(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(hostile)
    with pytest.raises(CorruptDataError, match=r"data_batch_2: .*system"):
        open_dataset(SPEC, tmp_path)
    assert not proof.exists()


@pytest.mark.parametrize("name", ["builtins\neval", "builtins\ngetattr", "numpy\nload", "numpy\nfromfile"])
def test_only_the_functions_of_an_array_may_be_named(name: str) -> None:
    with pytest.raises(CorruptDataError, match="it wants to call"):
        parse_python(b"c" + name.encode() + b"\n.", "batch")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not a pickle of CIFAR-10 data"),
        (pickle.dumps([1]), "not a pickle of CIFAR-10 data"),
        (pickle.dumps({}), "not hold N x 3,072 bytes"),
        (cifar_pickle(batch(1)[0], labels(3)), "does not hold 4 labels"),
        (cifar_pickle(batch(1)[0], np.array([1, 2, 3, 10])), "label 10 is not a class"),
        (cifar_pickle(batch(1)[0], np.array([1, 2, 3, -1])), "label -1 is not a class"),
        (cifar_pickle(batch(1)[0][:3], labels(4)).replace(b"J\x03\0\0\0", b"J\x04\0\0\0", 1), "not a pickle"),
    ],
)
def test_a_pickle_of_something_else_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(CorruptDataError, match=says):
        parse_python(raw, "batch")


def test_pickles_of_newer_pythons_are_read_too() -> None:
    planar, classes = batch(1)
    modern = {"data": planar.reshape(4, -1), "labels": [int(label) for label in classes]}
    for protocol in range(6):
        images, found = parse_python(pickle.dumps(modern, protocol), "batch")
        assert np.array_equal(images, planar)
        assert found.tolist() == classes.tolist()


SAME_LABELS = {
    "numpy scalars": lambda classes: list(classes.astype(np.int64)),
    "mixed": lambda classes: [np.uint8(classes[0]), *map(int, classes[1:])],
    "array": lambda classes: classes.astype(np.int64),
    "bytes": lambda classes: classes.astype(np.uint8),
    "raw bytes": lambda classes: bytes(classes.astype(np.uint8)),
    "column": lambda classes: classes.reshape(-1, 1),
    "whole fractions": lambda classes: classes.astype(float),
    "tuple": lambda classes: tuple(map(int, classes)),
}


@pytest.mark.parametrize("kind", SAME_LABELS)
def test_labels_are_read_from_every_kind_of_list(kind: str) -> None:
    planar, classes = batch(1)
    values = SAME_LABELS[kind](classes)
    for protocol in range(6):
        for names in (("data", "labels"), (b"data", b"labels")):
            raw = pickle.dumps(dict(zip(names, (planar.reshape(4, -1), values), strict=True)), protocol)
            images, read = parse_python(raw, "batch")
            assert np.array_equal(images, planar)
            assert read.tolist() == classes.tolist()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1.5, 2, 3, 4], "not a class"), (["1", "2", "3", "4"], "not a class"), ([1, 2, 3, 300], "not a class"),
        (np.arange(5), "does not hold 4 labels"), ([[1], [2, 3], 4, 5], "does not hold 4 labels"),
        (None, "does not hold 4 labels"),
    ],
)  # fmt: skip
def test_labels_that_are_no_classes_are_refused(values: Any, says: str) -> None:
    with pytest.raises(CorruptDataError, match=says):
        parse_python(pickle.dumps({"data": batch(1)[0].reshape(4, -1), "labels": values}), "batch")


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float32, np.bool_, object])
def test_pixels_that_are_no_bytes_are_refused_by_name(dtype: Any) -> None:
    planar, classes = batch(1)
    other = {"data": planar.reshape(4, -1).astype(dtype), "labels": [int(label) for label in classes]}
    with pytest.raises(CorruptDataError, match=f"its pixels are {np.dtype(dtype)}, not uint8"):
        parse_python(pickle.dumps(other, 4), "batch")


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(tar({"cifar-10-batches-bin/data_batch_1.bin": cifar_binary(*batch(1))}))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(data[:-20])
    with pytest.raises(CorruptDataError, match="truncated gzip"):
        open_dataset(SPEC, tmp_path)
