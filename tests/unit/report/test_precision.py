"""How precise a run's ratios are: the intervals of its page, of the ratios that matter."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.drawn_pages import BACKENDS, Truth, drawn_page
from storebench.report.build import content_of
from storebench.report.cells import CellSummary, summarise
from storebench.report.claims import Claim
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.page import markdown
from storebench.report.precision import page_precision, run_precision
from storebench.report.texts.labels import percent
from storebench.report.texts.resting import NARROW_FRAC, precision_lines, precision_words, rested_on, told
from storebench.results import Record
from storebench.rounds import PanelPrecision, RunRounds, StoppingRule
from storebench.stats import ADDED_ROUNDS_FRAC, compare, half_width_frac
from tests.support.planted import make_record, replicates

RATES = dict(zip(BACKENDS, (500.0, 900.0, 1100.0, 1300.0, 2000.0), strict=True))


def page(*, settings: int = 2) -> list[CellSummary]:
    truth = Truth(spread=0.05, rounds=5, samples_per_s=RATES)
    return drawn_page(truth, np.random.default_rng(1), settings=settings)


def names_of(panel: PanelPrecision, cells: list[CellSummary]) -> set[frozenset[str]]:
    by_id = {cell.cell.cell_id: cell.backend for cell in cells}
    return {frozenset(by_id[cell_id] for cell_id in pair.cell_ids) for pair in panel.pairs}


def test_the_main_panel_is_asked_about_its_base_and_its_fastest() -> None:
    cells = page()
    main, other = page_precision(cells)
    to_base = {frozenset(("png", name)) for name in BACKENDS if name != "png"}
    to_fastest = {frozenset(("lmdb:direct", name)) for name in BACKENDS if name != "lmdb:direct"}
    assert names_of(main, cells) == to_base | to_fastest
    assert names_of(other, cells) == to_base
    assert len(main.pairs) == len(names_of(main, cells)), "no pair is asked for twice"


def test_the_widths_are_those_of_the_pages_own_intervals() -> None:
    cells = page()
    by_id = {cell.cell.cell_id: cell for cell in cells}
    decisions = derive(cells).decisions
    for pair in (pair for panel in page_precision(cells) for pair in panel.pairs):
        first, second = (by_id[cell_id] for cell_id in pair.cell_ids)
        decision = decisions.between(first, second)
        assert decision is not None
        assert decision.ratio.lo is not None
        assert decision.ratio.hi is not None
        assert pair.half_width_frac == pytest.approx(half_width_frac(decision.ratio.lo, decision.ratio.hi))


def test_a_run_that_adds_rounds_has_wider_intervals_on_its_page_too() -> None:
    fixed = page()
    rounds = RunRounds(rule=StoppingRule(until=0.1))
    added = [
        dataclasses.replace(cell, rows=tuple({**row, "rounds_rule": rounds} for row in cell.rows))
        for cell in fixed
    ]
    assert derive(added).decisions.lead_alpha == pytest.approx(
        ADDED_ROUNDS_FRAC * derive(fixed).decisions.lead_alpha
    )
    widths = [[pair.half_width_frac for pair in page_precision(cells)[0].pairs] for cells in (fixed, added)]
    assert all((first or 0) < (second or 0) for first, second in zip(*widths, strict=True))


def test_training_of_few_steps_is_worth_no_further_round() -> None:
    records = [
        record
        for name in ("png", "lmdb")
        for record in replicates(name, [10.0, 20.0, 15.0], steps=19, cache="warm")
    ]
    [panel] = run_precision(Path("run"), records)
    assert [pair.decidable for pair in panel.pairs] == [False]


def test_memory_and_single_backends_ask_for_nothing() -> None:
    assert run_precision(Path("run"), []) == []
    assert run_precision(Path("run"), [make_record("lmdb")]) == []
    records = [*replicates("png", [10.0] * 3), *replicates("memory:native", [1.0] * 3)]
    assert run_precision(Path("run"), records) == []


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def pair_of(spread: float) -> Facts:
    """Return the facts of two stores, LMDB twice as fast, whose replicates lie `spread` apart."""
    turns = (1.0, 1.0 + spread, 1.0 - spread, 1.0 + spread / 2, 1.0 - spread / 2)
    return derive(
        cells_of(*replicates("png", [40.0] * 5), *replicates("lmdb", [10.0 * turn for turn in turns]))
    )


@pytest.mark.parametrize(("spread", "narrow"), [(0.12, "1 has"), (0.2, "0 have")])
def test_a_page_says_how_many_of_its_comparisons_are_narrow(spread: float, narrow: str) -> None:
    claims = told(pair_of(spread))
    (compared,) = rested_on(claims)
    assert compared.figure is not None
    assert compared.figure.lo is not None
    assert compared.figure.hi is not None
    width = half_width_frac(compared.figure.lo, compared.figure.hi)
    assert 0.1 < width < 0.25, "near the limit"
    assert (width <= NARROW_FRAC) == (narrow == "1 has")
    words = precision_words(claims)
    assert "rest on 1 comparison. 1 of them is decided" in words
    assert f"{narrow} a simultaneous interval within ±15%, and 1 a single 95% interval within it." in words
    (line,) = precision_lines(claims)
    assert line.endswith(f", ±{percent(width)} (single: ±{percent(single_width(claims))})")


def single_width(claims: list[Claim]) -> float:
    """Return the half-width of the 95% interval of the only comparison of some claims, by itself."""
    (compared,) = rested_on(claims)
    assert compared.object is not None
    top, bottom = (
        list(cell.values("samples_per_s").values()) for cell in (compared.subject, compared.object)
    )
    alone = compare(bottom, top)
    assert alone.low is not None
    assert alone.high is not None
    return half_width_frac(alone.low, alone.high)


@pytest.mark.parametrize(("spread", "single"), [(0.1, 1), (0.2, 1), (0.4, 0)])
def test_single_intervals_are_counted_apart(spread: float, single: int) -> None:
    claims = told(pair_of(spread))
    assert (single_width(claims) <= NARROW_FRAC) == bool(single)
    assert precision_words(claims).endswith(f" and {single} a single 95% interval within it.")


def noisy_records() -> list[Record]:
    """Return three stores of one panel, PNG files far slower than the two others, which cannot be told apart."""
    png, lmdb, hdf5 = [80.0, 81.0, 82.0] * 2, [10.0, 14.0, 12.0] * 2, [12.0, 10.0, 13.0, 14.0, 11.0, 13.0]
    return [*replicates("png", png), *replicates("lmdb", lmdb), *replicates("hdf5", hdf5)]


def test_undecided_comparisons_are_counted_apart() -> None:
    claims = told(derive(cells_of(*noisy_records())))
    decided = [claim.decided for claim in rested_on(claims)]
    assert True in decided
    assert False in decided
    told_words = precision_words(claims)
    assert f"rest on {len(decided)} comparisons. {sum(decided)} of them" in told_words


def test_a_pages_method_counts_the_comparisons_of_first_screen_and_advice() -> None:
    content = content_of([(record, Path("run/records.jsonl")) for record in noisy_records()])
    words = precision_words(told(derive(cells_of(*noisy_records()))))
    assert words
    assert words in markdown(content)


def test_a_page_that_compares_nothing_says_nothing_of_precision() -> None:
    facts = derive(cells_of(*replicates("png", [40.0] * 5)))
    assert precision_words(told(facts)) == ""
    assert list(precision_lines(told(facts))) == []
