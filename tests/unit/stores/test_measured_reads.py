"""Cold and warm reads of `storebench inspect`: their state is counted, and the last line says what a sample costs."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from storebench.probes.machine import IN_MEMORY, mount_of
from storebench.probes.page_cache import resident, warm
from storebench.stores.inspection import inspect
from tests.support.foreign_files import jpegs, numbered, write_lmdb, write_per_image, write_vlen
from tests.support.quick_cli import storebench

pytestmark = pytest.mark.still_pages

IMAGES = jpegs(200)


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
    assert part.cold.verified
    assert part.cold.samples >= 10
    assert part.cold.read_bytes is not None
    assert part.cold.read_bytes >= 64 * 64 * 3
    assert part.warm is not None
    assert part.warm.verified
    assert part.warm.read_bytes == 0
    assert part.cold.median_s is not None
    assert part.warm.median_s is not None
    assert part.cold.median_s > part.warm.median_s


def test_a_mapped_file_is_evicted_before_each_cold_read(disk: Path) -> None:
    path = write_lmdb(disk / "db", numbered([image * 8 for image in IMAGES]))
    main = inspect(path, samples=40).part
    assert main is not None
    assert main.cold is not None
    assert main.cold.verified, main.cold.reason
    assert main.cold.read_bytes is not None
    # The kernel reads ahead of each value. Without an eviction, no page could come in a second time.
    assert main.cold.read_bytes * main.cold.samples > 1.2 * path.stat().st_size


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
    assert f"run: storebench run original lmdb+original lmdb -d {path} " in done.stdout
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
    names = {"samples", "median_s", "p90_s", "read_bytes", "verified", "reason"}
    assert names == set(part["cold"]) == set(part["warm"])
    assert part["amplification"] == pytest.approx(part["touched_bytes"] / part["sample_bytes"][1])
