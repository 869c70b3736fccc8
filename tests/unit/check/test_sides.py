"""A run's folder as a side of a check: its pairing, its replicates, their counters, and why a cell has failed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from storebench.check.sides import CellData, Pairing, read_pairing, read_side
from storebench.errors import CorruptDataError, IntegrityError, NotComparableError
from storebench.record.lines import PAIRING_NAME
from storebench.record.schema import CacheFacts, CacheVerdict, CodeFacts, Coverage, Record
from storebench.settings.words import CacheState
from tests.support.planted_sides import failed, record, write_run


def one_cell(folder: Path, *records: Record) -> CellData:
    [cell] = read_side(write_run(folder / "run", list(records)), baseline=True).cells.values()
    return cell


def test_a_run_without_a_pairing_has_none_and_a_pair_is_read_as_written(tmp_path: Path) -> None:
    assert not read_pairing(tmp_path).pairing
    about = Pairing(pairing="p1", same=True, code=CodeFacts(digest="d1", commit="abc"))
    (tmp_path / PAIRING_NAME).write_text(about.model_dump_json())
    assert read_pairing(tmp_path) == about


@pytest.mark.parametrize("wrong", [[], "p1", {"pairing": 1}, {"code": []}, {"code": {"digest": 1}}])
def test_a_pairing_of_another_form_is_refused(wrong: Any, tmp_path: Path) -> None:
    (tmp_path / PAIRING_NAME).write_text(json.dumps(wrong))
    with pytest.raises(CorruptDataError, match="not what 'bench --against' writes"):
        read_pairing(tmp_path)


def test_records_become_cells_with_a_replicate_per_round(tmp_path: Path) -> None:
    records = [record("lmdb", number, 1e-3 * (number + 1)) for number in range(3)]
    cell = one_cell(tmp_path, *records)
    assert cell.seconds == pytest.approx({0: 1e-3, 1: 2e-3, 2: 3e-3})
    assert cell.environment is not None
    assert (cell.environment.key, cell.samples) == ("here", ("f00d", 1000))
    assert cell.failure == ""


def test_the_epochs_of_a_replicate_count_with_their_geometric_mean(tmp_path: Path) -> None:
    epochs = [record("lmdb", 0, cost, epoch=number) for number, cost in enumerate((1e-3, 1e-3, 8e-3))]
    assert one_cell(tmp_path, *epochs).seconds[0] == pytest.approx(2e-3)


def test_the_first_failed_record_fails_its_cell(tmp_path: Path) -> None:
    cell = one_cell(tmp_path, record("lmdb", 0, 1e-3), failed(record("lmdb", 1, 1e-3), "the store is gone"))
    assert (cell.failure, len(cell.seconds)) == ("the store is gone", 1)
    untimed = dataclasses.replace(record("hdf5", 0, 1e-3), samples_per_s=0.0)
    assert one_cell(tmp_path / "untimed", untimed).failure == "no step was timed"


UNVERIFIED = CacheFacts(
    requested=CacheState.COLD,
    method="none",
    resident_frac_before=None,
    resident_frac_after=None,
    verdict=CacheVerdict.UNVERIFIED,
    reason="pages cannot be counted",
)


def test_a_cell_that_was_not_shown_to_be_cold_has_failed(tmp_path: Path) -> None:
    cold = record("lmdb", 0, 1e-3, cell={"cache": "cold"}, cache=UNVERIFIED)
    why = "the cache was not verified to be cold: pages cannot be counted"
    assert one_cell(tmp_path, cold).failure == why


COVERED = Coverage(expected=1000, served=1000, unique=1000, duplicates=0, missing=0, timed_checked=64)


def test_records_of_two_codes_are_not_pooled(tmp_path: Path) -> None:
    def of(number: int, digest: str, plugin: str) -> Record:
        code = CodeFacts(digest=digest, commit="c", plugin=plugin)
        return record("lmdb", number, 1e-3, code=code, coverage=COVERED)

    old, new, other = "planted c1 d1", "planted c1 d2", "planted c2 d1"
    different = "its records are of different code"
    assert one_cell(tmp_path / "plugins", of(0, "a", old), of(1, "a", new)).failure == different
    assert one_cell(tmp_path / "package", of(0, "a", old), of(1, "b", old)).failure == different
    assert one_cell(tmp_path / "same", of(0, "a", old), of(1, "a", other)).failure != different


def test_records_of_other_code_than_their_sides_have_failed(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", [record("lmdb", 0, 1e-3, code=CodeFacts(digest="d1"), coverage=COVERED)]
    )
    (run / PAIRING_NAME).write_text(json.dumps({"pairing": "p1", "code": {"digest": "d2"}}))
    side = read_side(run, baseline=False)
    [cell] = side.cells.values()
    assert side.pairing == "p1"
    assert cell.failure == "it ran other code than its side: digest d1, not d2"


def test_records_of_two_machines_have_no_environment(tmp_path: Path) -> None:
    records = [record("lmdb", number, 1e-3, key=key) for number, key in enumerate(("here", "there"))]
    assert one_cell(tmp_path, *records).environment is None


def test_a_replicate_counts_everything_that_is_known_of_its_records(tmp_path: Path) -> None:
    counted = record("lmdb", 0, 1e-3, open_s=0.5)
    assert one_cell(tmp_path, counted).counters[0] == {
        "samples_served": 1000,
        "payload_bytes": 3_072_000,
        "bytes_on_disk": 4_000_000,
        "read_calls": 1000,
        "major_faults": 0,
        "open_s": 0.5,
    }
    assert one_cell(tmp_path / "untabled", counted).quickest == {}


@pytest.mark.parametrize(("cache", "workers", "counted"), [("cold", 0, True), ("warm", 2, False)])
def test_bytes_of_the_device_count_for_cold_cells(
    cache: str, workers: int, counted: bool, tmp_path: Path
) -> None:
    one = record("lmdb", 0, 1e-3, cell={"cache": cache, "workers": workers})
    assert ("device_read_bytes" in one_cell(tmp_path, one).counters[0]) == counted


@pytest.mark.parametrize("content", [None, {}, {"records.jsonl": ""}, {"session.json": "{}"}])
def test_a_place_without_records_is_no_side(content: dict[str, str] | None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    with pytest.raises(NotComparableError, match="no baseline: "):
        read_side(folder, baseline=True)
    with pytest.raises(IntegrityError, match="nothing was measured: "):
        read_side(folder, baseline=False)
