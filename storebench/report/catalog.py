"""Which plots a dataset's results can make, each with its question and its answer in words."""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.analysis import load_steps
from storebench.report.cells import CellSummary, Panel, panels
from storebench.report.decisions import Decisions, decide
from storebench.report.factors import BreakEven, break_even, paying_panel
from storebench.report.frame import CELL_COLUMNS
from storebench.report.ladder import by_state, ladders
from storebench.report.main_panel import main_panel
from storebench.report.plots.costs import codec_answer, plot_break_even, plot_container_codec
from storebench.report.plots.curves import (
    COLD_QUESTION,
    STEADY_QUESTION,
    cold_answer,
    plot_cold_curve,
    plot_steady_state,
    reading,
    steady_answer,
)
from storebench.report.plots.ladder import QUESTION, ladder_answer, plot_ladder
from storebench.report.plots.steps import plot_loss, plot_wait_distribution, plot_wait_over_epoch
from storebench.report.plots.steptime import plot_step_time
from storebench.report.plots.style import svg_bytes
from storebench.report.plots.throughput import plot_throughput, plot_workers
from storebench.report.plots.tradeoffs import plot_amplification, plot_size, reads_from_disk
from storebench.report.texts.headline import headline
from storebench.report.texts.labels import (
    backend_label,
    caveats,
    common_setting,
    duration,
    file_name,
    number,
    percent,
    setting_slug,
    varying_fields,
    with_interval,
)

MOST_CELLS = 24
"""Cells drawn in one plot; the tables hold the others."""

MOST_LINES = 10
FEWEST_STEPS = 20
"""Below, a distribution over steps and a course over an epoch say nothing."""

_WORTH_WORKERS = 0.05


Drawn = tuple[str, str, str, Axes]
"""Stem of the files, question, answer and axes of a plot."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot with its words.

    Attributes
    ----------
    name
        Stem of its files.
    question, answer
        The plot's title, and what it shows, in one sentence.
    """

    name: str
    question: str
    answer: str
    ax: Axes

    @functools.cached_property
    def svg(self) -> bytes:
        """The plot as SVG."""
        return svg_bytes(self.ax)


def plots(cells: Sequence[CellSummary], slug: str, decisions: Decisions | None = None) -> list[Plot]:
    """Return every plot that the cells of one dataset can make, the most telling one first."""
    found = panels(cells)
    panel = main_panel(found)
    curves = [*_curves(found, cells)]
    made = decide(cells) if decisions is None else decisions
    drawn = curves if panel is None else [*_of_cells(panel, cells, made), *curves, *_of_steps(panel)]
    return [
        Plot(name=f"{file_name(name)}-{slug}", question=question, answer=answer, ax=ax)
        for name, question, answer, ax in drawn
    ]


def _of_cells(panel: Panel, cells: Sequence[CellSummary], decisions: Decisions) -> Iterator[Drawn]:
    all_main = [*panel.measured, *_null(panel)]
    all_states = [*_alike(panel, cells, "cache"), *_null(panel)]
    main, states = _limited(all_main), _limited(all_states)
    yield (
        "throughput",
        "How many images a second reach the network?",
        _told(headline(panel.cells, decisions).answer, all_main),
        plot_throughput(main),
    )
    question = "Where does a step's time go?"
    yield "step-time", question, _told(_step_answer(panel), all_states), plot_step_time(states)
    if _crossed(panel):
        question = "What does the container cost, and what the codec?"
        yield "container-codec", question, codec_answer(panel.measured), plot_container_codec(panel.measured)
    for state, climbed in by_state(ladders(cells)).items():
        name = "ladder" if state == "cold" else f"ladder-{state}"
        yield name, f"{QUESTION}, {state}?", ladder_answer(climbed), plot_ladder(climbed)
    workers = [cell for cell in _alike(panel, cells, "workers") if not cell.is_null]
    if len({cell.cell.workers for cell in workers}) > 1:
        answer = _told(_workers_answer(workers), workers)
        yield "workers", "Do more workers help?", answer, plot_workers(_limited(workers))
    reading = reads_from_disk(_cold(panel, cells))
    if any(cell.median("device_read_bytes") for cell in reading):
        question = "How much is read to get what was asked for?"
        answer = _told(_read_answer(reading), reading)
        yield "read-amplification", question, answer, plot_amplification(_limited(reading))
    if len({cell.fact("bytes_on_disk") for cell in panel.measured} - {None}) > 1:
        answer = _told(_size_answer(panel.measured), all_main)
        yield "size", "What does speed cost in space?", answer, plot_size(main)
    whole = paying_panel(panels(cells))
    if whole is not None and (paying := break_even(whole, decisions)):
        question = "After how many epochs does converting PNG files pay?"
        yield "break-even", question, _paying_answer(paying), plot_break_even(_limited(whole.measured))


