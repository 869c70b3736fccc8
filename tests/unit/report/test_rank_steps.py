"""What a report says of the steps of jobs: their parts, exposed communication with an ideal ring, and interactions."""

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from storebench.report.build import page_content, write_report
from storebench.report.cells import CellSummary, summarise
from storebench.report.claims import ClaimKind
from storebench.report.decisions import Topic
from storebench.report.facts import Facts, derive, derive_page
from storebench.report.frame import to_frame
from storebench.report.interference import interferences
from storebench.report.page import html, markdown
from storebench.report.plots import overlap, rank_steps
from storebench.report.plots.rank_steps import plot_rank_steps
from storebench.report.plots.selection import Selection
from storebench.report.rank_tables import rank_tables
from storebench.report.tables import to_csv
from storebench.report.texts.headline import QUESTION, headline
from storebench.report.texts.rank_answers import rank_steps_answer, step_parts
from storebench.report.texts.ranks import interference_lines
from storebench.results import Record
from tests.support.planted import make_record, with_job, write_run

JOB: dict[str, Any] = {"cache": "warm", "batch_size": 32, "ranks": 2}
ROUNDS = 5


def job(
    backend: str = "lmdb",
    *,
    wait_ms: float = 4.0,
    compute_ms: float = 10.0,
    exposed_ms: float | None = 3.0,
    slowest_ms: float = 1.0,
    noise_ms: float = 0.01,
    rounds: int = ROUNDS,
    **changes: Any,
) -> list[Record]:
    """Plant the replicates of a job, whose waits and exposed communication differ a little from round to round."""
    made = []
    for number in range(rounds):
        shift = noise_ms * (number - rounds // 2)
        record = make_record(
            backend, replicate=number, wait_ms=wait_ms + shift, compute_ms=compute_ms, **(JOB | changes)
        )
        exposed = None if exposed_ms is None else exposed_ms + shift
        made.append(with_job(record, exposed_ms=exposed, slowest_ms=slowest_ms))
    return made


def cells_of(*groups: list[Record]) -> list[CellSummary]:
    records = itertools.chain.from_iterable(groups)
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def facts_of(*groups: list[Record]) -> Facts:
    return derive(cells_of(*groups))


def test_the_parts_of_a_step_add_up_to_it() -> None:
    [cell] = cells_of(job(wait_ms=4, compute_ms=10, exposed_ms=3, slowest_ms=1))
    parts = {name: 1000 * seconds for name, seconds in step_parts(cell).items()}
    assert parts == pytest.approx(
        {
            "data wait": 4.0,
            "copy": 0.0,
            "compute": 6.0,
            "exposed communication": 3.0,
            "wait for the slowest rank": 1.0,
        }
    )


def test_communication_below_the_noise_takes_no_part_of_a_step() -> None:
    [cell] = cells_of(job(exposed_ms=-2, slowest_ms=1))
    assert step_parts(cell)["exposed communication"] == 0
    assert sum(step_parts(cell).values()) == pytest.approx(0.014)


def bars(ax: Axes) -> list[list[float]]:
    """Return the lengths of the bars of each row, from left to right."""
    rows: dict[float, list[Rectangle]] = {}
    for patch in ax.patches:
        if isinstance(patch, Rectangle) and patch.get_width() > 0:
            rows.setdefault(round(patch.get_y() + patch.get_height() / 2, 3), []).append(patch)
    return [
        [round(one.get_width(), 6) for one in sorted(row, key=lambda one: one.get_x())]
        for _, row in sorted(rows.items())
    ]


def test_the_bars_of_a_plot_are_the_parts_in_milliseconds() -> None:
    ax = plot_rank_steps(cells_of(job(), job("png", wait_ms=20)))
    assert sorted(map(tuple, bars(ax))) == [(4.0, 6.0, 3.0, 1.0), (20.0, 6.0, 3.0, 1.0)]
    assert ax.get_xlabel() == "time per step (ms)"
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["PNG files, 2 ranks, overlapped", "LMDB, 2 ranks, overlapped"]


def test_the_answer_names_the_job_whose_exchange_costs_most() -> None:
    facts = facts_of(job(), job("png", exposed_ms=5.0), job("hdf5", exposed_ms=0.001, noise_ms=0.1))
    [plot] = rank_steps.drawn(Selection(facts=facts))
    assert plot.answer.startswith(
        "Exchanging gradients is proven to lengthen the steps of 2 of 3 jobs; the largest cost is 5.00 ms ["
    )
    assert plot.answer.endswith(
        "% of a step, with PNG files (2 ranks, overlapped); it is not proven with HDF5 (2 ranks, overlapped)."
    )
    assert {one.kind for one in plot.claims} == {ClaimKind.EXPOSED}
    assert [one.decided for one in plot.claims].count(True) == 2
    assert len(plot.claims) == 3


def test_an_exchange_longer_than_a_step_is_no_share_of_it() -> None:
    facts = facts_of(job(exposed_ms=40.0), job("png"))
    [plot] = rank_steps.drawn(Selection(facts=facts))
    assert "40.0], more than a step of its epochs, with LMDB (2 ranks, overlapped)" in plot.answer
    assert "%" not in plot.answer


def test_jobs_without_a_proven_cost_are_told_apart_with_their_datasets() -> None:
    small: dict[str, Any] = {"exposed_ms": 0.001, "noise_ms": 0.1}
    facts = facts_of(job(), job("png", **small), job("png", dataset="mnist", size=None, **small))
    jobs = [cell for panel in facts.ordered for cell in panel.stored]
    assert rank_steps_answer(jobs, facts.claims).text.endswith(
        "with LMDB (ImageNet, 4,000 images: 2 ranks, overlapped); it is not proven with PNG files (ImageNet, 4,000 images:"
        " 2 ranks, overlapped) and PNG files (MNIST: 2 ranks, overlapped)."
    )


def test_two_rounds_prove_no_exposed_communication() -> None:
    [plot] = rank_steps.drawn(Selection(facts=facts_of(job(rounds=2))))
    assert plot.answer.startswith("Exchanging gradients is not proven to lengthen the steps of any job.")


def test_jobs_that_only_load_have_no_plot_of_their_steps() -> None:
    loading = job(compute="none", model="none", exposed_ms=None)
    assert list(rank_steps.drawn(Selection(facts=facts_of(loading)))) == []


def ways(**costs_ms: float) -> list[list[Record]]:
    """Plant one job per moment of the exchange; `costs_ms` is added to the time in which it computes."""
    return [
        job(
            sync=sync,
            compute_ms=10 + cost_ms,
            exposed_ms=None if sync == "none" else cost_ms,
            noise_ms=0.02,
        )
        for sync, cost_ms in costs_ms.items()
    ]


def test_overlapping_that_gains_is_told_with_its_gain() -> None:
    facts = facts_of(*ways(overlapped=2.0, after=9.0, none=0.0))
    [plot] = overlap.drawn(Selection(facts=facts))
    assert plot.answer.startswith(
        "Overlapping is proven to be faster in 1 of 1 job; the largest gain is 1.44"
    )
    assert plot.answer.endswith(" times (LMDB, 2 ranks, overlapped).")
    assert [(one.topic, one.decided, one.fair) for one in plot.claims] == [(Topic.SYNC, True, True)]


def stores(wait_ms: float, **changes: Any) -> list[list[Record]]:
    """Plant a job whose ranks read for themselves and wait 4 ms per step, and two with a data store and another wait."""
    filled = [
        job(wait_ms=wait_ms, share="store", store_fill=fill, exposed_ms=None, noise_ms=0.02)
        for fill in ("preload", "first-epoch")
    ]
    return [job(exposed_ms=None, noise_ms=0.03, **changes), *filled]


def test_a_data_store_that_gains_is_told_first_with_its_gain() -> None:
    answer = headline(facts_of(*stores(wait_ms=1.0)))
    assert answer.sentences[0].text.startswith(
        "ImageNet, 4,000 images, warm: a data store in the memory of the ranks is proven to be faster than ranks that read for"
        " themselves in 2 of 2 jobs;"
        " the largest gain is 1.27"
    )
    assert answer.sentences[0].text.endswith(" times, with LMDB (2 ranks, overlapped, share store).")
    assert [(one.topic, one.decided, one.fair) for one in answer.sentences[0].claims] == [
        (Topic.STORE, True, True)
    ] * 2


def test_a_data_store_that_loses_or_cannot_be_told_is_not_praised() -> None:
    slower = headline(facts_of(*stores(wait_ms=9.0))).sentences[0].text
    assert slower.startswith(
        "ImageNet, 4,000 images, warm: a data store in the memory of the ranks is proven to be slower than ranks that read for"
        " themselves in 2 of 2 jobs, and faster in none; the largest loss is a factor of 1.36"
    )
    alike = headline(facts_of(*stores(wait_ms=4.0))).sentences[0].text
    assert alike.endswith("read for themselves, or slower.")
    assert not any(
        "in the memory of the ranks" in one.text
        for one in headline(facts_of(*stores(1.0, ranks=4))).sentences
    )


def test_a_page_of_jobs_begins_with_its_jobs() -> None:
    jobs = [*ways(overlapped=2.0, after=9.0), job(ranks=4, compute_ms=12.0, exposed_ms=None)]
    alone = job(ranks=1, exposed_ms=None)
    answer = headline(facts_of(*jobs, alone))
    first, second, third = (one.text for one in answer.sentences[:3])
    assert first == (
        "ImageNet, 4,000 images, warm: no backend is proven to deliver more with several ranks on this machine than with one."
    )
    assert second.startswith("Exchanging gradients is proven to lengthen the steps of 2 of 2 jobs")
    assert third.startswith("Overlapping is proven to be faster in 1 of 1 job")
    assert "nothing to compare it with" not in answer.answer
    slept = [job(ranks=ranks, compute="emulated:20", exposed_ms=None) for ranks in (1, 2, 4)]
    assert "warm (compute EMULATED by a sleep of 20 ms): no" in headline(facts_of(*slept)).sentences[0].text
    other = headline(
        facts_of(alone, job("png", ranks=1, wait_ms=40.0, exposed_ms=None), job(exposed_ms=None))
    )
    assert other.answer.startswith("On this machine, warm, ImageNet, 4,000 images, one process: LMDB feeds")


def test_the_cost_of_the_exchange_alone_does_not_come_before_the_stores() -> None:
    answer = headline(facts_of(job(), job("png", wait_ms=40.0)))
    assert answer.question == QUESTION
    first, *_, last = (one.text for one in answer.sentences)
    assert first.startswith("On this machine, warm, ImageNet, 4,000 images, 2 ranks: LMDB feeds")
    assert last.startswith("Exchanging gradients is proven to lengthen the steps of 2 of 2 jobs")


def test_overlapping_that_loses_is_said_to() -> None:
    [plot] = overlap.drawn(Selection(facts=facts_of(*ways(overlapped=9.0, after=2.0))))
    assert plot.answer == (
        "In the only job, overlapping is not proven to be faster than an exchange after the backward pass; it is proven to be slower."
    )


def test_exposed_communication_is_drawn_beside_its_lower_bound() -> None:
    [plot] = overlap.drawn(Selection(facts=facts_of(*ways(overlapped=2.0, after=9.0, none=0.0))))
    labels = [label.get_text() for label in plot.ax.get_yticklabels()]
    assert labels == ["LMDB, 2 ranks, overlapped", "LMDB, 2 ranks, exchange after"]
    upright = [np.asarray(line.get_xdata(), float) for line in plot.ax.lines if line.get_color() == "black"]
    bounds = {round(float(one[0]), 6) for one in upright if len(set(one)) == 1}
    assert bounds == {8.2}
    assert {text.get_text() for text in plot.ax.texts} == {"0.24 x ideal ring", "1.1 x ideal ring"}


def test_one_moment_of_the_exchange_makes_no_plot_of_overlapping() -> None:
    assert list(overlap.drawn(Selection(facts=facts_of(*ways(overlapped=2.0))))) == []


CORNERS = {
    ("png", "overlapped"): (30.0, 20.0),
    ("png", "none"): (24.0, 11.0),
    ("null", "overlapped"): (0.1, 13.0),
    ("null", "none"): (0.1, 10.0),
}
"""Backend and moment of the exchange -> wait and compute in milliseconds per step."""


def corners(**changes: Any) -> list[list[Record]]:
    return [
        job(
            backend,
            sync=sync,
            wait_ms=wait_ms,
            compute_ms=compute_ms,
            exposed_ms=None if sync == "none" else 3.0,
            noise_ms=0.001,
            **changes,
        )
        for (backend, sync), (wait_ms, compute_ms) in CORNERS.items()
    ]


def test_four_corners_tell_what_loading_and_exchanging_cost_each_other() -> None:
    [one] = interferences(cells_of(*corners()))
    found = {
        effects.part: [
            round(1000 * x.mid, 3) for x in (effects.loading, effects.exchange, effects.interaction)
        ]
        for effects in one.effects
    }
    # Both 50 ms, loading alone 35, exchange alone 13.1, neither 10.1.
    assert found == {
        "step": [24.9, 3.0, 12.0],
        "data wait": [23.9, 0.0, 6.0],
        "compute": [1.0, 3.0, 6.0],
    }
    assert one.step.interaction.n == ROUNDS
    assert (one.step.interaction.lo or 0) > 0.0119
    [line] = interference_lines(facts_of(*corners()))
    assert line.startswith("PNG files, ")
    assert line.endswith("they slow each other down (95% for this job alone).")
    assert " times" not in line


def test_an_interaction_that_may_be_none_is_not_proven() -> None:
    loud = [job(backend, sync=sync, wait_ms=wait_ms + 50, compute_ms=compute_ms, noise_ms=10.0 * turn)
            for turn, ((backend, sync), (wait_ms, compute_ms)) in zip((1, -1, 1, 2), CORNERS.items(), strict=True)]  # fmt: skip
    [line] = interference_lines(facts_of(*loud))
    assert line.endswith("an interaction is not proven.")


@pytest.mark.parametrize("missing", list(CORNERS))
def test_three_corners_tell_nothing(missing: tuple[str, str]) -> None:
    left = [group for key, group in zip(CORNERS, corners(), strict=True) if key != missing]
    assert interferences(cells_of(*left)) == []


def test_the_tables_hold_bytes_link_bound_and_interaction() -> None:
    communication, interaction = rank_tables(facts_of(*corners()))
    rows = list(csv.DictReader(io.StringIO(to_csv([communication]))))
    [row] = [one for one in rows if one["backend"] == "png" and one["sync"] == "overlapped"]
    assert (row["gradient_bytes"], row["link"]) == ("8000000.0", "loopback")
    assert float(row["ring_bound_s"]) == pytest.approx(0.0082)
    assert float(row["exposed_communication_s"]) == pytest.approx(0.003)
    assert float(row["exposed_over_bound"]) == pytest.approx(0.003 / 0.0082)
    assert float(row["wait_for_slowest_s_per_step"]) == pytest.approx(0.001)
    [told] = [
        line
        for line in communication.rows
        if "PNG files" in line and "7.63 MiB" in line and "3.00 ms" in line[3]
    ]
    assert told[5:9] == ("loopback", "954 MiB/s", "100 µs", "8.20 ms")
    assert any("not a network" in note for note in communication.notes)
    parts = [one["part"] for one in csv.DictReader(io.StringIO(to_csv([interaction])))]
    assert parts == ["step", "data wait", "compute"]


def test_trainers_of_one_rank_have_no_cost_of_communication() -> None:
    assert rank_tables(facts_of(job(ranks=4, trainers=4, exposed_ms=None))) == []
    [communication] = rank_tables(facts_of(job(ranks=4, trainers=2)))
    assert len(communication.rows) == 1


def test_the_page_has_the_jobs_section_with_both_tables() -> None:
    content = page_content(derive_page(cells_of(*corners())))
    for page in (html(content), markdown(content)):
        assert "Jobs of 2 ranks were processes of one machine" in page
        assert "What do loading and communication cost in jobs of many ranks?" in page
        assert "the cost of communication in jobs of ranks" in page
        assert "slow each other down" in page


def test_a_report_without_jobs_has_no_such_section() -> None:
    alone = [make_record("lmdb", replicate=number, cache="warm") for number in range(3)]
    assert "jobs of many ranks" not in markdown(page_content(derive_page(cells_of(alone))))


def test_a_report_writes_the_tables_of_jobs_as_files(tmp_path: Path) -> None:
    records = list(itertools.chain.from_iterable(corners()))
    write_report(write_run(tmp_path / "run", records), tmp_path / "out", allow_invalid=True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"ranks-communication-imagenet-4000.csv", "ranks-interference-imagenet-4000.csv"} <= names
    assert {"rank-steps-imagenet-4000.png", "overlap-imagenet-4000.png"} <= names


@pytest.mark.parametrize("draw", [rank_steps.drawn, overlap.drawn])
def test_nothing_of_a_plot_of_jobs_is_cut_off(draw: Any) -> None:
    facts = facts_of(*corners(), *ways(overlapped=2.0, after=9.0, none=0.0))
    for plot in draw(Selection(facts=facts)):
        figure = plot.ax.get_figure(root=True)
        assert isinstance(figure, Figure)
        figure.canvas.draw()
        for text in [*plot.ax.texts, *plot.ax.get_yticklabels(), plot.ax.xaxis.label]:
            box = text.get_window_extent()
            assert box.x0 >= figure.bbox.x0 - 1, text.get_text()
            assert box.x1 <= figure.bbox.x1 + 1, text.get_text()
