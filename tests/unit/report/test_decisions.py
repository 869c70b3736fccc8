"""What a page decides: doubts, siblings, rounds that would tell, and what the loop waits."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import CellSummary, summarise
from storebench.report.claims import ClaimKind
from storebench.report.decisions import LEAD_FRAC, READS, DoubtKind, Topic, rounds_to_tell, siblings
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.main_panel import ordered
from storebench.report.texts.choosing import choice_of
from storebench.report.texts.headline import headline
from storebench.report.texts.verdicts import decision_words, doubt_words
from storebench.results import Record, Status
from storebench.settings.words import CacheState
from storebench.stats import Verdict, look_alpha
from storebench.worker.launch import out_of_time
from tests.support.planted import make_record, portion_of, replicates


def facts_of(records: list[Record]) -> Facts:
    return derive(summarise(to_frame((record, Path("run/records.jsonl")) for record in records)))


def cell_of(facts: Facts, backend: str) -> CellSummary:
    return next(cell for cell in facts.cells if cell.backend == backend)


def pair(png_ms: list[float], lmdb_ms: list[float], **changes: Any) -> Facts:
    return facts_of(replicates("png", png_ms, **changes) + replicates("lmdb", lmdb_ms, **changes))


def test_a_decision_is_found_whichever_side_is_asked_for_first() -> None:
    facts = pair([50.0] * 3, [10.0] * 3)
    png, lmdb = cell_of(facts, "png"), cell_of(facts, "lmdb")
    forward, backward = facts.decisions.between(lmdb, png), facts.decisions.between(png, lmdb)
    assert forward is not None
    assert backward is not None
    assert (forward.ratio.mid, backward.ratio.mid) == pytest.approx((3.0, 1 / 3))
    assert (forward.verdict, backward.verdict) == (Verdict.FASTER, Verdict.SLOWER)
    assert (backward.cell, backward.base) == (png, lmdb)
    assert facts.decisions.between(lmdb, png, Topic.WORKERS) is None


@pytest.mark.parametrize(
    ("png", "lmdb", "words"),
    [
        ([50.0] * 3, [10.0] * 3, "faster"),
        ([10.0] * 3, [50.0] * 3, "slower"),
        ([10.0, 10.1, 10.0], [10.1, 10.0, 10.0], "no difference"),
        ([10.0, 30.0, 15.0], [20.0, 12.0, 40.0], "cannot be told"),
    ],
)
def test_a_decision_is_one_of_four_words(png: list[float], lmdb: list[float], words: str) -> None:
    facts = pair(png, lmdb)
    decision = facts.decisions.between(cell_of(facts, "lmdb"), cell_of(facts, "png"))
    assert decision is not None
    assert decision_words(decision) == words


def test_whether_a_loop_is_fed_costs_error_only_where_it_computes() -> None:
    trains, loads = pair([50.0] * 3, [10.0] * 3), pair([50.0] * 3, [10.0] * 3, compute="none")
    lead = look_alpha(1) * LEAD_FRAC
    # The ratio, and whether each of the two is fed.
    assert trains.decisions.lead_alpha == pytest.approx(lead / 3)
    assert loads.decisions.lead_alpha == pytest.approx(lead)
    assert not any(loads.decisions.fed(cell) for cell in loads.cells)
    waits = [loads.decisions.waiting(cell) for cell in loads.cells]
    assert [wait and (wait.lo, wait.hi) for wait in waits] == [(None, None)] * 2


def test_training_of_few_steps_is_doubted_before_anything_else() -> None:
    facts = pair([50.0] * 3, [10.0] * 3, steps=19, cache="warm")
    (decision,) = facts.decisions.found.values()
    assert decision.doubt is not None
    assert decision.doubt.kind is DoubtKind.FEW_STEPS
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert doubt_words(decision.doubt) == "training of 19 steps ranks nothing, 20 are needed"


def test_both_cells_that_were_still_moving_are_named() -> None:
    limit = {"cache": "limited", "memory_bytes": 1 << 27, "compute": "none"}
    records = [
        dataclasses.replace(record, portion=portion_of(record, drift=1.5))
        for name, wait in (("png", 50.0), ("lmdb", 10.0))
        for record in replicates(name, [wait] * 3, **limit)
    ]
    (decision,) = facts_of(records).decisions.found.values()
    assert decision.doubt is not None
    assert decision.doubt.kind is DoubtKind.UNSTEADY
    assert doubt_words(decision.doubt) == "the rates of LMDB and PNG files are not shown to be steady"


def cut_off(name: str, waits: list[float], killed: int) -> list[Record]:
    """Return replicates of which the last ones were killed at their time limit."""
    *kept, failed = replicates(name, [*waits, 0.0])
    late = [
        dataclasses.replace(
            failed,
            replicate=len(waits) + number,
            status=Status.FAILED,
            failure=f"the cell was killed: {out_of_time(5.0)}",
        )
        for number in range(killed)
    ]
    return [*kept, *late]


@pytest.mark.parametrize(("png_ms", "doubted"), [(10.0, True), (90.0, False)])
def test_replicates_out_of_time_prove_their_cell_slower_and_no_more(png_ms: float, doubted: bool) -> None:
    facts = facts_of(cut_off("png", [png_ms] * 3, killed=2) + replicates("lmdb", [50.0] * 5))
    (decision,) = facts.decisions.found.values()
    assert decision.ratio.proven
    assert (decision.doubt is not None) is doubted
    answer = headline(facts).answer
    if doubted:
        assert "2 replicates of PNG files ran out of time; the others are the faster ones" in answer
    else:
        assert "at least" in answer


def test_siblings_differ_in_one_field_only() -> None:
    records = [make_record("lmdb"), make_record("lmdb", workers=2), make_record("png", workers=2)]
    records += [make_record("lmdb", workers=4, cache="cold"), make_record("lmdb", dataset="mnist", size=None)]
    facts = facts_of(records)
    cell = next(cell for cell in facts.cells if cell.backend == "lmdb" and cell.cell.workers == 2)
    found = siblings(cell, facts.panels, "workers")
    assert sorted(one.cell.workers for one in found) == [0, 2]
    assert {(one.backend, one.cell.data.name, one.cell.cache) for one in found} == {
        ("lmdb", "imagenet", "warm")
    }
    assert siblings(cell, facts.panels, "cache") == [cell]


def undecided(spread_ms: float) -> Facts:
    return pair([30.0, 30.0 + spread_ms, 30.0 - spread_ms], [31.0, 30.0, 32.0])


def test_a_larger_spread_takes_more_rounds_to_tell() -> None:
    calm, noisy = undecided(3.0), undecided(9.0)
    needed = [
        rounds_to_tell(facts.decisions, list(facts.decisions.found.values())) for facts in (calm, noisy)
    ]
    assert needed[0] is not None
    assert needed[1] is not None
    assert 1 <= needed[0] < needed[1]
    enough = pair([50.0, 50.1, 50.0], [10.0, 10.1, 10.0])
    assert rounds_to_tell(enough.decisions, list(enough.decisions.found.values())) == 1, "never none"


def test_the_error_of_a_comparison_decides_how_many_rounds_would_tell() -> None:
    values = ([30.0, 33.0, 27.0], [31.0, 30.0, 32.0])
    facts = facts_of(
        [
            record
            for cache in ("warm", "any")
            for name, waits in zip(("png", "lmdb"), values, strict=True)
            for record in replicates(name, waits, cache=cache)
        ]
    )
    decisions = facts.decisions
    pairs = {one.cell.cell.cache: one for one in decisions.found.values() if one.topic is Topic.BACKEND}
    assert pairs[CacheState.WARM].alpha == pytest.approx(decisions.lead_alpha)
    assert pairs[CacheState.ANY].alpha == pytest.approx(decisions.other_alpha)
    strict, loose = (dataclasses.replace(pairs[CacheState.ANY], alpha=alpha) for alpha in (1e-6, 0.02))
    assert (rounds_to_tell(decisions, [strict]) or 0) > (rounds_to_tell(decisions, [loose]) or 0)
    assert rounds_to_tell(decisions, [strict, loose]) == rounds_to_tell(decisions, [strict])


def test_the_next_look_at_a_run_decides_how_many_rounds_would_tell() -> None:
    """The second look spends an eighth of the first's error, the third half of the second's."""
    facts = undecided(9.0)
    decision = next(iter(facts.decisions.found.values()))
    first, second = (dataclasses.replace(facts.decisions, looks=looks) for looks in (1, 2))
    strict, stricter = (dataclasses.replace(decision, alpha=alpha) for alpha in (0.02, 0.005))
    needed = rounds_to_tell(first, [strict])
    assert needed is not None
    assert needed == rounds_to_tell(second, [stricter])
    assert needed > (rounds_to_tell(second, [strict]) or 0)


def test_the_noisiest_comparison_and_the_shortest_decide_the_number() -> None:
    calm, noisy = (next(iter(undecided(spread).decisions.found.values())) for spread in (3.0, 9.0))
    decisions = undecided(9.0).decisions
    alone = rounds_to_tell(decisions, [noisy])
    assert (alone or 0) > (rounds_to_tell(decisions, [calm]) or 0)
    assert rounds_to_tell(decisions, [calm, noisy]) == alone
    longer = dataclasses.replace(noisy, ratio=dataclasses.replace(noisy.ratio, n=noisy.ratio.n + 4))
    assert rounds_to_tell(decisions, [longer]) == (alone or 0) - 4
    assert rounds_to_tell(decisions, [longer, noisy]) == alone


def test_where_no_number_of_rounds_would_tell_none_is_named() -> None:
    facts = pair([20.0, 190.0, 5.0], [170.0, 4.0, 80.0])
    assert rounds_to_tell(facts.decisions, list(facts.decisions.found.values())) is None
    assert rounds_to_tell(facts.decisions, []) is None


@pytest.mark.parametrize(
    ("waits_ms", "fed"),
    [([0.5, 0.51, 0.5], True), ([2.0, 2.01, 2.0], False), ([0.5, 0.5], False), ([0.1, 3.0, 0.2], False)],
)
def test_a_loop_is_fed_where_it_is_proven_to_wait_less_than_a_tenth(waits_ms: list[float], fed: bool) -> None:
    facts = facts_of(replicates("lmdb", waits_ms) + replicates("png", waits_ms))
    assert facts.decisions.fed(cell_of(facts, "lmdb")) is fed


@pytest.mark.parametrize(("drift", "fed"), [(1.1, True), (1.5, False)])
def test_a_loop_whose_rate_was_still_changing_is_not_called_fed(drift: float, fed: bool) -> None:
    limit: dict[str, Any] = {"cache": "limited", "memory_bytes": 1 << 27}
    facts = facts_of(
        [
            dataclasses.replace(record, portion=portion_of(record, drift=drift))
            for name in ("lmdb", "png")
            for record in replicates(name, [0.5, 0.51, 0.5], **limit)
        ]
    )
    assert facts.decisions.fed(cell_of(facts, "lmdb")) is fed


@pytest.mark.parametrize(
    ("times", "limit", "proven"),
    [((3.0, 3.01, 3.0), 2.0, True), ((3.0, 3.01, 3.0), 3.1, False), ((9.0, 9.0), 2.0, False)],
)
def test_a_figure_is_above_a_limit_where_its_whole_interval_is(
    times: tuple[float, ...], limit: float, proven: bool
) -> None:
    records = [
        make_record("lmdb", replicate=n, amplification=one, cache="cold") for n, one in enumerate(times)
    ]
    facts = facts_of(records)
    above = facts.decisions.above(facts.cells[0], "read_amplification", limit)
    assert (above is not None) is proven


def test_a_loop_is_called_fed_only_if_the_page_spent_error_on_it() -> None:
    waits = [0.5, 0.51, 0.5]
    records = [
        record
        for cache in ("cold", "warm")
        for name in ("png", "lmdb")
        for record in replicates(name, waits, cache=cache)
    ]
    facts = facts_of(records)
    fed = {(cell.backend, cell.cell.cache) for cell in facts.cells if facts.decisions.fed(cell)}
    assert fed == {("png", "warm"), ("lmdb", "warm"), ("png", "cold")}
    other = next(cell for cell in facts.cells if (cell.backend, cell.cell.cache) == ("lmdb", "cold"))
    share = facts.decisions.waiting(other)
    assert share is not None
    assert (share.mid, share.lo, share.hi) == (pytest.approx(0.0479, abs=1e-3), None, None)


def test_workers_and_cache_states_are_asked_about_in_the_lead_setting() -> None:
    kinds: list[dict[str, Any]] = [
        {"cache": cache, "workers": workers} for cache in ("cold", "warm") for workers in (0, 2)
    ]
    facts = facts_of(
        [
            record
            for kind in kinds
            for name in ("png", "lmdb")
            for record in replicates(name, [4.0] * 3, **kind)
        ]
    )
    asked = [
        (
            one.topic,
            one.base.backend,
            *((str(side.cell.cache), side.cell.workers) for side in (one.cell, one.base)),
        )
        for one in facts.decisions.found.values()
        if one.topic in (Topic.WORKERS, Topic.CACHE)
    ]
    assert sorted(asked) == [
        (topic, backend, *pair)
        for topic, pair in (
            (Topic.CACHE, (("warm", 0), ("cold", 0))),
            (Topic.WORKERS, (("warm", 2), ("warm", 0))),
        )
        for backend in ("lmdb", "png")
    ]


@pytest.mark.parametrize("looks", [1, 3])
def test_comparisons_and_figures_spend_no_more_than_the_pages_error(looks: int) -> None:
    waits = [4.0, 4.1, 4.2]
    kinds: list[dict[str, Any]] = [
        {"cache": "cold"},
        {"cache": "warm"},
        {"cache": "cold", "workers": 2},
        {"cache": "cold", "compute": "none", "model": "none", "compute_ms": 0.0},
        {"cache": "cold", "dataset": "mnist", "size": None},
    ]
    records = [
        dataclasses.replace(record, run_id=f"run-{look}")
        for look in range(looks)
        for changes in kinds
        for name in ("png", "lmdb", "hdf5")
        for record in replicates(name, waits, **changes)
    ]
    facts = facts_of(records)
    decisions = facts.decisions
    assert decisions.alpha == pytest.approx(look_alpha(looks))
    leads = {panel.first.dataset_key: panel for panel in reversed(facts.ordered)}.values()
    pairs = sum(math.comb(len(panel.stored), 2) for panel in leads)
    curves = sum(len(roofline.curves) + len(roofline.trained) for roofline in facts.rooflines)
    assert curves
    assert all(
        curve.alpha == decisions.rest_alpha for roofline in facts.rooflines for curve in roofline.curves
    )
    spent = (
        pairs * decisions.lead_alpha
        + (len(decisions.found) - pairs) * decisions.other_alpha
        + curves * decisions.rest_alpha
        + sum(decisions.figure_alphas.values())
    )
    assert spent == pytest.approx(decisions.alpha)
    proven = {key for key in decisions.figure_alphas if key[0] == READS}
    assert {key for _, key in proven} == {cell.key for cell in facts.cells if cell.cell.cache == "cold"}


def test_stores_that_beat_each_other_in_a_circle_make_no_choice() -> None:
    # Each pair shares rounds of its own, as where a machine changes while replicates fail.
    circle = {"hdf5": {0: 10.0, 2: 90.0}, "leveldb": {0: 90.0, 1: 10.0}, "lmdb": {1: 90.0, 2: 10.0}}
    records = [
        make_record(name, replicate=4 * block + number, wait_ms=wait)
        for name, waits in circle.items()
        for block, wait in waits.items()
        for number in range(4)
    ]
    noisy = [1.0, 900.0, 5.0, 300.0] * 3
    records += [make_record("png", replicate=number, wait_ms=wait) for number, wait in enumerate(noisy)]
    facts = facts_of(records)
    assert facts.main is not None
    assert sum(one.ratio.proven for one in facts.decisions.found.values()) == 3
    choice = choice_of(facts.main, facts.claims)
    assert choice.cell is None
    assert {claim.kind for claim in choice.advice.claims} == {ClaimKind.UNDECIDED}, (
        "nothing is out of the race"
    )


def test_stores_of_which_two_never_met_in_a_round_are_not_called_equal() -> None:
    rounds = {"png": range(4), "lmdb": range(8), "hdf5": range(4, 8)}
    facts = facts_of(
        [make_record(name, replicate=n, cache="warm") for name, own in rounds.items() for n in own]
    )
    assert facts.main is not None
    known = {
        frozenset((one.subject.backend, one.object.backend)): one.kind
        for one in facts.claims.found
        if one.object is not None and one.kind is ClaimKind.EQUAL
    }
    assert known.keys() == {frozenset(("png", "lmdb")), frozenset(("lmdb", "hdf5"))}
    assert not choice_of(facts.main, facts.claims).indifferent


def test_panels_are_asked_in_an_order_that_no_rate_decides() -> None:
    def backends(**changes: Any) -> list[Record]:
        return [make_record(name, **changes) for name in ("png", "lmdb")]

    limit = {"cache": "limited", "memory_bytes": 1 << 28}
    records = backends(cache="cold") + backends() + backends(readahead_kib=8192, **limit)
    records += backends(**limit) + backends(readahead_kib=128, **limit)
    records += backends(compute="none", model="none")
    records += [*backends(dataset="mnist", size=None), make_record("lmdb", batch_size=64)]
    asked = [panel.first.cell for panel in ordered(facts_of(records).panels)]
    assert [(one.data.name, one.cache, one.readahead_kib, one.compute, one.batch_size) for one in asked] == [
        ("imagenet", "limited", 128, "real", 32),
        ("imagenet", "limited", None, "real", 32),
        ("imagenet", "limited", 8192, "real", 32),
        ("imagenet", "warm", None, "real", 32),
        ("imagenet", "warm", None, "none", 32),
        ("mnist", "warm", None, "real", 32),
        ("imagenet", "cold", None, "real", 32),
        ("imagenet", "warm", None, "real", 64),
    ]
