"""A rate stands for the cache state that it is called by: the steady state, or the whole epoch, which ranks nothing if cold."""

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
from storebench.results import Record
from storebench.training.models import MODELS
from tests.support.planted import cold_start, make_record, portion_of, replicates


def cells_of(records: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def facts_of(records: list[Record]) -> Facts:
    return derive(cells_of(records))


def cell_of(*records: Record) -> CellSummary:
    (cell,) = cells_of(list(records))
    return cell


TWO = (("png", 50.0), ("lmdb", 5.0))


def test_a_cold_start_ranks_no_stores_and_has_rates_by_the_share_read() -> None:
    records = [
        cold_start(record, at_2=(300.0, 0.03, 0.01), at_5=(2000.0, 0.9, 0.8))
        for backend, wait_ms in TWO
        for record in replicates(backend, [wait_ms] * 5, cache="cold", compute="none")
    ]
    facts = facts_of(records)
    assert "a cold start ranks no stores" in headline(facts).answer
    ranking, rates = dataset_tables(facts)
    verdicts = [row[ranking.head.index("verdict")] for row in ranking.rows]
    assert verdicts == ["base", "not ranked"]
    assert rates.head == ("backend", "2%", "5%")
    assert [row[1:] for row in rates.rows] == [("300", "2,000 (90% resident)")] * 2


@pytest.mark.parametrize("other", [{"cache": "warm"}, {"cache": "limited", "memory_bytes": 400 * 2**20}])
def test_a_page_is_led_by_a_state_that_ranks_stores(other: dict[str, Any]) -> None:
    states: list[dict[str, Any]] = [{"cache": "cold"}, other]
    records = [
        record
        for state in states
        for backend, wait_ms in TWO
        for record in replicates(backend, [wait_ms] * 5, compute="none", **state)
    ]
    facts = facts_of(records)
    assert facts.main is not None
    assert facts.main.first.cell.cache == other["cache"]
    assert "LMDB loads" in headline(facts).answer


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
