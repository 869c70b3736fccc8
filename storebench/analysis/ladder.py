"""LMDBIO's ladder as measured: the rate on each rung of `storebench.formats.lmdb.direct`, and what each rung gained."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from storebench.analysis.comparison import Estimate, Ratio, Verdict, estimate
from storebench.analysis.frame import Round
from storebench.analysis.panels import Panel, paired
from storebench.analysis.summary import CellSummary, key_without
from storebench.formats.lmdb.direct import RUNGS, Rung
from storebench.settings.words import Share

_LEAST_RUNGS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class LadderStep:
    """One rung: samples per second, over those of the rung below and of the library's own map."""

    rung: Rung
    cell: CellSummary
    rate: Estimate
    gain: Ratio | None
    over_plain: Ratio | None


def ladders(panels: Iterable[Panel]) -> list[list[LadderStep]]:
    """Return the ladder of each setting under which enough of its rungs were measured, each from the lowest rung."""
    listed = list(panels)
    shared = [cell for panel in listed for cell in panel.measured if cell.cell.share is not Share.NONE]
    made = []
    for panel in listed:
        key = key_without(panel.first, "backend", "share")
        sharing = [cell for cell in shared if key_without(cell, "backend", "share") == key]
        cells = {(cell.backend, cell.cell.share): cell for cell in (*sharing, *panel.measured)}
        rungs = {rung.key: cell for rung in RUNGS if (cell := cells.get((rung.backend, rung.share)))}
        if len(rungs) >= _LEAST_RUNGS and "plain" in rungs:
            made.append(
                [
                    LadderStep(
                        rung=rung,
                        cell=rungs[rung.key],
                        rate=estimate(list(_rates(rungs[rung.key]).values())),
                        gain=_gain(rungs[rung.key], rungs.get(rung.below or "")),
                        over_plain=None if rung.key == "plain" else _gain(rungs[rung.key], rungs["plain"]),
                    )
                    for rung in RUNGS
                    if rung.key in rungs
                ]
            )
    return made


def _gain(cell: CellSummary, below: CellSummary | None) -> Ratio | None:
    """Return the ratio of two rungs; they read one store, so a cold start is no doubt."""
    if below is None:
        return None
    ratio = paired(_rates(cell), _rates(below))
    doubtful = any(side.doubt not in ("", "cold start") or side.at_most for side in (cell, below))
    return dataclasses.replace(ratio, verdict=Verdict.UNDECIDED) if ratio and doubtful else ratio


def _rates(cell: CellSummary) -> dict[Round, float]:
    """Return samples per second of each replicate; loading counts if everything is loaded on opening."""
    if cell.fact("cache_applies_to") != "open":
        return cell.values("samples_per_s")
    samples, seconds, opening = (cell.values(name) for name in ("timed_samples", "timed_s", "open_s"))
    return {key: samples[key] / (seconds[key] + opening.get(key, 0.0)) for key in samples if seconds.get(key)}
