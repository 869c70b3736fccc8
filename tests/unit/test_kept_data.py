"""The suite's own shortcut for real data: files are read once, and again when they change."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from storebench.datasets import mnist
from storebench.settings.words import Split
from tests.support.dataset_files import write_mnist
from tests.support.kept_data import keep_real_data


def test_files_below_the_data_folder_are_read_again_only_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "data" / "mnist", tmp_path / "mnist"
    for folder in (inside, outside):
        write_mnist(folder)
    monkeypatch.setenv("STOREBENCH_DATA", str(inside.parent))
    keep_real_data(monkeypatch.setattr)
    read: list[Path] = []
    read_idx = mnist.read_idx

    def counted(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
        read.append(path)
        return read_idx(path, dimensions)

    monkeypatch.setattr(mnist, "read_idx", counted)

    first = mnist.open_mnist(inside, Split.TRAIN)
    assert mnist.open_mnist(inside, Split.TRAIN).info == first.info
    assert len(read) == 2
    assert len(mnist.open_mnist(inside, Split.TEST)) == 3
    assert len(read) == 4

    write_mnist(inside, train=8)
    changed = mnist.open_mnist(inside, Split.TRAIN)
    assert len(changed) == 8
    assert changed.info.fingerprint != first.info.fingerprint
    assert len(read) == 6

    fingerprints = {mnist.open_mnist(outside, Split.TRAIN).info.fingerprint for _ in range(2)}
    assert fingerprints == {first.info.fingerprint}
    assert len(read) == 10
