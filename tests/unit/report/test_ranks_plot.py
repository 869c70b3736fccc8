"""Jobs of ranks beside one process: which cells are compared, and the answers."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from storebench.report.cells import summarise
from storebench.report.claims import ClaimKind
from storebench.report.decisions import Topic
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.panels import Panel
from storebench.report.plots.ranks import QUESTION, drawn, plot_ranks, rank_lines
from storebench.report.plots.selection import Selection
from storebench.report.texts.headline import headline
from storebench.report.texts.rank_answers import rank_panels, ranks_answer
from storebench.results import Record
from tests.support.planted import replicates, with_job

STEP_MS, COMPUTE_MS = 20.0, 10.0
SETTING: dict[str, Any] = {"cache": "warm", "batch_size": 32, "compute_ms": COMPUTE_MS}


def cell(backend: str, times: float = 1.0, count: int = 3, **changes: Any) -> list[Record]:
    """Plant the replicates of a cell that is `times` as fast as a process whose steps take 20 ms."""
    waits = [STEP_MS / times - COMPUTE_MS + 0.01 * number for number in range(count)]
    return replicates(backend, waits, **(SETTING | changes))


def facts_of(*groups: list[Record]) -> Facts:
    records = itertools.chain.from_iterable(groups)
    return derive(summarise(to_frame((record, Path("run/records.jsonl")) for record in records)))


def lead(facts: Facts) -> Panel:
    """Return the first panel of one process that jobs stand beside, or else the first of all."""
    assert facts.main is not None
    return next(iter(rank_panels(facts)), facts.main)


def test_jobs_that_deliver_more_are_counted_with_their_efficiency() -> None:
    facts = facts_of(
        *(cell("lmdb"), cell("lmdb", 1.5, ranks=2), cell("lmdb", 1.8, ranks=4)),
        *(cell("png", 0.5), cell("png", 0.5, ranks=2)),
    )
    told = ranks_answer(facts, lead(facts))
    assert told.text.startswith(
        "1 of 2 backends is proven to deliver more with several ranks on this machine; the largest gain is 1.80"
    )
    assert told.text.endswith(" times with 4 ranks instead of 1 (LMDB), an efficiency of 45.0% [44.8, 45.2].")
    assert [(claim.kind, claim.topic) for claim in told.claims] == [(ClaimKind.FASTER, Topic.RANKS)] * 2
    assert all(claim.fair for claim in told.claims)


def test_jobs_that_deliver_no_more_are_said_not_to() -> None:
    facts = facts_of(cell("lmdb"), cell("lmdb", 0.9, ranks=2))
    assert (
        ranks_answer(facts, lead(facts)).text
        == "No backend is proven to deliver more with several ranks on this machine than with one."
    )


def test_an_answer_on_jobs_of_several_nodes_does_not_say_this_machine() -> None:
    alone = [*cell("png", 0.5), *cell("lmdb")]
    jobs = [
        with_job(record, nodes=2)
        for name, times in (("png", 0.5), ("lmdb", 1.5))
        for record in cell(name, times, ranks=2)
    ]
    facts = facts_of(alone, jobs)
    assert "with several ranks on these 2 nodes;" in ranks_answer(facts, lead(facts)).text
    answer = headline(facts_of(jobs)).answer
    assert answer.startswith("On these 2 nodes, warm, ")
    assert "this machine" not in answer
    assert headline(facts_of(alone)).answer.startswith("On this machine, warm, ")


def test_nothing_is_said_of_jobs_without_one_process_beside_them() -> None:
    facts = facts_of(cell("lmdb", 1.5, ranks=2), cell("png", 0.5, ranks=2))
    assert rank_panels(facts) == []
    assert list(drawn(Selection(facts=facts))) == []


def test_each_way_to_share_the_work_is_a_line_of_its_own() -> None:
    strong = {"global_batch_size": 32, "batch_size": 16}
    facts = facts_of(
        cell("lmdb"),
        cell("lmdb", 1.5, ranks=2),
        cell("lmdb", 1.6, ranks=4),
        cell("lmdb", 1.2, ranks=2, **strong),
        cell("lmdb", 1.3, ranks=2, sync="after"),
        cell(
            "lmdb", 1.1, ranks=2, batch_size=16
        ),  # a job of as much work as another process, which was not run
    )
    lines = {line.label: line for line in rank_lines(facts, lead(facts))}
    assert sorted(lines) == ["LMDB", "LMDB, global batch", "LMDB, gradients after"]
    assert [job.cell.ranks for job in lines["LMDB"].jobs] == [2, 4]
    shares = [share.mid for share in lines["LMDB"].efficiencies if share]
    assert shares == pytest.approx([0.75, 0.40], rel=1e-3)


def test_the_plot_shows_rates_above_and_efficiency_below() -> None:
    facts = facts_of(cell("lmdb"), cell("lmdb", 1.5, ranks=2), cell("lmdb", 1.6, ranks=4))
    ax = plot_ranks(facts.cells)
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    above, below = figure.axes
    assert above.get_ylabel() == "throughput (samples/s)"
    assert (below.get_ylabel(), below.get_xlabel()) == ("efficiency (%)", "ranks")
    assert [tick.get_text() for tick in below.get_xticklabels()] == ["1", "2", "4"]
    assert below.get_ylim()[1] > 100
    assert QUESTION in [legend.get_title().get_text() for legend in figure.legends]


def test_each_setting_with_jobs_has_a_plot_and_decisions_of_its_own() -> None:
    cold = SETTING | {"cache": "cold"}
    facts = facts_of(
        *(cell("lmdb"), cell("lmdb", 1.5, ranks=2)),
        *(cell("lmdb", 0.5, **cold), cell("lmdb", 0.45, ranks=2, **cold)),
    )
    plots = list(drawn(Selection(facts=facts)))
    assert [plot.name for plot in plots] == ["ranks", "ranks-2-cold"]
    assert plots[1].answer.startswith("No backend is proven to deliver more")
    assert plots[0].answer.startswith("1 of 1 backend is proven to deliver more")
    assert plots[1].question == "What do more ranks deliver, cold start, CaffeNet?"
    for plot in plots:
        assert all(claim.fair for claim in plot.claims)


def test_the_ideal_is_a_multiple_of_one_process() -> None:
    facts = facts_of(cell("lmdb"), cell("lmdb", 1.5, ranks=2), cell("lmdb", 1.6, ranks=4))
    ax = plot_ranks(facts.cells)
    alone = facts.cells[0].median("samples_per_s")
    dotted = [line for line in ax.lines if line.get_linestyle() == ":" and np.size(line.get_xdata())]
    [ideal] = dotted
    assert alone is not None
    assert np.asarray(ideal.get_ydata()).tolist() == pytest.approx([alone, 2 * alone, 4 * alone])


def test_without_jobs_the_rates_of_one_process_are_drawn() -> None:
    ax = plot_ranks(facts_of(cell("lmdb"), cell("png", 0.5)).cells)
    assert ax.get_xlabel() == "ranks"
    assert ax.has_data()
