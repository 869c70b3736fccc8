"""A rate stands for the cache state that it is called by: the cold steps, the steady state, or the whole epoch."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.matrix import MODEL_CROPS
from storebench.report.cells import CellSummary, LoopWork, ceiling_key, summarise, work_of
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.panels import panels
from storebench.report.tables import dataset_tables
from storebench.report.texts.headline import headline
from storebench.report.texts.labels import setting_label, state_label
from storebench.report.texts.notes import cache_notes
from storebench.report.texts.verdicts import doubt_words
from storebench.results import PortionKind, Record
from storebench.training.models import MODELS
from tests.support.planted import cold_start, make_record, portion_of, replicates


def cells_of(records: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def facts_of(records: list[Record]) -> Facts:
    return derive(cells_of(records))


def cell_of(*records: Record) -> CellSummary:
    (cell,) = cells_of(list(records))
    return cell


def test_a_cold_rate_is_that_of_the_cold_steps() -> None:
    # 100 steps of 14 ms, of which the first 5 were cold and took 80 ms each.
    cell = cell_of(cold_start(make_record("lmdb"), steps=5, step_ms=80.0))
    assert cell.median("samples_per_s") == pytest.approx(32 / 0.080)
    assert cell.median("whole_samples_per_s") == pytest.approx(32 / 0.014)
    assert cell.per_step("timed_s") == pytest.approx(0.080)
    assert cell.per_sample("data_wait_s") == pytest.approx(0.070 / 32)
    assert cell.per_sample("whole_data_wait_s") == pytest.approx(0.004 / 32)
    assert cell.median("data_wait_frac") == pytest.approx(70 / 80)
    assert cell.per_sample("overhead_s") == pytest.approx(0, abs=1e-9)
    assert setting_label(cell).endswith(", cold")


def test_a_ranking_is_that_of_the_cold_part() -> None:
    # Over the whole epoch LMDB is four times as fast as PNG files; where it is cold it takes twice the time.
    png = [cold_start(r, steps=5, step_ms=40.0) for r in replicates("png", [46.0] * 3, compute="none")]
    lmdb = [cold_start(r, steps=5, step_ms=80.0) for r in replicates("lmdb", [4.0] * 3, compute="none")]
    slow, fast = sorted(cells_of(png + lmdb), key=lambda cell: cell.backend)
    facts = derive([slow, fast])
    decision = facts.decisions.between(fast, slow)
    assert decision is not None
    assert decision.ratio.mid == pytest.approx(2.0)
    assert "PNG files load 2.0 times" in headline(facts).answer


def test_a_cold_cell_without_a_portion_has_no_rate_and_no_verdict() -> None:
    old = [
        make_record(b, replicate=n, wait_ms=w, portion=None)
        for b, w in (("png", 99), ("lmdb", 4))
        for n in (0, 1)
    ]
    cells = cells_of(old)
    assert [cell.median("samples_per_s") for cell in cells] == [None, None]
    assert cells[1].median("whole_samples_per_s") == pytest.approx(32 / 0.014)
    assert state_label(cells[0]) == "cold start, whole epoch"
    facts = derive(cells)
    assert facts.verdicts == {}
    (panel,) = facts.panels
    assert panel.measured == ()
    assert "times" not in headline(derive(cells)).answer


def test_arrays_in_memory_are_not_ranked_among_stores_without_a_cold_rate() -> None:
    old = [make_record(b, portion=None) for b in ("png", "memory:python", "memory:native")]
    warm = [r for b, ms in (("png", 50.0), ("lmdb", 5.0)) for r in replicates(b, [ms, ms], cache="warm")]
    assert "warm, ImageNet" in headline(facts_of(old + warm)).answer


def test_what_reads_nothing_during_the_epoch_keeps_its_whole_rate() -> None:
    for backend in ("memory:native", "null"):
        cell = cell_of(make_record(backend))
        assert cell.median("samples_per_s") == pytest.approx(32 / 0.014)
        assert not cell.whole_only


def test_a_limited_rate_is_the_steady_part_of_the_last_epoch() -> None:
    limit: dict[str, Any] = {"cache": "limited", "memory_bytes": 400 * 2**20}
    filling = make_record("lmdb", epoch=0, wait_ms=2.0, **limit)
    last = make_record("lmdb", epoch=1, wait_ms=10.0, portion=None, **limit)
    steady = portion_of(last, share=0.6, slower=4.0, first_step=40)
    assert steady.kind is PortionKind.STEADY
    cell = cell_of(filling, dataclasses.replace(last, portion=steady))
    assert cell.median("samples_per_s") == pytest.approx(32 / 0.050)
    assert cell.median("whole_samples_per_s") == pytest.approx((32 / 0.012 + 32 / 0.020) / 2)
    assert "limited to 400 MiB" in setting_label(cell)


def test_a_limited_cell_whose_last_epoch_was_not_steady_has_no_rate() -> None:
    limit: dict[str, Any] = {"cache": "limited", "memory_bytes": 400 * 2**20}
    cell = cell_of(make_record("lmdb", epoch=0, **limit), make_record("lmdb", epoch=1, portion=None, **limit))
    assert cell.median("samples_per_s") is None
    assert state_label(cell) == "limited to 400 MiB, not shown to be steady"


def limited(backend: str, wait_ms: float, drifts: tuple[float | None, ...]) -> list[Record]:
    """Plant a limited cell, the steady part of each replicate with its drift."""
    made = []
    for n, drift in enumerate(drifts):
        limit: dict[str, Any] = {"cache": "limited", "memory_bytes": 128 * 2**20, "compute": "none"}
        record = make_record(backend, replicate=n, wait_ms=wait_ms, portion=None, **limit)
        made.append(dataclasses.replace(record, portion=portion_of(record, drift=drift)))
    return made


@pytest.mark.parametrize("backend", ["png", "lmdb"])
@pytest.mark.parametrize(
    ("seen", "is_steady"),
    [
        ((1.0, 1.2, 1.24), True),
        ((1.0, 0.81, 0.5), True),  # one disturbed replicate
        ((1.0, 1.3, 1.3), False),
        ((0.5, 1.0, 1.5), False),  # up and down
        ((0.79, 1.0, 0.7), False),
        ((1.0, 1.0, None), False),
    ],
)
def test_a_limited_rate_that_moves_in_most_replicates_ranks_nothing(
    backend: str, seen: tuple[float | None, ...], is_steady: bool
) -> None:
    drifts = {name: seen if name == backend else (1.0, 1.0, 1.0) for name in ("png", "lmdb")}
    cells = cells_of(limited("png", 60.0, drifts["png"]) + limited("lmdb", 20.0, drifts["lmdb"]))
    name = {"png": "PNG files", "lmdb": "LMDB"}[backend]
    slow, fast = (next(c for c in cells if c.backend == one) for one in ("png", "lmdb"))
    facts = derive(cells)
    decision = facts.decisions.between(fast, slow)
    assert decision is not None
    assert (decision.faster, decision.inverted().slower) == (is_steady, is_steady)
    assert doubt_words(decision.doubt) == (
        "" if is_steady else f"the rate of {name} is not shown to be steady"
    )
    (table,) = dataset_tables(facts)
    said = f"Rates not shown to be steady, which rank nothing: {name}."
    assert (said in table.caption) is not is_steady
    verdicts = {row[0].split(" (")[0]: row[table.head.index("verdict")] for row in table.rows}
    assert verdicts["LMDB"] == ("faster" if is_steady else "cannot be told")
    assert ("cannot be ranked" in headline(facts).answer) is not is_steady


def test_what_drifts_while_it_is_cold_is_no_steady_state_and_needs_none() -> None:
    cold = make_record("lmdb")
    assert not cell_of(dataclasses.replace(cold, portion=portion_of(cold, drift=2.0))).unsteady


@pytest.mark.parametrize("bound", [True, False])
def test_a_cold_rate_that_is_at_most_too_high_says_so(bound: bool) -> None:
    records = [
        cold_start(make_record("lmdb", replicate=n), steps=1, step_ms=80.0, upper_bound=bound and n == 1)
        for n in range(2)
    ]
    assert cell_of(*records).upper_bound is bound


def test_the_compute_ceiling_is_shared_by_every_state_of_the_store() -> None:
    states = (
        {"cache": "any"},
        {"cache": "cold"},
        {"cache": "limited", "memory_bytes": 1},
        {"readahead_kib": 128},
    )
    keys = {ceiling_key(cell_of(make_record("lmdb", **state))) for state in states}
    assert len(keys) == 1


def test_the_read_ahead_stands_in_the_setting() -> None:
    assert "read-ahead 128 KiB" in setting_label(cell_of(make_record("lmdb", readahead_kib=128)))


def test_the_networks_that_augment_are_those_of_the_models() -> None:
    assert {
        name: spec.augment.crop for name, spec in MODELS.items() if not spec.augment.identity
    } == MODEL_CROPS


@pytest.mark.parametrize(
    ("model", "compute", "words", "work"),
    [
        ("caffenet", "none", "loader only, with CaffeNet's crop and mirror", LoopWork.AUGMENTING),
        ("none", "none", "reader and decoder alone", LoopWork.READING),
        ("lenet", "none", "reader and decoder alone", LoopWork.READING),
        ("caffenet", "real", "CaffeNet", LoopWork.TRAINING),
        ("none", "emulated:5", "EMULATED", LoopWork.EMULATED),
    ],
)
def test_a_panel_says_what_its_loop_does(model: str, compute: str, words: str, work: LoopWork) -> None:
    (panel,) = panels([cell_of(make_record("lmdb", model=model, compute=compute))])
    assert words in setting_label(panel.first)
    assert panel.work is work
    assert panel.alone is (work is LoopWork.READING)


def test_loaders_that_augment_are_never_mixed_with_readers_alone() -> None:
    """Of four backends, each panel, table and square has those of one kind; containers are compared without prep."""
    ways = {"png": 9.0, "files+raw": 4.0, "lmdb+png": 8.0, "lmdb": 2.0}
    records = [
        record
        for model in ("caffenet", "none")
        for backend, wait_ms in ways.items()
        for record in replicates(backend, [wait_ms] * 3, model=model, compute="none", cache="warm")
    ]
    facts = facts_of(records)
    assert sorted(panel.work for panel in facts.panels) == [LoopWork.AUGMENTING, LoopWork.READING]
    assert all(len({work_of(cell.cell) for cell in panel.listed}) == 1 for panel in facts.panels)
    assert [panel.work for panel in facts.ordered] == [LoopWork.READING, LoopWork.AUGMENTING]
    captions = [table.caption for table in dataset_tables(facts)]
    assert sum("loader only, with CaffeNet's crop and mirror" in text for text in captions) == 1
    assert sum("reader and decoder alone" in text for text in captions) == 1
    assert {work_of(square.slow.cell) for square in facts.squares} == {LoopWork.READING}
    assert len(facts_of([record for record in records if record.cell.model == "caffenet"]).squares) == len(
        facts.squares
    )


@pytest.mark.parametrize(("paused_frac", "said"), [(0.019, False), (0.05, True)])
def test_long_pauses_for_the_proof_are_named_beside_the_rates(paused_frac: float, said: bool) -> None:
    record = make_record("lmdb", cache="warm")
    assert record.coverage is not None
    paused = dataclasses.replace(record.coverage, proof_s=paused_frac * record.timed_s)
    notes = cache_notes([cell_of(dataclasses.replace(record, coverage=paused))])
    assert any("pauses for the proof took up to 5.0%" in note for note in notes) is said
