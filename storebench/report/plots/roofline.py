"""The storage roofline: the delivered training rate against the ingestion rate of the accelerator."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.text import Annotation

from storebench.accelerators import Accelerator, find_accelerator, landmarks
from storebench.arrays import Floats
from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells
from storebench.report.intervals import Estimate
from storebench.report.plots.arrows import mark_cut
from storebench.report.plots.looks import shaded
from storebench.report.plots.plot import Plot
from storebench.report.plots.quick_figure import lay_out
from storebench.report.plots.selection import MOST_PLOTS, Selection
from storebench.report.plots.style import (
    look,
    new_axes,
    noted,
    plain_numbers,
    spaced_decades,
    styled,
    title,
    whiskers,
)
from storebench.report.roofline import Roofline, rooflines, told_roofline
from storebench.report.roofline_curve import Point, RooflineCurve
from storebench.report.texts.labels import backend_label, dataset_label, number, state_label
from storebench.report.texts.roofline import loader_words, one_roofline_answer, state_words, trained_label
from storebench.settings.words import CacheState
from storebench.stats import MIN_ROUNDS

QUESTION = "How fast an accelerator does each store feed"

_MOST_CURVES = 14
_MOST_MARKS = 6
_LABEL_PT, _MARK_PT = 8.0, 7.5
_NEAR_PT, _FAR_PT = 12.0, 34.0
"""Least and largest distance of the labels beside the axes."""

_SLOPE = 0.9
"""Distance of those labels as a share of the furthest that one of them is moved up or down."""

_LINE = 1.3
"""Distance of two lines of labels, in heights of their letters."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An ingestion rate that a plot marks."""

    label: str
    rate: float


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield one plot for a loop with workers and one without, and one for each further state of the page cache."""
    groups = grouped(selection.facts.rooflines)[:MOST_PLOTS]
    for group in groups:
        lead, name, question = group[0], "roofline", QUESTION
        if group is not groups[0]:
            name = f"{name}-{_short_name(lead)}"
            question = f"{QUESTION}, {state_words(lead)}, {loader_words(lead)}"
        marks = _marks(group, selection.accelerators)
        draw = functools.partial(_draw, group, marks, f"{question}?", None)
        yield Plot(name=name, question=f"{question}?", answer=one_roofline_answer(lead), draw=draw)


def _short_name(roofline: Roofline) -> str:
    """Return a setting as part of a file name: "2-workers-limited-readahead-8192"."""
    cell = roofline.first.cell
    ahead = "" if cell.readahead_kib is None else f"-readahead-{cell.readahead_kib}"
    return f"{cell.workers}-workers-{cell.cache}{ahead}"


def plot_roofline(
    results: pd.DataFrame | Sequence[CellSummary], *, accelerators: Sequence[str] = (), ax: Axes | None = None
) -> Axes:
    """Draw the delivered training rate against the ingestion rate of the accelerator, one curve per backend.

    Parameters
    ----------
    results
        Cells with ``compute = "none"``, whose rates give the curves, and cells of the same settings that train on a GPU or
        with emulated compute, which are the points. The first setting by the order of the report is drawn, and the warm one
        with it.
    accelerators
        Names of profiles to mark, ``NAME[:MODEL]``; `storebench accelerators` lists them. Others as ``NAME=RATE`` in images/s.
    """
    cells = [cell for cell in as_cells(results) if cell.usable]
    named = [find_accelerator(name) for name in accelerators]
    groups = grouped(rooflines(cells))
    group = groups[0] if groups else []
    return _draw(group, _marks(group, named), f"{QUESTION}?", ax)


def grouped(rooflines: Sequence[Roofline]) -> list[list[Roofline]]:
    """Return the rooflines of each plot: a state of the page cache, and beside the first one the warm state.

    Of all loaders, the first one with workers and the first one without are drawn, and first of all the one that the
    answer tells.
    """
    told = told_roofline(rooflines)
    chosen: dict[bool, tuple[Any, ...]] = {}
    families: dict[tuple[Any, ...], list[Roofline]] = {}
    for roofline in rooflines:
        key = _family(roofline)
        if chosen.setdefault(roofline.overlap, key) == key:
            families.setdefault(key, []).append(roofline)
    groups = [group for family in families.values() for group in _by_state(family)]
    return sorted(groups, key=lambda group: told not in group)


def _family(roofline: Roofline) -> tuple[Any, ...]:
    cell = roofline.first.cell
    return (roofline.first.dataset_key, roofline.augmented, cell.workers, cell.loader, cell.batch_size)


def _by_state(family: Sequence[Roofline]) -> list[list[Roofline]]:
    warm = [roofline for roofline in family if roofline.first.cell.cache == CacheState.WARM][:1]
    others = [roofline for roofline in family if roofline.first.cell.cache != CacheState.WARM]
    first = sorted([*others[:1], *warm], key=family.index)
    return [first, *([roofline] for roofline in others[1:])]


def _marks(group: Sequence[Roofline], named: Sequence[Accelerator]) -> list[Mark]:
    """Return the ingestion rates to mark: those measured here, and the named ones or else some landmarks."""
    if not group:
        return []
    profiles = named or (landmarks() if group[0].of_photographs else ())
    marks = [Mark(label=trained_label(network), rate=network.rate.mid) for network in group[0].trained]
    marks += [
        Mark(
            label=", ".join(filter(None, (profile.device.partition(" (")[0], profile.network))),
            rate=profile.images_per_s,
        )
        for profile in profiles
    ]
    return sorted(marks[:_MOST_MARKS], key=lambda mark: mark.rate)


def _draw(group: Sequence[Roofline], marks: Sequence[Mark], question: str, ax: Axes | None) -> Axes:
    curves = [(place, curve) for place, roofline in enumerate(group) for curve in roofline.curves][
        :_MOST_CURVES
    ]
    with styled():
        ax = new_axes(4.6, ax)
        ax.set_xlabel("rate of the accelerator without waits (images/s)")
        ax.set_ylabel("delivered training rate (images/s)")
        if not curves:
            ax.text(0.5, 0.5, "no cell only loads (compute none)", ha="center", transform=ax.transAxes)
            title(ax, question)
            return ax
        rates = _axis(curves, marks)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(rates[0], rates[-1])
        ax.set_ylim(*_heights(curves, rates))
        plain_numbers(ax.xaxis)
        plain_numbers(ax.yaxis)
        ax.plot(rates, rates, color="black", linewidth=0.8, linestyle=":", zorder=1)
        colours = _colours([curve for _, curve in curves])
        states = ["", *(f", {state_label(roofline.first)}" for roofline in group[1:])]
        names = [
            _draw_curve(ax, curve, rates, colour=colour, lead=place == 0, state=states[place])
            for (place, curve), colour in zip(curves, colours, strict=True)
        ]
        cells = [curve.loader for _, curve in curves]
        cut = [
            _mark_cut_points(ax, curve, colour) for (_, curve), colour in zip(curves, colours, strict=True)
        ]
        title(ax, question, noted(_note(group), *cut), cells)
        _stagger(ax, [_draw_mark(ax, mark) for mark in marks])
        _set_apart(ax, names)
        spaced_decades(ax)
    return ax


def _axis(curves: Sequence[tuple[int, RooflineCurve]], marks: Sequence[Mark]) -> Floats:
    """Return the ingestion rates of the curves: around every point, mark and starving point."""
    shown = [mark.rate for mark in marks]
    for _, curve in curves:
        shown += [curve.starving.mid, curve.supply.mid, *(point.ingestion.mid for point in curve.points)]
    rates: Floats = np.geomspace(min(shown) / 2, max(shown) * 2, 400).astype(np.float64)
    return rates


def _heights(curves: Sequence[tuple[int, RooflineCurve]], rates: Floats) -> tuple[float, float]:
    lows = [curve.delivered(float(rates[0])).mid for _, curve in curves]
    lows += [point.delivered.mid for _, curve in curves for point in curve.points]
    highs = [curve.delivered(float(rates[-1])).mid for _, curve in curves]
    highs += [point.delivered.mid for _, curve in curves for point in curve.points]
    return min(lows) / 1.5, max(highs) * 1.8


def _colours(curves: Sequence[RooflineCurve]) -> list[Any]:
    """Return a colour per curve: its backend's, in another shade where an earlier backend has the same."""
    places: dict[str, dict[str, int]] = {}
    colours = []
    for curve in curves:
        base = look(curve.loader).colour
        known = places.setdefault(base, {})
        colours.append(to_rgb(shaded(base, known.setdefault(curve.backend, len(known)))))
    return colours


