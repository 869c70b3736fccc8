"""Cold and warm reads of `storebench inspect`, and the settings that are tried: which, and that a better one is found."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from storebench.probes.machine import IN_MEMORY, mount_of
from storebench.probes.page_cache import resident, warm
from storebench.stores.inspection import Trial, inspect
from tests.support.container_files import WRITERS, table
from tests.support.foreign_files import jpegs, numbered, write_lmdb, write_per_image, write_vlen
from tests.support.quick_cli import storebench

pytestmark = pytest.mark.still_pages

IMAGES = jpegs(400)
SAMPLES = [(image, number % 3) for number, image in enumerate(IMAGES)]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    mount = mount_of(tmp_path)
    if mount.fstype in IN_MEMORY or mount.device is None:
        pytest.skip(f"the temporary folder is on {mount.fstype}: a disk is needed (pytest --basetemp)")
    return tmp_path


def test_cold_reads_bring_their_bytes_into_the_page_cache(disk: Path) -> None:
    path = disk / "images.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.random.default_rng(0).integers(0, 256, (400, 64, 64, 3), dtype=np.uint8)
    part = inspect(path, samples=20).part
    assert part is not None
    assert part.cold is not None
    assert part.warm is not None
    assert not part.cold.reason + part.warm.reason
    assert part.cold.samples >= 10
    assert (part.cold.read_bytes or 0) >= 64 * 64 * 3
    assert (part.cold.median_s or 0) > (part.warm.median_s or 1)


def test_a_mapped_file_is_evicted_before_each_cold_read(disk: Path) -> None:
    path = write_lmdb(disk / "db", numbered([image * 8 for image in IMAGES]))
    part = inspect(path, samples=40).part
    assert part is not None
    assert part.cold is not None
    assert part.cold.read_bytes is not None, part.cold.reason
    # The kernel reads ahead of each value. Without an eviction, no page could come in a second time.
    assert part.cold.read_bytes * part.cold.samples > 1.2 * path.stat().st_size
    [trial] = part.trials
    assert (trial.setting, trial.now, trial.tried) == ("readahead", "on", "off")
    assert trial.cold is not None


def test_a_file_in_memory_only_is_never_called_cold(in_memory: Path) -> None:
    if mount_of(in_memory).fstype not in IN_MEMORY:
        pytest.skip("no folder in memory here")
    path = write_vlen(in_memory / "vlen.h5", IMAGES)
    done = storebench(in_memory, "inspect", path, "--samples", "5")
    assert done.returncode == 0, done.stderr
    assert "cold not measured (" in done.stdout
    assert "tmpfs" in done.stdout


def test_a_file_of_a_few_pages_has_no_cold_figure(disk: Path) -> None:
    path = write_vlen(disk / "few", IMAGES[:12])
    done = storebench(disk, "inspect", path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.search(
        r"cold not measured \(too small a file, \d+ pages of at least 256: .*\), warm [\d.]+", last
    )


def test_no_samples_means_no_reads_and_no_eviction(disk: Path) -> None:
    path = write_vlen(disk / "vlen.h5", IMAGES)
    warm([path])
    done = storebench(disk, "inspect", path, "--samples", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "a random sample here: not measured (no samples were to be read)"
    assert resident([path]).frac == 1


def test_the_last_line_says_what_a_sample_costs(disk: Path) -> None:
    path = write_per_image(disk / "classes.h5", [image * 4 for image in jpegs(600)])
    done = storebench(disk, "inspect", path, "--samples", "10")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 10, "not a line per data set"
    cost = r"[\d,]+ bytes; cold [\d,]+ bytes read in [\d.]+ (m|µ)s, warm [\d.]+ (m|µ)s"
    assert re.fullmatch(rf"a random sample here \(\*/\*\): {cost}", lines[-1]), lines[-1]
    assert "600 samples (JPEG)" in done.stdout


def test_the_findings_are_printed_as_json(disk: Path) -> None:
    path = write_lmdb(disk / "db", numbered(IMAGES))
    facts = json.loads(storebench(disk, "inspect", path, "--samples", "5", "--json").stdout)
    part = facts["part"]
    assert (facts["kind"], part["content"]) == ("LMDB", "JPEG")
    assert part["cold"].keys() == part["warm"].keys() == {"samples", "median_s", "read_bytes", "reason"}


def trials_of(path: Path | str, samples: int = 100) -> dict[str, Trial]:
    part = inspect(path, samples=samples).part
    assert part is not None
    return {trial.setting: trial for trial in part.trials}


@pytest.mark.parametrize("kind", ["tar", "MDS", "Parquet", "Hugging Face", "Caffe", "HDF5"])
def test_trials_change_nothing_in_the_file(kind: str, tmp_path: Path) -> None:
    name = WRITERS[kind](tmp_path / "data", SAMPLES)
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    found = trials_of(tmp_path / "data" / "a.h5" if kind == "HDF5" else name)
    expected = {"Parquet": {"samples per call"}, "HDF5": {"values of the writer", "samples per call"}}
    assert found.keys() - {"readahead"} == expected.get(kind, set())
    after = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.name != "lock.mdb"}
    assert {path: content for path, content in before.items() if path in after} == after


def test_a_smaller_row_group_is_found_better(tmp_path: Path) -> None:
    pq.write_table(table(SAMPLES * 5), tmp_path / "a.parquet", row_group_size=2000, use_dictionary=False)
    trial = trials_of(tmp_path / "a.parquet")["row_group_size of the writer"]
    assert (trial.now, trial.tried) == ("2,000", "64")
    assert (trial.warm or 0) > 3


def test_chunks_of_one_sample_and_no_filter_are_found_better(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        noise = np.random.default_rng(0).integers(0, 64, (200, 64, 64, 3), np.uint8)
        file.create_dataset("images", data=noise, chunks=(50, 64, 64, 3), compression="gzip")
    found = trials_of(tmp_path / "a.h5")
    chunks, plain = found["chunks of the writer"], found["filter of the writer"]
    assert (chunks.now, chunks.tried, plain.now) == ("50x64x64x3", "1x64x64x3", "gzip")
    assert (chunks.warm or 0) > 3


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
