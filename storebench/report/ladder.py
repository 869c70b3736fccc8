"""LMDBIO's ladder as measured: the rate on each rung of `storebench.formats.lmdb.direct`, and what each rung gained."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storebench.formats.lmdb.direct import RUNGS, Rung
from storebench.report.cells import CellSummary, key_without
from storebench.report.decisions import Decision, Decisions, Topic, doubt_about
from storebench.report.intervals import Estimate, Ratio, Round, family, median_interval
from storebench.report.panels import Panel
from storebench.settings.words import ComputeKind, Share

LEAST_RUNGS = 3
"""Fewest measured rungs of a ladder."""

BASES = ("plain", "page")
"""The rungs that the best one is compared with: the library's map with read-ahead, and without it."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRung:
    """One rung as measured.

    Attributes
    ----------
    rate
        Samples per second; the rung "lmm" includes the time of loading.
    gain
        The decision on its rate over that of the rung below, paired by round, with an interval that holds together with all
        others of the page. None for the lowest rung, and if the rung below was not measured.
    """

    rung: Rung
    cell: CellSummary
    rate: Estimate
    gain: Decision | None


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs that were measured under one setting, from the lowest.

    Attributes
    ----------
    top_gain
        The decision on explicit, planned reading over the library's own map; None if one of them was not measured.
    best
        The optimised rung with the highest rate; None if there is none.
    best_gains
        The decisions on it over the rungs of `BASES`, except those already in a step or in `top_gain`.
    """

    steps: tuple[MeasuredRung, ...]
    top_gain: Decision | None
    best: MeasuredRung | None = None
    best_gains: Mapping[str, Decision] = field(default_factory=dict)

    @property
    def first(self) -> CellSummary:
        """One of the cells, for the fields that they share."""
        return self.steps[0].cell

    @property
    def trains(self) -> bool:
        """Whether the loop computes or emulates an accelerator; rates are then those of complete steps."""
        return self.first.cell.compute.kind is not ComputeKind.NONE

    def of(self, key: str) -> MeasuredRung | None:
        """Return the step of a rung."""
        return next((step for step in self.steps if step.rung.key == key), None)


def ladders(panels: Iterable[Panel], decisions: Decisions) -> list[Ladder]:
    """Return the ladder of each setting under which enough of its rungs were measured."""
    return [_ladder(rungs, decisions) for rungs in _climbed(panels)]


def comparisons(panels: Iterable[Panel]) -> int:
    """Return the number of comparisons between rungs; each has a separate error."""
    return sum(
        sum(_is_climbed(rung, rungs) for rung in RUNGS)
        + ("coal" in rungs)
        + sum(base in rungs for rung in RUNGS if rung.trouble and rung.key in rungs for base in BASES)
        for rungs in _climbed(panels)
    )


def _climbed(panels: Iterable[Panel]) -> list[dict[str, CellSummary]]:
    """Return the cell of each rung under every setting that has a ladder."""
    listed = list(panels)
    shared = [cell for panel in listed for cell in panel.measured if cell.cell.share is not Share.NONE]
    groups = (
        {
            rung.key: cell
            for rung in RUNGS
            if (cell := _cell_of([*panel.measured, *_beside(panel, shared)], rung)) is not None
        }
        for panel in listed
    )
    return [rungs for rungs in groups if len(rungs) >= LEAST_RUNGS and "plain" in rungs]


def _held(pairs: Iterable[tuple[CellSummary, CellSummary]], decisions: Decisions) -> list[Ratio | None]:
    """Return ratios of rates with intervals that hold together with all others of the page."""
    sides = [(rates(cell), rates(base)) for cell, base in pairs]
    return family(sides, size=1, alpha=decisions.other_alpha)


def _beside(panel: Panel, shared: Iterable[CellSummary]) -> list[CellSummary]:
    """Return the cells of the same setting whose ranks share reading."""
    key = key_without(panel.first, "backend", "share")
    return [cell for cell in shared if key_without(cell, "backend", "share") == key]


def by_state(ladders: Iterable[Ladder]) -> dict[str, list[Ladder]]:
    """Return the ladders of each cache state, cold first."""
    states: dict[str, list[Ladder]] = {}
    for ladder in ladders:
        states.setdefault(ladder.first.cell.cache, []).append(ladder)
    return dict(sorted(states.items(), key=lambda pair: (pair[0] != "cold", pair[0])))


def _gain(cell: CellSummary, below: CellSummary, own: Ratio | None, decisions: Decisions) -> Decision | None:
    """Return the decision on one rung: the page's where it decides about the same rates, else that on the ratio `own`."""
    decision = decisions.between(cell, below)
    if decision is not None and "open" not in {side.fact("cache_applies_to") for side in (cell, below)}:
        # Rungs read one store, so a cold start is no doubt.
        return replace(decision, topic=Topic.RUNG, doubt=doubt_about(cell, below, decision.ratio))
    if own is None:
        return None
    return Decision(topic=Topic.RUNG, cell=cell, base=below, ratio=own, doubt=doubt_about(cell, below, own))