def _draw_curve(
    ax: Axes, curve: RooflineCurve, rates: Floats, *, colour: Any, lead: bool, state: str
) -> Annotation:
    """Draw a curve with its interval and its points, and return its label at the right edge."""
    delivered = [curve.delivered(float(rate)) for rate in rates]
    mids = [estimate.mid for estimate in delivered]
    ax.plot(rates, mids, color=colour, linestyle="-" if lead else "--", linewidth=1.6, zorder=3)
    if curve.supply.known:
        lows, highs = ([getattr(estimate, end) for estimate in delivered] for end in ("lo", "hi"))
        ax.fill_between(rates, lows, highs, color=colour, alpha=0.15, linewidth=0, zorder=2)
    measured = _delivered(curve)
    if measured:
        ax.errorbar(
            [point.ingestion.mid for point in curve.points],
            [estimate.mid for estimate in measured],
            yerr=whiskers(measured),
            color=colour,
            marker=look(curve.loader).marker,
            markerfacecolor=colour if lead else "white",
            markersize=5,
            linestyle="none",
            linewidth=1,
            capsize=2,
            zorder=4,
        )
    starving = curve.starving.mid
    ax.plot(
        starving,
        curve.delivered(starving).mid,
        color=colour,
        marker="|",
        markersize=13,
        markeredgewidth=2,
        zorder=5,
    )
    return ax.annotate(
        _label(curve, state),
        (float(rates[-1]), mids[-1]),
        xytext=(_NEAR_PT, 0),
        textcoords="offset points",
        va="center",
        fontsize=_LABEL_PT,
        color=tuple(0.75 * np.array(colour)),
        annotation_clip=False,
        parse_math=False,
        arrowprops={
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.7,
            "shrinkA": 0,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        },
    )


