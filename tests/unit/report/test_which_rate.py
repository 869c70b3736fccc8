"""Which rate a cell stands for: the steps during which its cache state held, and under which name."""

import dataclasses
import json
from pathlib import Path

import pytest

from storebench.report.cells import WHOLE_COLD, WHOLE_LIMITED, CellSummary, summarise
from storebench.report.decisions import Topic, looks_at
from storebench.report.facts import derive
from storebench.report.frame import to_frame
from storebench.results import PortionKind, Record
from storebench.runner import Run
from storebench.runs.records import append_records, run_looks
from storebench.scenario import make_scenario
from storebench.stats import look_alpha
from tests.support.planted import make_record, portion_of


def summary(*records: Record, run: Path = Path("run")) -> CellSummary:
    (cell,) = summarise(to_frame((record, run / "records.jsonl") for record in records))
    return cell


def test_a_cold_cells_figures_are_those_of_its_cold_steps() -> None:
    record = make_record("lmdb", wait_ms=10, compute_ms=10, fetch_ms=8)
    record = dataclasses.replace(record, portion=portion_of(record, share=0.02, slower=5))
    cell = summary(record)
    assert cell.state == "cold"
    assert cell.median("samples_per_s") == pytest.approx(32 / 0.060)
    assert cell.median("whole_samples_per_s") == pytest.approx(32 / 0.020)
    assert cell.median("data_wait_frac") == pytest.approx(50 / 60)
    assert cell.median("payload_bytes_per_s") == pytest.approx(32 * 196_608 / 0.060)
    assert cell.per_sample("fetch_s") * 32 == pytest.approx(0.048)
    assert cell.per_step("timed_s") == pytest.approx(0.060)


def test_a_cold_cell_of_an_older_release_is_a_cold_start_and_nothing_else() -> None:
    cell = summary(make_record("lmdb", portion=None))
    assert cell.state == WHOLE_COLD
    assert cell.values("samples_per_s") == {}
    assert cell.values("whole_samples_per_s") != {}


def test_a_cell_with_its_data_in_memory_leaves_out_no_cold_steps() -> None:
    assert summary(make_record("memory:native")).state == "cold"


def test_a_limited_cell_is_its_last_epoch_in_the_steady_state() -> None:
    epochs = [
        make_record("lmdb", cache="limited", memory_bytes=1 << 28, epoch=n, wait_ms=w, portion=None)
        for n, w in enumerate((5.0, 20.0, 30.0))
    ]
    assert summary(*epochs).state == WHOLE_LIMITED
    epochs[1:] = [dataclasses.replace(record, portion=portion_of(record)) for record in epochs[1:]]
    cell = summary(*epochs)
    assert cell.portion_kind is PortionKind.STEADY
    assert list(cell.values("samples_per_s").values()) == [pytest.approx(32 / 0.040)]


def test_a_rate_that_is_too_high_in_any_replicate_is_an_upper_bound() -> None:
    first, second = (make_record("lmdb", replicate=n) for n in range(2))
    assert not summary(first, second).upper_bound
    bound = dataclasses.replace(second, portion=portion_of(second, upper_bound=True))
    assert summary(first, bound).upper_bound


def test_a_cold_rate_that_rose_is_an_upper_bound_in_old_records() -> None:
    record = make_record("lmdb")
    honest, rising = (dataclasses.replace(record, portion=portion_of(record, drift=d)) for d in (1.9, 2.6))
    assert not summary(honest).upper_bound
    assert summary(rising).upper_bound


def test_the_looks_at_a_run_are_read_from_its_folder(tmp_path: Path) -> None:
    record = make_record("lmdb")
    assert summary(record, run=tmp_path).fact("looks") == 1
    (tmp_path / "run.json").write_text(json.dumps({"extended_utc": ["2026-01-01", "2026-01-02"]}))
    assert summary(record, run=tmp_path).fact("looks") == 3


def test_rounds_that_are_added_to_records_count_as_another_look(tmp_path: Path) -> None:
    matrix = {"dataset": "mnist", "backends": ["png", "lmdb"], "compute": ["none"]}
    scenario = make_scenario({"name": "looked", "replicates": 3, "matrix": [matrix]})
    run = Run.create(scenario, tmp_path, scenario.cells())
    run = run.extended(4)
    assert run_looks(tmp_path) == 1, "nothing was recorded that anybody could have looked at"
    append_records(tmp_path, [make_record("lmdb")])
    run = run.extended(4)
    assert run_looks(tmp_path) == 1, "no round was added"
    run.extended(6)
    assert run_looks(tmp_path) == 2
    Run.resume(tmp_path).extended(9)
    assert run_looks(tmp_path) == 3


def test_all_looks_together_spend_five_percent() -> None:
    spent = [look_alpha(look) for look in range(1, 30)]
    assert spent == sorted(spent, reverse=True)
    assert 0.049 < sum(spent) <= 0.05
    records = [
        make_record(b, replicate=n, wait_ms=w + n) for b, w in (("png", 60), ("lmdb", 20)) for n in range(4)
    ]
    widths = []
    for looks in (1, 2):
        cells = summarise(
            to_frame((record, Path("run/records.jsonl")) for record in records).assign(looks=looks)
        )
        (decision,) = [one for one in derive(cells).decisions.found.values() if one.topic is Topic.BACKEND]
        assert decision.ratio.lo is not None
        widths.append(decision.ratio.mid / decision.ratio.lo)
    assert widths[1] > widths[0]


def test_two_runs_of_a_cell_are_two_looks() -> None:
    first, second = make_record("lmdb"), make_record("lmdb", run_id="run-b")
    assert looks_at([]) == 1
    assert looks_at([summary(first)]) == 1
    assert looks_at([summary(first, second)]) == 2