def rates(cell: CellSummary) -> dict[Round, float]:
    """Return samples per second of each replicate; loading counts if everything is loaded on opening."""
    if cell.fact("cache_applies_to") != "open":
        return cell.values("samples_per_s")
    samples, seconds, opening = (cell.values(name) for name in ("timed_samples", "timed_s", "open_s"))
    return {key: samples[key] / (seconds[key] + opening.get(key, 0.0)) for key in samples if seconds.get(key)}


def _ladder(rungs: Mapping[str, CellSummary], decisions: Decisions) -> Ladder:
    climbed = [
        (rung.key, rungs[rung.key], rungs[rung.below or ""]) for rung in RUNGS if _is_climbed(rung, rungs)
    ]
    own = _held([(cell, below) for _, cell, below in climbed], decisions)
    gains = {
        key: _gain(cell, below, ratio, decisions)
        for (key, cell, below), ratio in zip(climbed, own, strict=True)
    }
    steps = tuple(
        MeasuredRung(
            rung=rung,
            cell=rungs[rung.key],
            rate=median_interval(list(rates(rungs[rung.key]).values())),
            gain=gains.get(rung.key),
        )
        for rung in RUNGS
        if rung.key in rungs
    )
    avoiding = [step for step in steps if step.rung.trouble]
    best = max(avoiding, key=operator.attrgetter("rate.mid"), default=None)
    return Ladder(
        steps=steps,
        top_gain=_top_gain(rungs, decisions),
        best=best,
        best_gains={} if best is None else _best_gains(best, avoiding, rungs, decisions),
    )


def _is_climbed(rung: Rung, rungs: Mapping[str, CellSummary]) -> bool:
    return rung.key in rungs and rung.below in rungs


def _top_gain(rungs: Mapping[str, CellSummary], decisions: Decisions) -> Decision | None:
    if "plain" not in rungs or "coal" not in rungs:
        return None
    coal, plain = rungs["coal"], rungs["plain"]
    (own,) = _held([(coal, plain)], decisions)
    return _gain(coal, plain, own, decisions)


def _best_gains(
    best: MeasuredRung,
    avoiding: Sequence[MeasuredRung],
    rungs: Mapping[str, CellSummary],
    decisions: Decisions,
) -> dict[str, Decision]:
    """Return the decisions on the best rung over the bases that the ladder does not already compare it with.

    The best rung is not known beforehand, so every rung has a share of the page's error.
    """
    pairs = [(step, base) for step in avoiding for base in BASES if base in rungs]
    own = _held([(step.cell, rungs[base]) for step, base in pairs], decisions)
    gains = {
        base: _gain(step.cell, rungs[base], ratio, decisions)
        for (step, base), ratio in zip(pairs, own, strict=True)
        if step is best and base not in _compared_with(best.rung)
    }
    return {base: gain for base, gain in gains.items() if gain is not None}


def _compared_with(rung: Rung) -> set[str | None]:
    """Return the rungs that the ladder already compares this one with."""
    return {rung.below, "plain"} if rung.key == "coal" else {rung.below}


def _cell_of(cells: Sequence[CellSummary], rung: Rung) -> CellSummary | None:
    return next((cell for cell in cells if _is_on(cell, rung)), None)


def _is_on(cell: CellSummary, rung: Rung) -> bool:
    backend = cell.cell.backend
    options = dict(backend.options)
    if options.get("readahead") == "on":
        del options["readahead"]  # the default, written out
    return (backend.format, backend.reader, options) == (
        "lmdb",
        rung.reader,
        dict(rung.options),
    ) and cell.cell.share is rung.share
