"""Runs that add rounds: which cells run again, how the run ends, and what an interruption leaves to do.

Replicates run in this process, by the code that a fresh process runs; all else is that of a real run.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storebench.cli.bench_watch import StderrWatcher
from storebench.errors import UsageError
from storebench.probes.code import package_folder
from storebench.report.cells import summarise
from storebench.report.frame import to_frame
from storebench.report.precision import run_precision
from storebench.report.shortfall import shortfalls
from storebench.report.texts.method import method
from storebench.report.checks.findings import Rule
from storebench.report.checks.records import validate
from storebench.results import Ceilings, Record, conditions
from storebench.rounds import PairPrecision, PanelPrecision, Why
from storebench.runner import execute
from storebench.runs.folder import Run
from storebench.runs.records import (
    RECORDS_NAME,
    RUN_NAME,
    STEPS_NAME,
    SUPERSEDED_NAME,
    read_records,
    record_from_dict,
    record_to_dict,
)
from storebench.scenario import Scenario, make_scenario
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench

MATRIX = {
    "dataset": "mnist", "synthetic": True, "limit": 16, "batch_size": 8, "model": "none", "compute": "none",
    "threads": 1, "cache": "any", "backends": ["png", "lmdb", "hdf5"],
}  # fmt: skip
Count = Counter[tuple[str, int]]


class Interrupted(KeyboardInterrupt):
    """The interrupt that a test plants."""


class Processes:
    """Runs jobs in this process, and interrupts before the job with a given number."""

    def __init__(self) -> None:
        self.started = 0
        self.interrupt_before: int | None = None

    def answer_of(self, job: CellJob, scratch: Path, log: Path, *_: Any) -> dict[str, Any]:
        if self.started == self.interrupt_before:
            raise Interrupted
        self.started += 1
        log.touch()
        records = [record_to_dict(record) for record in run_replicate(Setup.of(job))]
        return {"records": records, "package": str(package_folder())}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    found = Processes()
    monkeypatch.setattr("storebench.runner.answer_of", found.answer_of)
    monkeypatch.setattr("storebench.worker.ahead.MOST", 1)
    # What physics allows takes a second per replicate, and has tests of its own.
    monkeypatch.setattr("storebench.worker.replicate.measure_ceilings", lambda setup: Ceilings())
    return found


def adding(**keys: Any) -> Scenario:
    rule = {"until": 0.1, "min_replicates": 5, "max_replicates": 7} | keys
    return make_scenario({"name": "added", "test_limit": 0, "matrix": [MATRIX], **rule})


def created(scenario: Scenario, folder: Path) -> Run:
    return Run.create(scenario, folder, scenario.cells())


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def tally(folder: Path) -> Count:
    return Counter((record.cell.backend.name, record.replicate) for record in read_records(folder))


def rounds_of(**backends: int) -> Count:
    return Counter((name, number) for name, count in backends.items() for number in range(count))


def cell_of(line: str) -> str:
    return record_from_dict(json.loads(line), where="").cell.cell_id


def findings(folder: Path) -> list[str]:
    """Validate a run; a busy machine may leave milliseconds of such short epochs unexplained."""
    return [finding.message for finding in validate([folder]) if finding.kind is not Rule.ARITHMETIC]


class Widths:
    """Says that the ratio of PNG files to LMDB is imprecise for some rounds, and that to HDF5 never is."""

    def __init__(self, run: Run, imprecise: int) -> None:
        self.ids = {cell.backend.name: cell.cell_id for cell in run.cells}
        self.imprecise = imprecise

    def __call__(self, folder: Path, records: Sequence[Record]) -> list[PanelPrecision]:
        rounds = len({record.replicate for record in records})
        width = 0.5 if rounds < self.imprecise else 0.05
        pairs = tuple(
            PairPrecision(cell_ids=(self.ids["png"], self.ids[name]), half_width_frac=found)
            for name, found in (("lmdb", width), ("hdf5", 0.01))
        )
        return [PanelPrecision(cell_ids=tuple(self.ids.values()), pairs=pairs)]


def test_only_imprecise_cells_run_again_until_they_are_precise(
    bench: Bench, processes: Processes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = created(adding(max_replicates=9), tmp_path)
    execute(run, bench.stores, assess=Widths(run, imprecise=7), watcher=StderrWatcher())
    assert tally(tmp_path) == rounds_of(png=7, lmdb=7, hdf5=5)
    told = about(tmp_path)
    ids = [Widths(run, 7).ids[name] for name in ("png", "lmdb")]
    assert told["added_rounds"] == [{"replicate": number, "cell_ids": ids} for number in (5, 6)]
    assert [(one["why"], one["widest_frac"]) for one in told["stops"]] == [("precise", 0.05)]
    assert told["stopping"] == {"until": 0.1, "min_replicates": 5, "max_replicates": 9, "budget_s": None}
    assert (tmp_path / STEPS_NAME).is_file()
    assert findings(tmp_path) == []
    lines = (tmp_path / RECORDS_NAME).read_text().splitlines(keepends=True)
    one_less = [line for line in lines if not (ids[0] == cell_of(line) and '"replicate": 5,' in line)]
    (tmp_path / RECORDS_NAME).write_text("".join(one_less))
    gap, lost = findings(tmp_path)
    assert gap == "round 5 is not recorded, although the run was finished"
    assert lost.startswith("steps.parquet holds the steps of records that are not there")
    said = capfd.readouterr().err
    assert "round 6: 2 cells not precise enough yet" in said
    assert "no further round after 7: every ratio that matters is precise enough\n" in said


def test_a_real_run_measures_its_own_precision_and_tells_the_report(
    bench: Bench, processes: Processes, tmp_path: Path
) -> None:
    execute(created(adding(until=0.0001, max_replicates=6), tmp_path), bench.stores, assess=run_precision)
    assert tally(tmp_path) == rounds_of(png=6, lmdb=6, hdf5=6)
    [stop] = about(tmp_path)["stops"]
    assert stop["why"] == Why.MAXIMUM
    assert stop["widest_frac"] > 0.0001
    cells = summarise(to_frame((record, tmp_path / RECORDS_NAME) for record in read_records(tmp_path)))
    told = dict(method(cells))
    assert "at least 5 rounds, at most 6." in told["Rounds"]
    assert "Of 1 panel, 1 did not get there within the largest number of rounds." in told["Rounds"]
    assert "of 18 replicates." in told["Other work"]


@pytest.mark.parametrize(
    "point", [7, 16, *(pytest.param(point, marks=pytest.mark.full) for point in (15, 18))]
)
def test_an_interrupted_run_ends_as_one_that_was_not(
    point: int, bench: Bench, processes: Processes, tmp_path: Path
) -> None:
    run = created(adding(), tmp_path)
    processes.interrupt_before = point
    with pytest.raises(Interrupted):
        execute(run, bench.stores, assess=Widths(run, imprecise=7))
    assert not (tmp_path / STEPS_NAME).is_file()
    processes.interrupt_before = None
    execute(Run.resume(tmp_path), bench.stores, assess=Widths(run, imprecise=7))
    assert processes.started == 5 * 3 + 2 * 2
    assert tally(tmp_path) == rounds_of(png=7, lmdb=7, hdf5=5)
    assert [one["replicate"] for one in about(tmp_path)["added_rounds"]] == [5, 6]
    assert (tmp_path / STEPS_NAME).is_file()
    again = Run.resume(tmp_path)
    assert (again.rounds, again.stopped, again.left()) == (7, True, [])
    assert execute(again, bench.stores, assess=Widths(run, imprecise=9)) == []


def test_the_budget_counts_what_the_replicates_took(
    bench: Bench, processes: Processes, tmp_path: Path
) -> None:
    run = created(adding(budget="0.001 s", max_replicates=9), tmp_path)
    execute(run, bench.stores, assess=Widths(run, imprecise=9))
    assert tally(tmp_path) == rounds_of(png=5, lmdb=5, hdf5=5), "the first rounds run in any case"
    assert [one["why"] for one in about(tmp_path)["stops"]] == [Why.BUDGET]
    took = [record.conditions.wall_s for record in read_records(tmp_path) if record.conditions]
    assert len(took) == 15
    assert min(took) > 0


def sources(run: Path) -> list[tuple[Record, Path]]:
    return [(record, run / RECORDS_NAME) for record in read_records(run)]


def claim_budget(run: Path, budget: str) -> None:
    """Let the description of a run say that its scenario had another budget."""
    told = about(run)
    told["scenario"]["budget"] = budget
    (run / RUN_NAME).write_text(json.dumps(told), encoding="utf-8")


def fixed(budget: str) -> Scenario:
    matrices = [MATRIX | {"backends": ["png"], "replicates": 6}, MATRIX | {"backends": ["lmdb", "hdf5"]}]
    return make_scenario(
        {"name": "fixed", "test_limit": 0, "replicates": 8, "budget": budget, "matrix": matrices}
    )


def test_a_budget_ends_a_fixed_number_of_rounds(bench: Bench, processes: Processes, tmp_path: Path) -> None:
    run = created(fixed("0.001 s"), tmp_path)
    execute(run, bench.stores)
    assert tally(tmp_path) == rounds_of(png=5, lmdb=5, hdf5=5), "the first rounds run in any case"
    assert about(tmp_path)["ended_after"] == 5
    assert (tmp_path / STEPS_NAME).is_file()
    assert findings(tmp_path) == []
    assert shortfalls(sources(tmp_path)) == []
    told = dict(method(summarise(to_frame(sources(tmp_path)))))
    assert told["Time"].endswith("after 5 of 8 rounds.")
    again = Run.resume(tmp_path)
    assert (again.rounds, again.left()) == (5, [])
    # The clock did not end it here.
    claim_budget(tmp_path, "12 min")
    assert any("more fits into 720 s" in message for message in findings(tmp_path))


def test_a_run_that_its_budget_ended_gets_its_other_rounds_by_number(
    bench: Bench, processes: Processes, tmp_path: Path
) -> None:
    execute(created(fixed("0.001 s"), tmp_path), bench.stores)
    execute(Run.resume(tmp_path).extended(8), bench.stores)
    assert tally(tmp_path) == rounds_of(png=6, lmdb=8, hdf5=8)
    assert "ended_after" not in about(tmp_path)
    assert len(about(tmp_path)["extended_utc"]) == 1, "the results were known, so the intervals get wider"
    assert findings(tmp_path) == []


def test_lifting_a_budget_in_the_middle_is_a_look(bench: Bench, processes: Processes, tmp_path: Path) -> None:
    run = created(fixed("0.001 s"), tmp_path)
    processes.interrupt_before = 4 * 3
    with pytest.raises(Interrupted):
        execute(run, bench.stores)
    processes.interrupt_before = None
    execute(Run.resume(tmp_path).extended(8), bench.stores)
    assert tally(tmp_path) == rounds_of(png=6, lmdb=8, hdf5=8)
    assert len(about(tmp_path)["extended_utc"]) == 1
    # As if the budget had been spent, and the rounds gone on all the same.
    claim_budget(tmp_path, "0.001 s")
    assert any("round 7 began after" in message for message in findings(tmp_path))


def test_replicates_that_ran_again_leave_the_end_of_a_run_as_it_was(
    bench: Bench, processes: Processes, tmp_path: Path
) -> None:
    execute(created(fixed("0.001 s"), tmp_path), bench.stores)
    claim_budget(tmp_path, "12 min")  # as if most of the time had been that of failed replicates
    failed = json.loads((tmp_path / RECORDS_NAME).read_text(encoding="utf-8").splitlines()[0]) | {
        "status": "failed"
    }
    (tmp_path / SUPERSEDED_NAME).write_text(json.dumps(failed) + "\n", encoding="utf-8")
    assert findings(tmp_path) == []


def test_an_interrupted_round_is_finished_whatever_its_budget(
    bench: Bench, processes: Processes, tmp_path: Path
) -> None:
    run = created(fixed("0.001 s"), tmp_path)
    processes.interrupt_before = 5 * 3 - 1
    with pytest.raises(Interrupted):
        execute(run, bench.stores)
    processes.interrupt_before = None
    execute(Run.resume(tmp_path), bench.stores)
    assert tally(tmp_path) == rounds_of(png=5, lmdb=5, hdf5=5)


def test_a_budget_that_is_enough_changes_nothing(bench: Bench, processes: Processes, tmp_path: Path) -> None:
    execute(created(fixed("1 h"), tmp_path), bench.stores)
    assert tally(tmp_path) == rounds_of(png=6, lmdb=8, hdf5=8)
    assert "ended_after" not in about(tmp_path)
    assert "Time" not in dict(method(summarise(to_frame(sources(tmp_path)))))


def test_a_run_that_adds_rounds_takes_no_fixed_number(
    bench: Bench, processes: Processes, tmp_path: Path
) -> None:
    run = created(adding(), tmp_path / "run")
    with pytest.raises(UsageError, match="until its ratios are as precise"):
        run.extended(7)
    with pytest.raises(UsageError, match="depends on its results"):
        execute(run, bench.stores)
    fixed = created(adding(repeat_disturbed=True).repeated(2), tmp_path / "fixed")
    assert fixed.scenario.stopping is None
    assert fixed.scenario.repeat_disturbed
    assert len(fixed.left()) == 6


def disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every replicate count as disturbed, on the quietest machine."""
    monkeypatch.setattr(conditions, "OTHERS_MOST_FRAC", -1.0)


