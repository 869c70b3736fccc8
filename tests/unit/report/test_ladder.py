"""LMDBIO's ladder: gains that were planted come out, loading counts where it must, and what is no ladder is none."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.formats.lmdb.direct import RUNGS
from storebench.report.catalog import plots
from storebench.report.cells import CellSummary, summarise
from storebench.report.decisions import OTHER_RATIOS_FRAC, Topic
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.ladder import by_state, rates
from storebench.report.plots.ladder import ladder_answer, plot_ladder
from storebench.report.plots.throughput import plot_throughput
from storebench.report.texts.headline import headline
from storebench.report.texts.papers import then_and_now
from storebench.results import Record, Status
from tests.support.planted import make_record, portion_of

# Milliseconds per step: DIO makes it ten times as fast, COAL twice, STAG changes nothing.
WAITS_MS = {
    "plain": 100.0,
    "page": 200.0,
    "map": 100.0,
    "prov": 100.0,
    "dio": 10.0,
    "coal": 5.0,
    "stag": 5.0,
    "lmm": 1.0,
}


TRAINING_MS = {
    "plain": 90.0,
    "page": 190.0,
    "prov": 90.0,
    "dio": 30.0,
    "coal": 10.0,
    "batches": 40.0,
    "together": 2.5,
}
"""Waits of ranks that train for 10 ms per step: one reader per node doubles the rate of plain LMDB."""


def rung_record(key: str, number: int, *, waits: dict[str, float] = WAITS_MS, **changes: Any) -> Record:
    wait_ms = waits[key] * (1 + 0.001 * number * (-1 if key in ("map", "stag") else 1))
    plain: dict[str, Any] = {
        "replicate": number,
        "wait_ms": wait_ms,
        "compute_ms": 0.0,
        "compute": "none",
        "workers": 1,
        "cache": "cold",
    }
    rung = next(rung for rung in RUNGS if rung.key == key)
    options = tuple(sorted(rung.options.items()))
    plain |= {"reader_options": options, "share": rung.share}
    record = make_record(rung.backend.partition("?")[0], **(plain | changes))
    if key != "lmm":
        return record
    # 100 steps of 1 ms, and 0.4 s of loading before them.
    cache = dataclasses.replace(record.cache, applies_to="open")
    return dataclasses.replace(record, cache=cache, open_s=0.4)


def climb(*keys: str, **changes: Any) -> list[Record]:
    return [rung_record(key, number, **changes) for number in range(5) for key in keys]


def train(ranks: int, *keys: str, **changes: Any) -> list[Record]:
    """Return rungs of ranks that train; one rank reads for itself."""
    plain: dict[str, Any] = {"compute": "real", "compute_ms": 10.0, "workers": 0, "ranks": ranks}
    asked = keys or tuple(TRAINING_MS)
    rungs = [key for key in asked if ranks > 1 or key not in ("batches", "together")]
    return climb(*rungs, **({"waits": TRAINING_MS} | plain | changes))


def cells_of(records: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def facts_of(records: list[Record]) -> Facts:
    return derive(cells_of(records))


def test_each_rung_is_held_against_the_one_below() -> None:
    (ladder,) = facts_of(climb(*WAITS_MS)).ladders
    assert [step.rung.key for step in ladder.steps] == list(WAITS_MS)
    gains = {step.rung.key: step.gain for step in ladder.steps}
    assert gains["plain"] is None
    assert gains["page"].ratio.mid == pytest.approx(0.5)
    assert gains["dio"].ratio.mid == pytest.approx(10.0)
    assert gains["coal"].ratio.mid == pytest.approx(2.0)
    assert gains["dio"].faster
    assert gains["coal"].faster
    assert not gains["map"].slower
    assert not gains["stag"].faster
    assert ladder.top_gain.ratio.mid == pytest.approx(20.0)


def test_loading_counts_where_everything_is_loaded_at_the_opening() -> None:
    (ladder,) = facts_of(climb(*WAITS_MS)).ladders
    lmm = ladder.of("lmm")
    # 3,200 samples in 0.1 s of epoch and 0.4 s of loading
    assert rates(lmm.cell)["run-a", 0] == pytest.approx(3200 / 0.5)
    assert lmm.gain.ratio.mid == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("keys", [("plain", "coal"), ("map", "prov", "dio"), ("plain",)])
def test_fewer_rungs_or_none_of_plain_lmdb_are_no_ladder(keys: tuple[str, ...]) -> None:
    assert facts_of(climb(*keys)).ladders == ()


def test_settings_have_ladders_of_their_own() -> None:
    records = climb("plain", "prov", "dio") + climb("plain", "prov", "dio", workers=4)
    assert [ladder.first.cell.workers for ladder in facts_of(records).ladders] == [1, 4]


def test_the_answer_names_what_is_proven_and_what_is_not() -> None:
    facts = facts_of(climb(*WAITS_MS))
    answer = ladder_answer(facts.ladders, facts.claims).text
    assert answer.startswith(
        "Cold, 1 reader process, each compared with the rung below: DIO gains 10.0 times, COAL gains 2.00 times;"
    )
    assert "of PROV, STAG, LMM neither gain nor loss is proven" in answer
    assert "20.0 [" in answer


def test_the_plot_has_a_row_a_rung_and_a_series_a_setting() -> None:
    found = facts_of(climb(*WAITS_MS) + climb("plain", "dio", "coal", workers=8)).ladders
    ax = plot_ladder(found)
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == ["LMDB", "LMDB, readahead=off"]
    _, labels = ax.get_legend_handles_labels()
    assert labels == ["1 reader process", "8 reader processes"]


def test_cold_and_warm_are_plots_of_their_own() -> None:
    facts = facts_of(climb(*WAITS_MS, cache="warm") + climb(*WAITS_MS, cache="cold"))
    assert list(by_state(facts.ladders)) == ["cold", "warm"]
    drawn = {plot.name: plot.question for plot in plots(facts, "x") if plot.name.startswith("ladder")}
    assert list(drawn) == ["ladder-x", "ladder-warm-x"]
    assert drawn["ladder-warm-x"].endswith("gain, warm?")


def test_the_papers_optimisations_stand_beside_the_gains() -> None:
    claims = {claim.claim: claim.now for claim in then_and_now(facts_of(climb(*WAITS_MS)))}
    assert claims["DIO solves: data comes in by page faults"][0].figure.startswith("10.0 [")
    assert claims["DIO solves: data comes in by page faults"][0].figure.endswith(
        "times with 1 reader process"
    )
    stag = claims["STAG solves: all readers hit the storage at one moment"][0].figure
    assert stag.startswith("1.004 [")
    assert "(no detectable difference)" in stag
    assert claims["Explicit, planned reads instead of LMDB's map"][0].figure.startswith("20.0 [")


def test_the_gains_of_several_numbers_of_processes_stand_in_one_line() -> None:
    records = [one for workers in (8, 1) for one in climb(*WAITS_MS, workers=workers)]
    claims = {claim.claim: claim.now for claim in then_and_now(facts_of(records))}
    (one,) = claims["COAL solves: requests are small and late"]
    assert "cold" in one.where
    assert one.figure.index("with 1;") < one.figure.index("with 8 reader processes")


def test_ladders_that_differ_elsewhere_stand_side_by_side() -> None:
    whole, part = climb(*WAITS_MS), climb(*WAITS_MS, max_steps=16)
    records = [*whole, *(one for one in part if one.replicate < 4)]
    claims = {claim.claim: claim.now for claim in then_and_now(facts_of(records))}
    (one,) = claims["COAL solves: requests are small and late"]
    assert one.figure.count("with 1") == 2


def test_cold_comes_before_every_other_state() -> None:
    records = [one for state in ("warm", "any", "cold") for one in climb(*WAITS_MS, cache=state)]
    assert list(by_state(facts_of(records).ladders)) == ["cold", "any", "warm"]


def test_a_cell_whose_process_was_killed_stands_with_its_other_replicates() -> None:
    records = climb(*WAITS_MS)
    nothing: dict[str, Any] = {
        "environment": None,
        "store": None,
        "cache": None,
        "status": Status.FAILED,
        "failure": "killed",
    }
    records[-1] = dataclasses.replace(records[-1], **nothing)
    facts = facts_of(records)
    assert len(facts.cells) == len(WAITS_MS)
    assert len(facts.datasets) == 1


def test_figures_beside_bars_end_within_the_plot() -> None:
    ax = plot_throughput(cells_of(climb(*WAITS_MS, wait_ms=0.0123)))  # large numbers, long names
    figure = ax.get_figure(root=True)
    figure.draw_without_rendering()
    assert ax.texts
    assert max(text.get_window_extent().x1 for text in ax.texts) <= figure.bbox.x1


def test_ranks_that_share_a_reader_are_rungs_above_those_that_do_not() -> None:
    (ladder,) = facts_of(train(4)).ladders
    assert [step.rung.key for step in ladder.steps] == list(TRAINING_MS)
    gains = {step.rung.key: step.gain for step in ladder.steps if step.gain is not None}
    assert gains["batches"].ratio.mid == pytest.approx(2.0, rel=0.01)
    assert gains["together"].ratio.mid == pytest.approx(1.6, rel=0.01)
    assert gains["batches"].faster


def test_the_answer_of_training_is_the_wait_of_lmdb_and_the_best_gain() -> None:
    facts = facts_of([*train(1), *train(2), *train(4)])
    answer = ladder_answer(facts.ladders, facts.claims).text
    assert answer.startswith("Cold, 4 ranks, complete steps: with plain LMDB, the loop waits for data 90.")
    assert "the best rung (LMM of batches over COAL) trains 8.0" in answer
    assert "times as fast as plain LMDB and 16.0" in answer
    assert answer.endswith("times as fast as LMDB without read-ahead.")


def test_a_best_rung_that_is_not_proven_faster_is_not_called_so() -> None:
    training: dict[str, Any] = {"compute": "real", "compute_ms": 10.0, "workers": 0, "ranks": 2}
    records = [
        rung_record(key, number, waits=TRAINING_MS | {"coal": 10.0 if number % 2 else 400.0}, **training)
        for number in range(5)
        for key in ("plain", "page", "coal")
    ]
    facts = facts_of(records)
    answer = ladder_answer(facts.ladders, facts.claims).text
    assert "the best rung (COAL) trains" in answer
    assert answer.endswith("(not proven).")


def test_reading_training_and_emulated_training_are_plots_of_their_own() -> None:
    emulated = [*train(1, compute="emulated:20"), *train(2, compute="emulated:20")]
    facts = facts_of([*climb(*WAITS_MS), *train(1), *train(2), *train(4), *emulated])
    drawn = {plot.name: plot for plot in plots(facts, "x") if plot.name.startswith("ladder")}
    assert next(iter(drawn)) == "ladder-x"
    assert sorted(drawn) == ["ladder-emulated_20-x", "ladder-real-x", "ladder-x"]
    assert drawn["ladder-real-x"].question.endswith("gain in training, cold?")
    assert drawn["ladder-emulated_20-x"].question.endswith("gain in emulated training, cold?")
    real = [ladder for ladder in facts.ladders if ladder.first.cell.compute == "real"]
    _, labels = plot_ladder(real).get_legend_handles_labels()
    assert labels == ["1 rank", "2 ranks", "4 ranks"]


def test_gains_over_whole_steps_stand_beside_those_of_the_papers() -> None:
    facts = facts_of([*train(4), *train(2)])
    claims = {claim.claim: claim.now for claim in then_and_now(facts)}
    (one,) = claims["The best of its optimisations instead of plain LMDB, in complete steps of training"]
    assert one.figure.startswith("8.0")
    assert one.figure.index("with 2;") < one.figure.index("with 4 ranks")
    waits = claims["With LMDB, I/O takes most of the training time"]
    assert [wait.figure for wait in waits] == ["90% of a step is data wait"] * 2
    (one,) = claims[
        "The best of its optimisations instead of LMDB without read-ahead, in complete steps of training"
    ]
    assert one.figure.startswith("16.0")


def test_the_gains_of_a_ladder_share_the_error_of_the_whole_page() -> None:
    def width(*settings: dict[str, Any]) -> float:
        records = [record for changes in settings for record in climb(*WAITS_MS, **changes)]
        ladders = facts_of(records).ladders
        step = next(ladder for ladder in ladders if ladder.first.cell.workers == 1).of("lmm")
        assert step is not None
        assert step.gain is not None
        assert step.gain.ratio.lo is not None
        assert step.gain.ratio.hi is not None
        return step.gain.ratio.hi / step.gain.ratio.lo

    assert width({}, {"workers": 4}, {"workers": 8}) > width({}) > 1


def test_a_page_pays_for_every_gain_of_its_ladders() -> None:
    facts = facts_of([record for workers in (1, 4, 8) for record in climb(*WAITS_MS, workers=workers)])
    made = facts.decisions
    gains = [
        gain
        for ladder in facts.ladders
        for gain in (*(step.gain for step in ladder.steps), ladder.top_gain, *ladder.best_gains.values())
    ]
    own = [gain for gain in gains if gain is not None and made.between(gain.cell, gain.base) is None]
    others = [decision for decision in made.found.values() if decision.alpha == made.other_alpha]
    assert own
    assert (len(own) + len(others)) * made.other_alpha <= OTHER_RATIOS_FRAC * made.alpha * (1 + 1e-9)


def bounded_climb(*bounded: str) -> list[Record]:
    """Return a ladder in which the rates of some rungs are only upper bounds."""
    return [
        dataclasses.replace(one, portion=portion_of(one, upper_bound=key in bounded))
        for number in range(5)
        for key in ("plain", "prov", "dio", "coal")
        for one in [rung_record(key, number)]
    ]


def test_jobs_with_one_reader_per_node_are_told_first() -> None:
    """Plain LMDB waits 90 ms of 100 for itself and 40 of 50 shared; beside the highest rung sharing turns 20 into 12.5."""
    told = headline(facts_of(train(2))).sentences[0]
    assert told.text.startswith(
        "ImageNet, 4,000 images, cold start: one reader per node is proven to be faster than ranks that read for themselves in 2 of 2"
        " jobs; the largest gain is 2.00"
    )
    assert [claim.topic for claim in told.claims] == [Topic.RUNG] * 2
    dear = {**TRAINING_MS, "batches": 190.0, "together": 10.0}
    told = headline(facts_of(train(2, waits=dear))).sentences[0]
    assert (
        "proven to be slower than ranks that read for themselves in 1 of 2 jobs, and faster in none; the largest loss is a factor of 2.00"
        in told.text
    )
    assert told.text.endswith(", with LMDB (2 ranks, overlapped).")
    assert not any("per node" in one.text for one in headline(facts_of(train(1))).sentences)


def test_each_optimisation_stands_beside_the_figure_of_its_own_paper() -> None:
    """The abstracts have one for LMM (HPCC'17), for LMM with DM (ICPADS'17) and for all six together (TOPC'19)."""
    then = {claim.claim.partition(" solves")[0]: claim.then for claim in then_and_now(facts_of(train(2)))}
    then |= {
        claim.claim.partition(" solves")[0]: claim.then
        for claim in then_and_now(facts_of(climb("plain", "map", "dm", waits=WAITS_MS | {"dm": 50.0})))
    }
    assert then["LMM of batches"].startswith("nearly 20 times")
    assert then["DM"].startswith("with LMM, 2 times LMM alone and more than 30 times LMDB")
    assert then["Explicit, planned reads instead of LMDB's map"].startswith(
        "with all six optimisations, 65 times"
    )
    assert {then[name] for name in ("DIO", "COAL", "LMM of batches over COAL")} == {
        "no figure of its own in the abstracts"
    }
