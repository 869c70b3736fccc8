"""Two file systems, devices or machines in one report are told apart, and can be compared by name."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import storebench
from storebench.errors import UsageError
from storebench.report.build import write_report
from storebench.results import Environment, Record
from tests.support.planted import ENVIRONMENT, make_record, write_run


def place(key: str, **match: Any) -> Environment:
    disk = {"model": match.pop("device", "virtio_blk"), "read_ahead_kb": str(match.pop("readahead", 8192))}
    return dataclasses.replace(
        ENVIRONMENT, key=key, match={"block_device": disk, "filesystem": "ext4"} | match
    )


def records(environment: Environment, run_id: str, factor: float = 1.0) -> list[Record]:
    return [
        make_record(
            backend, replicate=n, run_id=run_id, wait_ms=wait * factor + n * 0.01, environment=environment
        )
        for backend, wait in (("png", 30.0), ("lmdb", 10.0))
        for n in range(3)
    ]


PAIRS = {
    "file systems": (place("e1"), place("e2", filesystem="xfs"), "on ext4", "on xfs"),
    "devices": (place("e1"), place("e2", device="nvme"), "device virtio_blk", "device nvme"),
    "read-ahead": (place("e1"), place("e2", readahead=128), "read-ahead 8192 KiB", "read-ahead 128 KiB"),
    "machines": (place("e1"), place("e2", cpu_model="another"), "machine e1", "machine e2"),
}


@pytest.mark.usefixtures("without_bitmaps")
@pytest.mark.parametrize("name", PAIRS)
def test_two_places_are_told_apart_in_headings_captions_plots_and_files(tmp_path: Path, name: str) -> None:
    first, second, *words = PAIRS[name]
    write_run(tmp_path / "runs" / "a", records(first, "a"))
    write_run(tmp_path / "runs" / "b", records(second, "b"))
    written = write_report(tmp_path / "runs", tmp_path / "out")
    captions = sorted(table.caption.partition(":")[0] for table in written.tables)
    assert captions == sorted(f"ImageNet, 4,000 images, {word}" for word in words)
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f">ImageNet, 4,000 images, {word}</h2>" in page for word in words)
    stems = {path.stem for path in written.files if path.stem.startswith("throughput")}
    assert len(stems) == 2
    assert not any(stem.endswith("-2") for stem in stems)
    for stem in stems:
        drawn = (tmp_path / "out" / f"{stem}.svg").read_text()
        assert sum(word in drawn for word in words) == 1, "the plot names its place and no other"


@pytest.mark.usefixtures("without_pictures")
def test_one_place_needs_no_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records(place("e1"), "a"))
    (table,) = write_report(run, tmp_path / "out").tables
    assert table.caption.startswith("ImageNet, 4,000 images: ")


@pytest.mark.usefixtures("without_pictures")
def test_samples_of_one_name_are_told_apart_by_how_they_were_drawn(tmp_path: Path) -> None:
    drawn = [make_record("png", data_seed=seed) for seed in (0, 1)]
    written = write_report(write_run(tmp_path / "run", drawn), tmp_path / "out")
    assert {table.caption.partition(":")[0] for table in written.tables} == {
        "ImageNet, 4,000 images, data seed 0",
        "ImageNet, 4,000 images, data seed 1",
    }
    assert not any(path.stem.endswith("-2") for path in written.files)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("places")
    write_run(folder / "a", records(place("e1"), "a"))
    write_run(folder / "b", records(place("e2", filesystem="xfs", device="nvme"), "b", factor=2))
    return storebench.load_results(folder)


def test_file_system_and_device_are_columns(results: pd.DataFrame) -> None:
    assert set(results["filesystem"]) == {"ext4", "xfs"}
    assert set(results["storage_device"]) == {"virtio_blk", "nvme"}
    assert set(results["machine_readahead_kib"]) == {8192}


@pytest.mark.parametrize(
    ("by", "baseline"), [("filesystem", "ext4"), ("storage_device", "virtio_blk"), ("environment_key", "e1")]
)
def test_places_are_compared_by_name_and_without_pairing(
    results: pd.DataFrame, by: str, baseline: str
) -> None:
    table = storebench.compare(results, by=by, baseline=baseline).set_index("backend")
    # 10 ms of compute: 20 ms per step on the one, 30 ms on the other.
    assert table.loc["lmdb", "ratio"] == pytest.approx(20 / 30, rel=1e-3)
    assert table["ratio_lo"]["lmdb"] < 20 / 30 < table["ratio_hi"]["lmdb"]
    assert set(table["verdict"]) == {"slower"}
    assert set(table[by]) == set(results[by]) - {baseline}


def test_a_place_that_no_cell_was_measured_at_is_refused(results: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="does not occur"):
        storebench.compare(results, by="filesystem", baseline="zfs")
    with pytest.raises(UsageError, match="no column of a cell") as refused:
        storebench.compare(results, by="host", baseline="x")
    assert "filesystem" in str(refused.value.hint)
