"""Settings that are tried on a file: which, on what, and that a better one is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from storebench.stores.container_files import BUFFERS
from storebench.stores.inspection import inspect
from storebench.stores.random_reads import Trial
from tests.support.container_files import WRITERS, table, write_tar
from tests.support.foreign_files import jpegs

IMAGES = jpegs(400)
SAMPLES = [(image, number % 3) for number, image in enumerate(IMAGES)]


def trials_of(path: Path | str, samples: int = 100) -> dict[str, Trial]:
    return {trial.setting: trial for trial in inspect(Path(path), samples=samples).trials}


SETTINGS = {
    "tar": {"order"},
    "MDS": {"order"},
    "Parquet": {"samples per call"},
    "Hugging Face": {"order"},
    "Caffe": {"readahead", "samples per transaction"},
    "HDF5": {"values of the writer", "samples per call"},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_each_kind_has_settings_of_its_own(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storebench.stores.random_reads.FEWEST_PAGES", 16)
    name = WRITERS[kind](tmp_path / "data", SAMPLES)
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    found = trials_of(tmp_path / "data" / "a.h5" if kind == "HDF5" else name)
    if _evicts(tmp_path):
        assert found.keys() == SETTINGS[kind]
    assert all(trial.factor > 0 and trial.now != trial.tried for trial in found.values())
    after = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.name != "lock.mdb"}
    assert {path: content for path, content in before.items() if path in after} == after


def _evicts(folder: Path) -> bool:
    from storebench.probes.machine import IN_MEMORY, mount_of

    return mount_of(folder).fstype not in IN_MEMORY


def test_a_smaller_row_group_is_found_better(tmp_path: Path) -> None:
    pq.write_table(table(SAMPLES * 5), tmp_path / "a.parquet", row_group_size=2000, use_dictionary=False)
    trial = trials_of(tmp_path / "a.parquet")["row_group_size of the writer"]
    assert (trial.now, trial.tried) == ("2,000", "64")
    assert trial.factor > 3


def test_chunks_of_one_sample_and_no_filter_are_found_better(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        noise = np.random.default_rng(0).integers(0, 64, (200, 64, 64, 3), np.uint8)
        file.create_dataset("images", data=noise, chunks=(50, 64, 64, 3), compression="gzip")
    found = trials_of(tmp_path / "a.h5")
    chunks, plain = found["chunks of the writer"], found["filter of the writer"]
    assert (chunks.now, chunks.tried, plain.now) == ("50x64x64x3", "1x64x64x3", "gzip")
    assert chunks.factor > 3


def test_a_larger_buffer_is_more_random(tmp_path: Path) -> None:
    members = {f"{at}.jpg": IMAGES[0] for at in range(4 * BUFFERS[0])}
    write_tar(tmp_path / "a.tar", members)
    trial = trials_of(tmp_path / "a.tar")["shuffle buffer of a stream"]
    assert trial.factor > 1.3
    assert trial.gain == "as random"


def test_a_long_scan_ends_early_and_says_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.container_files.SCAN_S", 0.0)
    for kind, name in (("tar", "000.tar"), ("TFRecord", "0.tfrecord")):
        WRITERS[kind](tmp_path / kind, SAMPLES)
        part = inspect(tmp_path / kind / name, samples=8).part
        assert part is not None
        assert part.warm is not None
        assert (part.warm.samples, part.exact) == (1, False)
        assert 100 < part.samples < 400


def test_the_table_is_printed_above_the_cost(cli: Callable[..., Any], tmp_path: Path) -> None:
    pq.write_table(table(SAMPLES * 5), tmp_path / "a.parquet", row_group_size=2000, use_dictionary=False)
    done = cli("inspect", str(tmp_path / "a.parquet"), "--samples", "20")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("a random sample here")
    assert any(line.split()[:2] == ["setting", "now"] for line in lines)
