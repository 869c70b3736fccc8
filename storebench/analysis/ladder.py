"""LMDBIO's ladder as measured: the rate on each rung of `storebench.formats.lmdb.direct`, and what each rung gained."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storebench.analysis.comparison import Estimate, Ratio, Verdict, estimate
from storebench.analysis.panels import Panel, paired
from storebench.analysis.summary import CellSummary, Round, key_without
from storebench.formats.lmdb.direct import RUNGS, Rung
from storebench.settings.words import Share

LEAST_RUNGS = 3
"""Fewest measured rungs of a ladder."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One rung: samples per second, over those of the rung below and of the library's own map."""

    rung: Rung
    cell: CellSummary
    rate: Estimate
    gain: Ratio | None
    over_plain: Ratio | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Ladder:
    """The rungs that were measured under one setting, from the lowest."""

    steps: tuple[Step, ...]


def ladders(panels: Iterable[Panel]) -> list[Ladder]:
    """Return the ladder of each setting under which enough of its rungs were measured."""
    listed = list(panels)
    shared = [cell for panel in listed for cell in panel.measured if cell.cell.share is not Share.NONE]
    made = []
    for panel in listed:
        key = key_without(panel.first, "backend", "share")
        beside = [cell for cell in shared if key_without(cell, "backend", "share") == key]
        found = {(cell.backend, cell.cell.share): cell for cell in (*beside, *panel.measured)}
        rungs = {rung.key: cell for rung in RUNGS if (cell := found.get((rung.backend, rung.share)))}
        if len(rungs) >= LEAST_RUNGS and "plain" in rungs:
            made.append(Ladder(steps=tuple(_steps(rungs))))
    return made


def _steps(rungs: Mapping[str, CellSummary]) -> Iterable[Step]:
    for rung in RUNGS:
        if rung.key in rungs:
            cell, below = rungs[rung.key], rungs.get(rung.below or "")
            yield Step(
                rung=rung,
                cell=cell,
                rate=estimate(list(_rates(cell).values())),
                gain=None if below is None else _gain(cell, below),
                over_plain=None if rung.key == "plain" else _gain(cell, rungs["plain"]),
            )


def _gain(cell: CellSummary, below: CellSummary) -> Ratio | None:
    """Return the ratio of two rungs; they read one store, so a cold start is no doubt."""
    found = paired(_rates(cell), _rates(below))
    doubtful = any(side.doubt not in ("", "cold start") or side.at_most for side in (cell, below))
    return dataclasses.replace(found, verdict=Verdict.UNDECIDED) if found and doubtful else found


def _rates(cell: CellSummary) -> dict[Round, float]:
    """Return samples per second of each replicate; loading counts if everything is loaded on opening."""
    if cell.fact("cache_applies_to") != "open":
        return cell.values("samples_per_s")
    samples, seconds, opening = (cell.values(name) for name in ("timed_samples", "timed_s", "open_s"))
    return {key: samples[key] / (seconds[key] + opening.get(key, 0.0)) for key in samples if seconds.get(key)}
