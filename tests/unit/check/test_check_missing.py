"""What a check says of cells that one side lacks, that did not measure, or that were not in the state asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from storebench.check.judge import CellState
from storebench.results import CacheFacts, CacheVerdict, CodeFacts, Coverage
from storebench.settings.words import CacheState
from tests.support.checked import check, run
from tests.support.planted_sides import (
    CELLS,
    failed,
    record,
    run_of,
    session,
    write_run,
    write_sessions,
)


def test_missing_cells_fail_unless_they_are_allowed_to_be(tmp_path: Path) -> None:
    every = write_sessions(tmp_path / "a", seed=1, noise=0.001)
    fewer = write_sessions(tmp_path / "b", seed=2, noise=0.001, cells=CELLS[:3])
    code, text = run(every, fewer)
    assert code == 5
    assert "missing, 2 of 5 cells" in text
    assert "the baseline has it, the contender has not" in text
    assert "--allow-missing" in text
    allowed = ("--allow-missing", CELLS[3], "--allow-missing", CELLS[4])
    assert run(every, fewer, *allowed[:2])[0] == 5
    code, text = run(every, fewer, *allowed)
    assert code == 0
    assert "2 missing" in text
    assert run(every, fewer, "--allow-missing", "read/*")[0] == 0
    assert run(every, fewer, *allowed, "--strict")[0] == 5
    code, text = run(every, fewer, "--allow-missing", CELLS[3] + "x")
    assert code == 2
    assert f"Did you mean '{CELLS[3]}'" in text


def test_new_cells_are_told_and_fail_only_a_strict_check(tmp_path: Path) -> None:
    every = write_sessions(tmp_path / "a", seed=1, noise=0.001)
    fewer = write_sessions(tmp_path / "b", seed=2, noise=0.001, cells=CELLS[:3])
    code, text = run(fewer, every)
    assert code == 0
    assert "2 new" in text
    assert run(fewer, every, "--strict")[0] == 3


def test_a_renamed_cell_is_missing_and_says_what_became_of_it(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", cells=CELLS[:1])
    second = write_sessions(
        tmp_path / "b", cells=CELLS[:1], slower={CELLS[0]: 3}, change=lambda extra: extra.update(cell_id="x")
    )
    code, text = run(first, second)
    assert code == 5
    assert "its benchmark is called x now" in text


def test_a_shrunk_cell_of_a_run_is_missing_and_says_what_was_changed(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6, "hdf5": 2e-6}, cell={"limit": 2000})
    second = run_of(tmp_path / "b", {"lmdb": 1e-6, "hdf5": 2e-6}, cell={"limit": 50})
    code, text = run(first, second)
    assert code == 5
    assert "the contender has it with limit 2000 -> 50" in text


def test_an_undecided_cell_passes_among_decided_ones_and_not_alone(tmp_path: Path) -> None:
    def noisier(cell: str, seconds: list[float]) -> list[float]:
        wide = 0.8 if len(seconds) % 2 else 1.2
        return [one * wide if cell == CELLS[0] else one for one in seconds]

    def side(name: str, cells: tuple[str, ...]) -> Path:
        """Write sessions in which the first cell takes a fifth more, or a fifth less."""
        folder = write_sessions(tmp_path / name, 0)
        for number in range(4):
            rounds = 8 + number % 2
            planted = session(number, seed=1, noise=0.001, cells=cells, rounds=rounds, shape=noisier)
            (folder / f"session-{number}.json").write_text(json.dumps(planted))
        return folder

    every, alone = side("a", CELLS), side("b", CELLS[:1])
    assert check(every, every)[CELLS[0]].state is CellState.INCONCLUSIVE
    code, text = run(every, every)
    assert (code, "no regression in 5 cells (1 inconclusive)" in text) == (0, True)
    assert run(every, every, "--strict")[0] == 4
    code, text = run(alone, alone)
    assert (code, "inconclusive, 1 of 1 cell" in text) == (4, True)


def test_a_skipped_benchmark_is_missing_and_says_why(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    second = write_sessions(tmp_path / "b", cells=CELLS[1:])
    node = f"benchmarks/suite/test_read.py::test[{CELLS[0]}]"
    for path in second.iterdir():
        raw = json.loads(path.read_text())
        raw["storebench_skipped"] = {node: "this machine has no cold cache"}
        path.write_text(json.dumps(raw))
    code, text = run(first, second)
    assert code == 5
    assert "it was skipped: this machine has no cold cache" in text
    # Skipped in one session of five only: the other four do not stand for it.
    third = write_sessions(tmp_path / "c", seed=2)
    raw = json.loads((third / "session-0.json").read_text())
    raw["storebench_skipped"] = {node: "this machine has no cold cache"}
    raw["benchmarks"] = raw["benchmarks"][1:]
    (third / "session-0.json").write_text(json.dumps(raw))
    code, text = run(first, third)
    assert code == 5
    assert "skipped in one session" in text


def test_sides_without_a_common_cell_never_pass(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", cells=CELLS[:2])
    second = write_sessions(tmp_path / "b", cells=CELLS[2:])
    assert run(first, second)[0] == 5
    assert run(first, second, "--allow-missing", "*")[0] == 3


def test_nothing_measured_is_no_success(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    empty = tmp_path / "empty"
    empty.mkdir()
    half = write_sessions(tmp_path / "half", 1, cells=())
    blank = tmp_path / "blank.json"
    blank.write_text("")
    for nothing in (empty, half, blank, tmp_path / "absent"):
        code, text = run(first, nothing)
        assert code == 5, nothing
        assert "nothing" in text
        assert run(nothing, first)[0] == 3, nothing


def test_a_benchmark_that_raised_fails_the_check(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    second = write_sessions(tmp_path / "b", cells=CELLS[1:])
    for path in second.iterdir():
        raw = json.loads(path.read_text())
        raw["storebench_failed"] = {
            f"benchmarks/suite/test_read.py::test[{CELLS[0]}]": "ZeroDivisionError: oh"
        }
        path.write_text(json.dumps(raw))
    code, text = run(first, second)
    assert code == 5
    assert "ZeroDivisionError: oh" in text


def test_a_cold_cell_that_was_not_cold_fails_the_check(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    change = {"cache": "cold", "cache_verdict": "failed", "cache_reason": "40% of it was resident"}
    second = write_sessions(tmp_path / "b", change=lambda extra: extra.update(change))
    code, text = run(first, second)
    assert code == 5
    assert "40% of it was resident" in text


@pytest.mark.parametrize("verdict", ["unverified", None])
def test_a_cold_cell_that_nobody_verified_fails_the_check(tmp_path: Path, verdict: str | None) -> None:
    first = write_sessions(tmp_path / "a")
    change = {"cache": "cold", "cache_verdict": verdict, "cache_reason": "this kernel cannot be asked"}
    second = write_sessions(tmp_path / "b", change=lambda extra: extra.update(change))
    code, text = run(first, second)
    assert code == 5
    assert "not verified to be cold: this kernel cannot be asked" in text


def test_a_cold_run_that_nobody_verified_fails_the_check(tmp_path: Path) -> None:
    facts = CacheFacts(
        requested=CacheState.COLD,
        method="none",
        resident_frac_before=None,
        resident_frac_after=None,
        verdict=CacheVerdict.UNVERIFIED,
        reason="this kernel cannot be asked",
    )
    cold: dict[str, Any] = {"cell": {"cache": "cold"}}
    first = run_of(tmp_path / "a", {"lmdb": 1e-6}, **cold)
    assert run(first, first)[0] == 0
    second = run_of(tmp_path / "b", {"lmdb": 1e-6}, **cold, cache=facts)
    code, text = run(first, second)
    assert code == 5
    assert "not verified to be cold: this kernel cannot be asked" in text


@pytest.mark.parametrize(("timed", "code"), [(None, 5), (0, 5), (128, 0)])
def test_a_run_whose_samples_nobody_compared_fails_the_check(
    tmp_path: Path, timed: int | None, code: int
) -> None:
    def proven(timed: int | None) -> dict[str, Any]:
        counts = {"expected": 1000, "served": 1000, "unique": 1000, "duplicates": 0, "missing": 0}
        if timed is None:
            return {"code": CodeFacts(digest="d"), "coverage": None}
        coverage = Coverage(**counts, timed_checked=timed)
        return {"code": CodeFacts(digest="d"), "coverage": coverage}

    first = run_of(tmp_path / "a", {"lmdb": 1e-6}, **proven(128))
    second = run_of(tmp_path / "b", {"lmdb": 1e-6}, **proven(timed))
    found, text = run(first, second)
    assert found == code
    assert ("no sample of its timed batches was compared with the dataset" in text) is (code == 5)


def test_a_failed_record_fails_the_check_with_its_reason(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6})
    broken = [failed(record("lmdb", 0, 1e-6), "wrong samples: 3 missing"), record("lmdb", 1, 1e-6)]
    code, text = run(first, write_run(tmp_path / "b", broken))
    assert code == 5
    assert "wrong samples: 3 missing" in text
    assert run(tmp_path / "b", first)[0] == 3
