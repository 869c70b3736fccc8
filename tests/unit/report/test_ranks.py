"""Jobs of ranks and LMDBIO's ladder: which cells are compared, and what the figures come to."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.analysis.comparison import Verdict
from storebench.analysis.frame import sourced
from storebench.analysis.ladder import ladders
from storebench.analysis.panels import panels
from storebench.analysis.summary import CellSummary, summarise
from storebench.formats.lmdb.direct import RUNGS
from storebench.record.schema import Record
from storebench.report.ranks import alone_of, corners, sharing_base, step_parts, tournaments
from storebench.report.tables import ladder_table, rank_tables
from tests.support.planted import replicates, with_job
from tests.support.planted_trainers import contest

NONE: dict[str, Any] = {"compute": "none", "model": "none", "compute_ms": 0.0}
STEADY = [1.0, 1.01, 0.99, 1.0, 1.0]


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(sourced((record, Path("run/records.jsonl")) for record in records))


def jobs(backend: str, wait_ms: float, exposed_ms: float | None = 1.0, **changes: Any) -> list[Record]:
    made = replicates(
        backend, [wait_ms * share for share in STEADY], **({"ranks": 2, "model": "lenet"} | changes)
    )
    return [with_job(record, exposed_ms=exposed_ms, slowest_ms=0.5) for record in made]


def test_a_job_is_compared_with_the_process_that_does_its_work() -> None:
    cells = cells_of(
        *replicates("lmdb", [4.0] * 5, model="lenet"),
        *replicates("lmdb", [4.0] * 5, model="lenet", batch_size=16),
        *replicates("png", [4.0] * 5, model="lenet"),
        *jobs("lmdb", 4.0),
        *jobs("lmdb", 4.0, share="node"),
    )
    job = next(cell for cell in cells if cell.cell.ranks == 2 and cell.cell.share == "none")
    shared = next(cell for cell in cells if cell.cell.share == "node")
    alone = alone_of(job, cells)
    assert alone is not None
    assert (alone.backend, alone.cell.batch_size, alone.cell.ranks) == ("lmdb", 32, 1)
    assert sharing_base(shared, cells) is job
    assert alone_of(next(cell for cell in cells if cell.backend == "png"), cells) is not None


def test_the_parts_of_a_step_add_up() -> None:
    (job,) = cells_of(*jobs("lmdb", 4.0, exposed_ms=2.0))
    parts = step_parts(job)
    assert sum(parts.values()) == pytest.approx(0.014)
    assert parts["exposed communication"] == pytest.approx(0.002)
    assert parts["wait for the slowest rank"] == pytest.approx(0.0005)


def test_corners_give_what_loading_and_exchange_cost_together() -> None:
    steps = {("lmdb", "after"): 20.0, ("lmdb", "none"): 15.0, ("null", "after"): 13.0, ("null", "none"): 10.0}
    records = [r for (name, sync), ms in steps.items() for r in jobs(name, ms - 10.0 + 1e-6, sync=sync)]
    step = next(one for one in corners(cells_of(*records)) if one.part == "step")
    figures = (step.loading.mid, step.exchange.mid, step.interaction.mid)
    assert figures == pytest.approx((0.005, 0.003, 0.002), abs=2e-4)
    assert corners(cells_of(*records[:10])) == []


def test_tables_of_jobs_have_a_row_for_each() -> None:
    cells = cells_of(
        *replicates("lmdb", [4.0] * 5, model="lenet"), *jobs("lmdb", 4.0), *jobs("lmdb", 4.0, share="node")
    )
    tables = {table.kind: table for table in rank_tables(cells)}
    assert set(tables) == {"ranks", "ranks-communication"}
    rows = [dict(zip(tables["ranks"].raw_head, row, strict=True)) for row in tables["ranks"].raw]
    assert [row["over_one_process"] for row in rows] == pytest.approx([1.0, 1.0], rel=0.02)
    assert [row["efficiency_frac"] for row in rows] == pytest.approx([0.5, 0.5], rel=0.02)
    assert [row["over_separate"] is None for row in rows] == ["share node" not in row["job"] for row in rows]


def test_tournaments_stand_beside_their_control() -> None:
    found = tournaments(cells_of(*contest([0.02, 0.01], base=0.9)))
    assert [round(one.accuracy - (one.control or 0.0), 3) for one in found] == [0.02, 0.01]
    assert all(one.games > 0 for one in found)


def rungs(**rates_ms: float) -> list[Record]:
    named = {rung.key: rung for rung in RUNGS}
    return [
        record
        for key, ms in rates_ms.items()
        for record in replicates(
            named[key].backend.partition("?")[0],
            [ms * share for share in STEADY],
            reader_options=tuple(sorted(named[key].options.items())),
            reader=named[key].reader,
            **NONE,
        )
    ]


def test_each_rung_gains_over_the_one_below() -> None:
    (ladder,) = ladders(panels(cells_of(*rungs(plain=40.0, page=20.0, prov=10.0, dio=5.0, coal=1.0))))
    gains = {step.rung.key: step.gain for step in ladder}
    assert gains["plain"] is None
    assert gains["page"] is not None
    assert gains["page"].mid == pytest.approx(2.0)
    assert gains["coal"] is not None
    assert (gains["coal"].mid, gains["coal"].verdict) == (pytest.approx(5.0), Verdict.FASTER)
    over = {step.rung.key: step.over_plain for step in ladder}
    assert over["coal"] is not None
    assert over["coal"].mid == pytest.approx(40.0)
    assert len(ladder_table(ladder).rows) == 5


def test_two_rungs_are_no_ladder() -> None:
    assert ladders(panels(cells_of(*rungs(plain=40.0, page=20.0)))) == []


def test_a_rung_that_loads_everything_counts_its_loading() -> None:
    records = [
        dataclasses.replace(
            record, open_s=record.timed_s, cache=dataclasses.replace(record.cache, applies_to="open")
        )
        if record.cell.backend.reader == "shared" and record.cache
        else record
        for record in rungs(plain=40.0, coal=2.0, lmm=1.0, page=20.0)
    ]
    (ladder,) = ladders(panels(cells_of(*records)))
    lmm = next(step for step in ladder if step.rung.key == "lmm")
    assert lmm.gain is not None
    assert lmm.gain.mid == pytest.approx(1.0)
