"""Which rate a cell stands for: that of its epochs, or of the steady steps of a limited cell."""

import dataclasses
import json
from pathlib import Path

import pytest

from storebench.report.cells import WHOLE_LIMITED, CellSummary, summarise
from storebench.report.decisions import Topic, looks_at
from storebench.report.facts import derive
from storebench.report.frame import to_frame
from storebench.results import Record
from storebench.runs.folder import Run
from storebench.runs.records import append_records, run_looks
from storebench.scenario import make_scenario
from storebench.stats import look_alpha
from tests.support.planted import cold_start, make_record, portion_of


def summary(*records: Record, run: Path = Path("run")) -> CellSummary:
    (cell,) = summarise(to_frame((record, run / "records.jsonl") for record in records))
    return cell


def test_a_cold_cell_has_the_rates_of_its_epochs_and_by_the_share_read() -> None:
    records = [
        cold_start(
            make_record("lmdb", cache="cold", replicate=number),
            at_2=(rate, 0.1, 0.0),
            at_25=(rate / 2, 1.0, 0.8),
        )
        for number, rate in enumerate((100.0, 300.0, 200.0))
    ]
    cell = summary(*records)
    assert (cell.state, cell.cold_start) == ("cold", True)
    assert cell.values("samples_per_s") == cell.values("whole_samples_per_s")
    assert cell.cold_rate(0.02) == pytest.approx((200.0, 0.1, 0.0))
    assert cell.cold_rate(0.25) == pytest.approx((100.0, 1.0, 0.8))
    assert cell.cold_rate(1.0) is None


@pytest.mark.parametrize(
    ("backend", "cache"), [("memory:native", "cold"), ("null", "cold"), ("lmdb", "warm")]
)
def test_a_cell_that_reads_nothing_cold_is_no_cold_start(backend: str, cache: str) -> None:
    assert not summary(make_record(backend, cache=cache)).cold_start


def test_a_limited_cell_is_its_last_epoch_in_the_steady_state() -> None:
    epochs = [
        make_record("lmdb", cache="limited", memory_bytes=1 << 28, epoch=n, wait_ms=w, portion=None)
        for n, w in enumerate((5.0, 20.0, 30.0))
    ]
    assert summary(*epochs).state == WHOLE_LIMITED
    epochs[1:] = [dataclasses.replace(record, portion=portion_of(record)) for record in epochs[1:]]
    cell = summary(*epochs)
    assert list(cell.values("samples_per_s").values()) == [pytest.approx(32 / 0.040)]


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