def _curves(found: Sequence[Panel], cells: Sequence[CellSummary]) -> Iterator[Drawn]:
    """Yield a curve for every panel whose cache state holds for a part of the epoch only."""
    varying = varying_fields(cells) - {"cache", "memory_bytes"}
    for panel in found:
        cell = panel.first.cell
        slug = setting_slug(cell, varying)
        shown = [one for one in reading(panel.cells, cell.cache) if _has_steps(one)][:MOST_LINES]
        if not shown:
            continue
        if cell.cache == "cold":
            yield f"cold-curve{slug}", COLD_QUESTION, cold_answer(shown), plot_cold_curve(shown)
        elif cell.cache == "limited":
            name = f"limited-{(cell.memory_bytes or 0) >> 20}-mib{slug}"
            yield name, STEADY_QUESTION, steady_answer(shown), plot_steady_state(shown)


def _of_steps(panel: Panel) -> Iterator[Drawn]:
    shown = [*panel.measured, *_null(panel)][:MOST_LINES]
    rows = [dict(cell.usable[0]) for cell in shown if cell.usable and _has_steps(cell)]
    rows = [row for row in rows if row["timed_steps"] >= FEWEST_STEPS]
    if not rows:
        return
    steps = load_steps(pd.DataFrame(rows))
    note = ". ".join([common_setting(shown), *caveats(shown)])
    yield (
        "wait-over-epoch",
        "Is the wait steady, or are there spikes?",
        _tail_answer(panel),
        plot_wait_over_epoch(steps, note=note),
    )
    question = "How long does a step wait, and how long at worst?"
    yield "wait-distribution", question, _worst_answer(panel), plot_wait_distribution(steps, note=note)
    if steps["loss"].notna().any():
        yield "loss", "Does the format change the training?", _loss_answer(panel), plot_loss(steps, note=note)


def _has_steps(cell: CellSummary) -> bool:
    path = cell.usable[0]["steps_path"]
    return path is not None and Path(path).is_file()


def _crossed(panel: Panel) -> bool:
    """Whether some container was measured with two codecs and some codec in two containers."""
    pairs = {(cell.cell.format, cell.cell.codec) for cell in panel.measured}
    containers, codecs = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    return max(containers.values()) > 1 and max(codecs.values()) > 1


def _limited(cells: Sequence[CellSummary]) -> list[CellSummary]:
    return list(cells)[:MOST_CELLS]


def _told(answer: str, cells: Sequence[CellSummary]) -> str:
    """Return an answer that says so where only a part of the cells is drawn."""
    if len(cells) <= MOST_CELLS:
        return answer
    return f"{answer} Drawn are {MOST_CELLS} of {len(cells)} cells; the table has them all."


def _null(panel: Panel) -> list[CellSummary]:
    return [panel.null] if panel.null is not None and panel.null.usable else []


def _alike(panel: Panel, cells: Sequence[CellSummary], varying: str) -> list[CellSummary]:
    """Return the usable cells that differ from the panel's in their backend and in one field only."""
    free = {"backend", "format", "codec", "reader", "reader_options", varying}
    fixed = [name for name in CELL_COLUMNS if name not in free]
    first = panel.first.cell
    return [
        cell
        for cell in cells
        if cell.usable and not cell.is_null and all(getattr(cell.cell, n) == getattr(first, n) for n in fixed)
    ]


def _cold(panel: Panel, cells: Sequence[CellSummary]) -> list[CellSummary]:
    return [cell for cell in _alike(panel, cells, "cache") if cell.cell.cache == "cold"] or list(
        panel.measured
    )


def _by(cells: Sequence[CellSummary], metric: str) -> list[tuple[float, CellSummary]]:
    found = [(value, cell) for cell in cells if (value := cell.median(metric)) is not None]
    return sorted(found, key=lambda pair: pair[0])