@pytest.mark.parametrize("asked", [True, False])
def test_a_disturbed_replicate_is_repeated_once_and_its_first_record_kept(
    asked: bool, bench: Bench, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed(monkeypatch)
    run = created(adding(repeat_disturbed=asked).repeated(1), tmp_path)
    execute(run, bench.stores)
    assert processes.started == (6 if asked else 3)
    assert tally(tmp_path) == rounds_of(png=1, lmdb=1, hdf5=1)
    kept = [record.conditions for record in read_records(tmp_path)]
    assert [one.attempt for one in kept if one] == [2 if asked else 1] * 3
    assert all(one and one.disturbed.startswith("other work took ") for one in kept)
    path = tmp_path / SUPERSEDED_NAME
    first = [json.loads(line) for line in path.read_text().splitlines()] if asked else []
    assert path.is_file() == asked
    assert [one["conditions"]["attempt"] for one in first] == [1] * len(first)
    assert len(first) == (3 if asked else 0)
    cells = summarise(to_frame((record, tmp_path / RECORDS_NAME) for record in read_records(tmp_path)))
    told = dict(method(cells))["Other work"]
    assert told.startswith(
        "Other processes and other machines took more than 20% of the cores during "
        + (
            "6 of 6 replicates. 3 of them were repeated once"
            if asked
            else "3 of 3 replicates. 3 of them count."
        )
    )


def test_interrupted_before_its_second_attempt_a_replicate_still_gets_it(
    bench: Bench, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed(monkeypatch)
    run = created(adding(repeat_disturbed=True).repeated(1), tmp_path)
    processes.interrupt_before = 3
    with pytest.raises(Interrupted):
        execute(run, bench.stores)
    assert len(Run.resume(tmp_path).left()) == 2
    processes.interrupt_before = None
    execute(Run.resume(tmp_path), bench.stores)
    assert processes.started == 6
    kept = [record.conditions for record in read_records(tmp_path)]
    assert [one.attempt for one in kept if one] == [2, 2, 2]


def test_a_retry_after_all_cells_failed_lets_the_rule_decide_again(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = created(adding(until=1e-4), tmp_path / "run")
    answer_of = processes.answer_of

    def fail(*_: Any) -> dict[str, Any]:
        return {"failure": "planted"}

    monkeypatch.setattr("storebench.runner.answer_of", fail)
    execute(run, tmp_path / "stores", assess=run_precision)
    assert about(run.folder)["stops"] == []
    assert set(tally(run.folder).values()) == {1}

    monkeypatch.setattr("storebench.runner.answer_of", answer_of)
    execute(Run.resume(run.folder), tmp_path / "stores", retry_failed=True, assess=run_precision)
    assert tally(run.folder) == rounds_of(png=7, lmdb=7, hdf5=7)
    assert {stop["why"] for stop in about(run.folder)["stops"]} == {Why.MAXIMUM}
