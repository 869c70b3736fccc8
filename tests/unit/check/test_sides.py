"""One side of a check, part by part: pairings, empty places for baselines, sessions and impossible numbers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from storebench.check.baseline import HISTORY, is_free
from storebench.check.revisions import read_project
from storebench.check.sides.baseline import BASELINE_VERSION, side_of_baseline
from storebench.check.sides.benchmarks import SKIPPED_KEY, side_of_sessions
from storebench.check.sides.model import FEWEST_FOR_TAIL, CellData, Replicate, Side, read_json, read_pairing
from storebench.check.sides.records import side_of_records
from storebench.check.sides.rules import checked_side
from storebench.errors import CorruptDataError, SchemaVersionError
from storebench.results import CacheFacts, CacheVerdict, Ceilings, CodeFacts, Percentiles, Record
from storebench.runs.records import PAIRING_NAME
from storebench.settings.words import CacheState
from tests.support.planted_sides import failed, record, session, write_run


def test_a_run_without_a_pairing_has_none_and_a_pair_is_read_as_written(tmp_path: Path) -> None:
    assert read_pairing(tmp_path) == {}
    about = {"pairing": "p1", "commit": "abc", "code": {"digest": "d1"}}
    (tmp_path / PAIRING_NAME).write_text(json.dumps(about))
    assert read_pairing(tmp_path) == about


@pytest.mark.parametrize(
    "wrong", [[], "p1", {"pairing": 1}, {"commit": None}, {"code": []}, {"code": {"digest": 1}}]
)
def test_a_pairing_of_another_form_is_refused(wrong: Any, tmp_path: Path) -> None:
    (tmp_path / PAIRING_NAME).write_text(json.dumps(wrong))
    with pytest.raises(CorruptDataError, match="not what 'bench --against' writes"):
        read_pairing(tmp_path)


def test_an_empty_session_measured_nothing_and_half_of_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    path.write_text(" \n")
    assert read_json(path) == {"benchmarks": []}
    path.write_text('{"benchmarks": [')
    with pytest.raises(CorruptDataError):
        read_json(path)


@pytest.mark.parametrize(
    ("entries", "free"),
    [
        ([], True),
        ([f"{HISTORY}/"], True),
        (["baseline.json"], False),
        ([f"{HISTORY}/", f"{HISTORY}/2026.json"], False),
        ([HISTORY], False),
        (["notes.txt"], False),
    ],
)
def test_a_place_is_free_if_a_baseline_there_loses_nothing(
    entries: list[str], free: bool, tmp_path: Path
) -> None:
    target = tmp_path / "main"
    assert is_free(target)
    target.mkdir()
    for entry in entries:
        path = target / entry
        if entry.endswith("/"):
            path.mkdir()
        else:
            path.write_text("{}")
    assert is_free(target) is free


def test_a_file_is_no_free_place(tmp_path: Path) -> None:
    (tmp_path / "main").write_text("{}")
    assert not is_free(tmp_path / "main")


def side(**changes: Any) -> Side:
    fields: dict[str, Any] = {"number": 0, "seconds": 1e-3} | changes
    cell = CellData(cell_id="a", label="read/a", replicates=(Replicate(**fields),))
    return Side(source="here.json", kind="records", cells={"a": cell})


def test_possible_numbers_pass_unchanged() -> None:
    sound = side(counters={"read_calls": 0.0}, busy_cores=0.5)
    assert checked_side(sound) == sound


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": 0.0}, "seconds of a replicate is 0.0"),
        ({"seconds": float("inf")}, "seconds of a replicate is inf"),
        ({"tail_s": -1.0}, "tail_s of a replicate is -1.0"),
        ({"counters": {"read_calls": -1.0}}, "the counter 'read_calls' is -1.0"),
        ({"busy_cores": -0.1}, "busy_cores of a replicate is -0.1"),
        ({"seconds": "fast"}, "not a cell of a check: replicates.0.seconds"),
    ],
)
def test_an_impossible_number_is_named_with_its_source(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptDataError) as refused:
        checked_side(side(**changes))
    assert words in str(refused.value)
    assert refused.value.where == "here.json"


def test_sessions_become_replicates_of_the_median_of_their_rounds() -> None:
    sessions = [(f"{number}.json", session(number, cells=("read/a",), rounds=9)) for number in range(3)]
    read = side_of_sessions("folder", sessions)
    cell = read.cells["read/a"]
    assert (read.kind, len(cell.replicates), cell.one_process, cell.rounds) == (
        "pytest-benchmark",
        3,
        False,
        9,
    )
    for (_, raw), replicate in zip(sessions, cell.replicates, strict=True):
        seconds = sorted(raw["benchmarks"][0]["stats"]["data"])
        assert replicate.seconds == pytest.approx(seconds[4] / 1024)
        assert replicate.tail_s == pytest.approx(seconds[-1] / 1024)


def test_one_session_alone_becomes_a_replicate_per_round() -> None:
    read = side_of_sessions("one.json", [("one.json", session(0, cells=("read/a",), rounds=9))])
    assert (len(read.cells["read/a"].replicates), read.cells["read/a"].one_process) == (9, True)


def test_a_benchmark_that_one_session_skipped_has_failed() -> None:
    first, second = (session(number, cells=("read/a", "read/b")[: 2 - number]) for number in range(2))
    node = first["benchmarks"][1]["fullname"]
    second[SKIPPED_KEY] = {node: "no such library"}
    read = side_of_sessions("folder", [("0.json", first), ("1.json", second)])
    assert read.cells["read/b"].failure == "it was skipped in one session: no such library"
    assert read.cells["read/a"].failure == ""


@pytest.mark.parametrize("raw", [{}, {"benchmarks": 3}, {"benchmarks": [{"name": "a"}]}])
def test_what_is_no_session_is_refused(raw: Any) -> None:
    with pytest.raises(CorruptDataError, match="not pytest-benchmark's JSON"):
        side_of_sessions("one.json", [("one.json", raw)])


def test_records_become_cells_with_a_replicate_per_round(tmp_path: Path) -> None:
    records = [record("lmdb", number, 1e-3 * (number + 1)) for number in range(3)]
    read = side_of_records(write_run(tmp_path / "run", records))
    [cell] = read.cells.values()
    assert [replicate.seconds for replicate in cell.replicates] == pytest.approx([1e-3, 2e-3, 3e-3])
    assert (cell.environment.key, cell.samples, cell.figure) == ("here", 1000, "mean")
    assert (cell.failure, read.pairing) == ("", "")


def test_the_first_failed_record_fails_its_cell(tmp_path: Path) -> None:
    records = [record("lmdb", 0, 1e-3), failed(record("lmdb", 1, 1e-3), "the store is gone")]
    [cell] = side_of_records(write_run(tmp_path / "run", records)).cells.values()
    assert (cell.failure, len(cell.replicates)) == ("the store is gone", 1)
    untimed = dataclasses.replace(record("hdf5", 0, 1e-3), samples_per_s=0.0)
    assert one_cell(tmp_path / "untimed", untimed).failure == "no step was timed"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (None, "it was not checked"),
        (
            CacheFacts(
                requested=CacheState.COLD,
                method="none",
                resident_frac_before=None,
                resident_frac_after=None,
                verdict=CacheVerdict.UNVERIFIED,
                reason="pages cannot be counted",
            ),
            "pages cannot be counted",
        ),
    ],
)
def test_a_cell_that_was_not_shown_to_be_cold_has_failed(
    facts: CacheFacts | None, why: str, tmp_path: Path
) -> None:
    cold = record("lmdb", 0, 1e-3)
    cold = dataclasses.replace(cold, cell=dataclasses.replace(cold.cell, cache=CacheState.COLD), cache=facts)
    assert one_cell(tmp_path, cold).failure == f"the cache was not verified to be cold: {why}"


def test_records_of_two_codes_of_a_plugin_fail_their_cell(tmp_path: Path) -> None:
    def of(number: int, plugin: str) -> Record:
        code = CodeFacts(digest="d1", commit="c", plugin=plugin)
        return record("lmdb", number, 1e-3, code=code)

    old, new = "storebench-planted c1 d1", "storebench-planted c1 d2"
    assert one_cell(tmp_path / "two", of(0, old), of(1, new)).failure == "its records are of different code"
    other = "storebench-planted c2 d1"
    assert "different code" not in one_cell(tmp_path / "same", of(0, old), of(1, other)).failure


def test_records_of_two_machines_have_no_environment(tmp_path: Path) -> None:
    records = [record("lmdb", number, 1e-3, key=key) for number, key in enumerate(("here", "there"))]
    [cell] = side_of_records(write_run(tmp_path / "run", records)).cells.values()
    assert cell.environment.key == ""


def one_cell(folder: Path, *records: Record) -> CellData:
    [cell] = side_of_records(write_run(folder / "run", list(records))).cells.values()
    return cell


def test_a_replicate_counts_everything_that_is_known_of_its_records(tmp_path: Path) -> None:
    counted = record("lmdb", 0, 1e-3, open_s=0.5, time_to_first_batch_s=0.25, epoch_s=3.0, timed_s=2.0)
    assert one_cell(tmp_path, counted).replicates[0].counters == {
        "samples_served": 1000,
        "payload_bytes": 3_072_000,
        "bytes_on_disk": 4_000_000,
        "read_calls": 1000,
        "major_faults": 0,
        "open_s": 0.5,
        "time_to_first_batch_s": 0.25,
        "warmup_s": 1.0,
    }


@pytest.mark.parametrize(("cache", "workers", "counted"), [("cold", 0, True), ("warm", 2, False)])
def test_which_bytes_and_which_steps_of_warm_up_count(
    cache: str, workers: int, counted: bool, tmp_path: Path
) -> None:
    one = record("lmdb", 0, 1e-3, cell={"cache": cache, "workers": workers})
    names = one_cell(tmp_path, one).replicates[0].counters
    assert ("device_read_bytes" in names, "warmup_s" in names) == (counted, counted)


@pytest.mark.parametrize(
    ("fields", "ceilings", "calibration", "relative"),
    [
        ({}, {"gather_samples_per_s": 5e5}, "memory", 1e-3 * 5e5),
        ({"cache": "cold"}, {"device_random_1_bytes_per_s": 1e8}, "device", 1e-3 * 1e8 / 3072),
        (
            {"compute": "real", "model": "tiny"},
            {"matrix_products_per_s": 200.0},
            "matrix product",
            1e-3 * 200,
        ),
        ({}, {}, "", None),
    ],
)
def test_the_ceiling_of_a_cells_own_work_calibrates_it(
    fields: dict[str, Any],
    ceilings: dict[str, Any],
    calibration: str,
    relative: float | None,
    tmp_path: Path,
) -> None:
    cell = one_cell(tmp_path, record("lmdb", 0, 1e-3, cell=fields, ceilings=Ceilings(**ceilings)))
    assert cell.calibration == calibration
    assert cell.replicates[0].relative == (relative if relative is None else pytest.approx(relative))


def test_five_epochs_have_a_tail_and_four_have_none(tmp_path: Path) -> None:
    def epochs(count: int) -> list[Record]:
        slow = {number: 5e-3 if number == 1 else 1e-3 for number in range(count)}
        return [dataclasses.replace(record("lmdb", 0, slow[n]), epoch=n) for n in range(count)]

    five = one_cell(tmp_path / "five", *epochs(FEWEST_FOR_TAIL))
    assert (five.tail_of, five.replicates[0].tail_s) == ("slowest tenth of the epochs", pytest.approx(5e-3))
    assert one_cell(tmp_path / "four", *epochs(FEWEST_FOR_TAIL - 1)).tail_of == ""


@pytest.mark.parametrize(
    ("epochs", "steps", "tail_of", "tail_s"),
    [
        (1, 19, "", None),
        (1, 20, "p95 of the steps", 0.012),
        (1, 99, "p95 of the steps", 0.012),
        (1, 100, "p99 of the steps", 0.032),
        (3, 100, "p99 of the steps", 0.132),
        (5, 100, "p99 of the steps", 0.432),
    ],
)
def test_the_tail_of_enough_steps_is_that_of_their_waits(
    epochs: int, steps: int, tail_of: str, tail_s: float | None, tmp_path: Path
) -> None:
    """A step takes 2 ms beside its wait. Of few epochs the median counts, of five the slowest."""

    def waiting(epoch: int) -> Record:
        return dataclasses.replace(
            record("lmdb", 0, 1e-3),
            epoch=epoch,
            timed_steps=steps,
            timed_s=steps * 0.003,
            data_wait_s=steps * 0.001,
            data_wait_ns=Percentiles(p50=10**6, p95=10**7, p99=3 * 10**7 + 10**8 * epoch, max=2 * 10**9),
        )

    cell = one_cell(tmp_path, *map(waiting, range(epochs)))
    assert cell.tail_of == tail_of
    assert cell.replicates[0].tail_s == (None if tail_s is None else pytest.approx(tail_s))


def test_records_of_other_code_than_their_side_has_fail_their_cell(tmp_path: Path) -> None:
    code = CodeFacts(digest="d1", commit="c", plugin="")
    run = write_run(tmp_path / "run", [record("lmdb", 0, 1e-3, code=code)])
    for digest, failure in (("d1", ""), ("d2", "it ran other code than its side: digest d1, not d2")):
        (run / PAIRING_NAME).write_text(
            json.dumps({"pairing": "p1", "commit": "c", "code": {"digest": digest}})
        )
        side = side_of_records(run)
        [cell] = side.cells.values()
        assert (side.pairing, cell.failure) == (
            "p1",
            failure or "no sample of its timed batches was compared with the dataset",
        )


def baseline(**changes: Any) -> dict[str, Any]:
    cell = {"cell_id": "a", "label": "read/a", "rerun": "a", "replicates": [{"number": 0, "seconds": 1e-3}]}
    return {"storebench_baseline": BASELINE_VERSION, "cells": [cell | changes]}


@pytest.mark.parametrize(("rerun", "figure"), [("a", "mean"), ("test_a.py::test", "lower quartile")])
def test_a_baseline_without_a_figure_has_that_of_its_release(rerun: str, figure: str) -> None:
    read = side_of_baseline("baseline.json", baseline(rerun=rerun))
    assert read.kind == "baseline"
    assert read.cells["a"].figure == figure


def test_a_baseline_of_another_version_or_with_a_misspelt_key_is_refused() -> None:
    with pytest.raises(SchemaVersionError, match="schema version 99, this storebench reads 1 and 2"):
        side_of_baseline("baseline.json", {"storebench_baseline": 99, "cells": []})
    with pytest.raises(CorruptDataError, match="no field is called 'lable'"):
        side_of_baseline("baseline.json", baseline(lable="read/a"))


@pytest.mark.parametrize(
    ("text", "project"),
    [
        (None, {}),
        ("[project]\nname = 'pack'", {"name": "pack"}),
        ("[tool.x]\ny = 1", {}),
        ("project = 3", {}),
        ("[project", {}),
    ],
)
def test_a_project_is_read_from_its_pyproject_or_empty(
    text: str | None, project: dict[str, str], tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert read_project(tmp_path) == project