def _label(curve: RooflineCurve, state: str) -> str:
    """Return a backend with its starving point, "LMDB up to 250/s", and with its state if that does not lead, "LMDB, warm: up to 9/s"."""
    named = f"{backend_label(curve.backend)}{state}"
    if not curve.decided:
        return f"{named}: undecided"
    most = "at most" if curve.at_most else "up to"
    return f"{named}{':' if state else ''} {most} {number(curve.starving.mid)}/s"


def _mark_cut_points(ax: Axes, curve: RooflineCurve, colour: Any) -> str:
    """Mark the intervals of points that end beyond the plot; return the note on that."""
    places = [point.ingestion.mid for point in curve.points]
    return mark_cut(ax, places, _delivered(curve), ax.get_ylim(), upright=True, colour=colour)


def _delivered(curve: RooflineCurve) -> list[Estimate]:
    """Return the rates of a curve's points; those of fewer than `MIN_ROUNDS` rounds without an interval, which spans decades."""
    return [
        point.delivered
        if point.delivered.n >= MIN_ROUNDS
        else dataclasses.replace(point.delivered, lo=None, hi=None)
        for point in curve.points
    ]


def _draw_mark(ax: Axes, mark: Mark) -> Annotation:
    """Draw the vertical line of an ingestion rate, and return its label above the axes."""
    ax.axvline(mark.rate, color="#777777", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    return ax.annotate(
        f"{plain(mark.label)}: {number(mark.rate, 3)}",
        (mark.rate, 1.0),
        xycoords=ax.get_xaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="left",
        va="bottom",
        fontsize=_MARK_PT,
        color="#444444",
        annotation_clip=False,
        parse_math=False,
        arrowprops={
            "arrowstyle": "-",
            "color": "#777777",
            "linewidth": 0.6,
            "shrinkA": 0,
            "shrinkB": 0,
            "relpos": (0, 0),
        },
    )


def _note(group: Sequence[Roofline]) -> str:
    lead = group[0]
    states = [state_words(roofline) for roofline in group]
    points = [point for roofline in group for curve in roofline.curves for point in curve.points]
    rounds = [point.delivered.n for point in points]
    looks = (("Solid", "filled"), ("dashed", "hollow"))
    clauses = [
        f"{dataset_label(lead.first)}, {loader_words(lead)}",
        "; ".join(
            f"{line}{f' and {marks}' if any(curve.points for curve in roofline.curves) else ''}: {state}"
            for roofline, state, (line, marks) in zip(group, states, looks, strict=False)
        ),
        "Upright bar, and figure after the name: the fastest accelerator that the store keeps busy 90% of its time",
        "" if lead.overlap else "Without workers that is a ninth of the rate at which the store loads",
        _points_words(points),
        f"Points without a bar have fewer than {MIN_ROUNDS} rounds"
        if min(rounds, default=MIN_ROUNDS) < MIN_ROUNDS
        else "",
        "Dotted: an accelerator that never waits",
    ]
    return ". ".join(part for part in clauses if part)


def _points_words(points: Sequence[Point]) -> str:
    """Say which accelerators the points of a plot stand for; "" without points."""
    kinds = (
        "networks on this GPU" if any(not point.emulated for point in points) else "",
        "compute EMULATED by sleeps" if any(point.emulated for point in points) else "",
    )
    named = " or ".join(filter(None, kinds))
    return f"Points: measured, {named}" if named else ""


def _stagger(ax: Axes, labels: Sequence[Annotation]) -> None:
    """Lift labels above the axes like flags: one that reaches over the next mark is above the label of that mark."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    lay_out(figure)
    placed: list[tuple[float, int]] = []  # left edge and level of every label to the right
    for label in reversed(labels):
        box = label.get_window_extent()
        level = max((other + 1 for left, other in placed if left < box.x1 + _MARK_PT), default=0)
        placed.append((box.x0, level))
        label.set_position((0, 3 + level * _LINE * _MARK_PT))


def _set_apart(ax: Axes, labels: Sequence[Annotation]) -> None:
    """Move labels beside the axes up and down until none touches another, and away from the axes so that their lines spread."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    lay_out(figure)
    wanted = [float(ax.transData.transform(label.xy)[1]) for label in labels]
    per_point = figure.dpi / 72
    gap, box = _LINE * _LABEL_PT * per_point, ax.get_window_extent()
    order = sorted(range(len(labels)), key=wanted.__getitem__)
    places = spaced([wanted[n] for n in order], gap, float(box.y0), float(box.y1) - gap / 2)
    shifts = {n: (place - wanted[n]) / per_point for n, place in zip(order, places, strict=True)}
    reach = min(_FAR_PT, max([_NEAR_PT, *(abs(shift) * _SLOPE for shift in shifts.values())]))
    for n, shift in shifts.items():
        labels[n].set_position((reach, shift))


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places in the order of `wanted`, which ascends, at least `gap` apart, near it and from `low` to `high`.

    If they do not fit, they begin at `low` and pass `high`.
    """
    up = list(itertools.accumulate(wanted, lambda last, place: max(place, last + gap)))
    down = list(itertools.accumulate(reversed(wanted), lambda last, place: min(place, last - gap)))[::-1]
    middle = [(first + second) / 2 for first, second in zip(up, down, strict=True)]
    tops = [high - gap * n for n in reversed(range(len(middle)))]
    below = [min(place, top) for place, top in zip(middle, tops, strict=True)]
    bottoms = [low + gap * n for n in range(len(middle))]
    return [max(place, bottom) for place, bottom in zip(below, bottoms, strict=True)]
