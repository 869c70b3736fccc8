"""CIFAR-10 in both layouts: the same images, and no pickle that runs anything."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from storebench.datasets import DatasetSpec, open_dataset
from storebench.datasets.cifar10 import parse_python
from storebench.errors import CorruptDataError
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


def test_missing_batches_are_said(tmp_path: Path) -> None:
    write_python(tmp_path / "cifar-10-batches-py")
    write_binary(tmp_path / "cifar-10-batches-bin", batches=2)
    info = open_dataset(SPEC, tmp_path).info
    assert (info.provenance.source, info.provenance.note) == (
        "CIFAR-10 binary batches",
        "2 of 5 batches present",
    )


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


@pytest.mark.parametrize("protocol", [0, 5])
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
        (pickle.dumps({}), "not a pickle of CIFAR-10 data"),
        (cifar_pickle(batch(1)[0], labels(3)), "3 labels for uint8"),
        (cifar_pickle(batch(1)[0], np.array([1, 2, 3, 10])), "label 10 is not a class"),
        (pickle.dumps({"data": np.zeros((4, 3072)), "labels": [1, 2, 3, 4]}), "4 labels for float64"),
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