def _step_answer(panel: Panel) -> str:
    ranked = _by(panel.measured, "data_wait_frac")
    if not ranked:
        return ""
    (least, first), (most, last) = ranked[0], ranked[-1]
    if first is last:
        return f"With {backend_label(first.backend)} the loop waits {percent(least)} of its time."
    return (
        f"With {backend_label(last.backend)} the loop waits {percent(most)} of its time,"
        f" with {backend_label(first.backend)} {percent(least)}."
    )


def _workers_answer(cells: Sequence[CellSummary]) -> str:
    alone = [cell for cell in cells if cell.cell.workers == min(c.cell.workers for c in cells)]
    gains = []
    for cell in alone:
        same = [c for c in cells if c.backend == cell.backend]
        base, best = cell.median("samples_per_s"), _by(same, "samples_per_s")[-1]
        gains.append((best[0] / (base or 1.0), backend_label(cell.backend), best[1].cell.workers))
    gain, name, workers = max(gains)
    helped = sum(1 for one in gains if one[0] > 1 + _WORTH_WORKERS)
    if not helped:
        return f"No backend gains more than {percent(_WORTH_WORKERS)} from more workers."
    return f"{helped} of {len(gains)} backends gain more than {percent(_WORTH_WORKERS)}; {name} gains most: {number(gain)} times with {workers} workers."


def _read_answer(cells: Sequence[CellSummary]) -> str:
    ranked = _by(cells, "read_amplification")
    (low, first), (high, last) = ranked[0], ranked[-1]
    return (
        f"The device delivered between {number(low, 2)} times ({backend_label(first.backend)})"
        f" and {number(high, 2)} times ({backend_label(last.backend)}) the bytes that were asked for."
    )


def _size_answer(cells: Sequence[CellSummary]) -> str:
    ranked = sorted(
        (float(cell.fact("bytes_on_disk")), cell.backend) for cell in cells if cell.fact("bytes_on_disk")
    )
    (small, first), (large, last) = ranked[0], ranked[-1]
    return f"{backend_label(last)} takes {number(large / small)} times the space of {backend_label(first)}."


def _paying_answer(found: Sequence[BreakEven]) -> str:
    paid = [(one.epochs, one.cell.backend) for one in found if one.epochs is not None]
    if not paid:
        return "No store is proven to save time over PNG files, so no conversion is shown to pay."
    epochs, backend = min(paid, key=lambda pair: pair[0].mid)
    doubt = ", in one round and without an interval" if epochs.n < 2 else ""
    return f"{backend_label(backend)} has won back the time of its conversion first, after {with_interval(epochs)} epochs{doubt}."


def _tail_answer(panel: Panel) -> str:
    found = []
    for cell in panel.measured:
        middle, worst = cell.median("data_wait_p50_ns"), cell.median("data_wait_max_ns")
        if middle and worst:
            found.append((worst / middle, backend_label(cell.backend)))
    if not found:
        return ""
    (steady, first), (spiky, last) = min(found), max(found)
    return (
        f"The longest wait of an epoch is {number(steady)} times the median one with {first},"
        f" and {number(spiky)} times with {last}."
    )


def _worst_answer(panel: Panel) -> str:
    ranked = _by(panel.measured, "data_wait_p99_ns")
    if not ranked:
        return ""
    (low, first), (high, last) = ranked[0], ranked[-1]
    return (
        f"One step in a hundred waits at least {duration(low / 1e9)} with {backend_label(first.backend)}"
        f" and {duration(high / 1e9)} with {backend_label(last.backend)}."
    )


def _loss_answer(panel: Panel) -> str:
    exact = [c for c in panel.measured if c.fact("store_lossless") is not False and c.fact("loss_digest")]
    digests: dict[int, set[str]] = {}
    for cell in exact:
        for row in cell.usable:
            digests.setdefault(row["epoch"], set()).add(row["loss_digest"])
    if exact and all(len(group) == 1 for group in digests.values()):
        return f"No: the losses of {len(exact)} lossless backends are equal bit by bit at every step."
    if panel.first.cell.device != "cpu":
        return "The curves lie together; on this device equal losses are not expected bit by bit."
    return "Yes, and it should not: the losses differ between lossless backends."
