"""The question and the answer in one sentence: which panel speaks for the results, and what it says."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, Panel, panels, time_ratio
from storebench.report.factors import largest_part
from storebench.report.intervals import Ratio
from storebench.report.labels import (
    MODELS,
    backend_label,
    caveats,
    dataset_label,
    number,
    percent,
    with_interval,
)
from storebench.stats import Verdict

QUESTION = "Does it matter how the training images lie on disk?"

_COMPUTE_RANK = {"real": 2, "none": 0}
_CACHE_RANK = {"cold": 2, "warm": 1}


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The first screen.

    Attributes
    ----------
    answer
        One sentence with its interval, and where the loop computed a second one of the same with nothing to compute.
    panel
        The panel that it rests on; null where nothing was measured.
    slow, fast
        The two cells that it compares; null where there are not two.
    """

    answer: str
    panel: Panel | None = None
    slow: CellSummary | None = None
    fast: CellSummary | None = None
    ratio: Ratio | None = None


def main_panel(found: Sequence[Panel]) -> Panel | None:
    """Return the panel that speaks for all: the largest images, real compute, cold, most backends."""
    useful = [panel for panel in found if panel.measured]
    return max(useful, key=_rank, default=None)


def _rank(panel: Panel) -> tuple[float, ...]:
    cell = panel.first.cell
    shape = panel.measured[0].fact("store_image_shape") or "0"
    pixels = math.prod(int(side) for side in shape.split("x"))
    rate = panel.measured[0].interval("samples_per_s")
    return (
        min(len(panel.measured), 2),
        pixels,
        _COMPUTE_RANK.get(cell.compute, 1),
        _CACHE_RANK.get(cell.cache, 0),
        len(panel.measured),
        rate.n if rate else 0,
        -cell.workers,
    )


def headline(cells: Sequence[CellSummary]) -> Headline:
    """Return the answer that these cells give."""
    found = panels(cells)
    panel = main_panel(found)
    if panel is None:
        return Headline(answer="Nothing was measured: every cell failed.")
    first = _of(panel, _where(panel))
    bare = _bare(found, panel)
    beside = _of(bare, "With nothing to compute") if bare is not None else None
    if beside is None or beside.ratio is None:
        return first
    return dataclasses.replace(first, answer=f"{first.answer} {beside.answer}")


def _bare(found: Sequence[Panel], main: Panel) -> Panel | None:
    """Return the panel of the same samples and cache state in which nothing was computed, if it is another one."""
    if main.first.cell.compute == "none":
        return None
    cell = main.first.cell
    alike = [
        panel
        for panel in found
        if panel.first.dataset_key == main.first.dataset_key
        and (panel.first.cell.compute, panel.first.cell.cache) == ("none", cell.cache)
    ]
    return main_panel(alike)


def _of(panel: Panel, where: str) -> Headline:
    pair = _pair(panel)
    if pair is None:
        only = panel.measured[0]
        rate = with_interval(only.interval("samples_per_s"))
        sentence = f"{where}: {backend_label(only.backend)} gives {rate} samples/s; there is nothing to compare it with."
        return Headline(answer=sentence, panel=panel)
    slow, fast = pair
    ratio = time_ratio(slow, fast)
    if ratio is None:
        names = f"{backend_label(fast.backend)} and {backend_label(slow.backend)}"
        return Headline(
            answer=f"{where}: {names} never ran in the same round, so no ratio is given.", panel=panel
        )
    return Headline(
        answer=_sentence(panel, slow, fast, ratio, where), panel=panel, slow=slow, fast=fast, ratio=ratio
    )


def _pair(panel: Panel) -> tuple[CellSummary, CellSummary] | None:
    """Return the two cells of the sentence: the paper's where both are there, else slowest and fastest."""
    slow = panel.of("png") or min(panel.measured, key=_rate)
    stored = [cell for cell in panel.measured if cell.cell.format != "memory" and cell is not slow]
    others = stored or [cell for cell in panel.measured if cell is not slow]
    if not others:
        return None
    fast = panel.of("lmdb") if slow.backend == "png" else None
    return slow, fast or max(others, key=_rate)


def _rate(cell: CellSummary) -> float:
    return cell.median("samples_per_s") or 0.0


def _where(panel: Panel) -> str:
    state = {"any": "cache as found"}.get(panel.first.cell.cache, panel.first.cell.cache)
    said = "".join(f" ({one})" for one in caveats(panel.cells))
    return f"On this machine, {state}, {dataset_label(panel.first.cell)}{said}"


def _feeds(panel: Panel, name: str) -> str:
    cell = panel.first.cell
    verb = "load" if cell.compute == "none" else "feed"
    verb = verb if name.endswith("files") else f"{verb}s"
    if cell.compute == "none":
        return verb
    return f"{verb} {MODELS.get(cell.model, cell.model) if cell.compute == 'real' else 'an emulated accelerator'}"


def _sentence(panel: Panel, slow: CellSummary, fast: CellSummary, ratio: Ratio, where: str) -> str:
    winner, loser, shown = fast, slow, ratio
    if ratio.mid < 1:
        lo = 1 / ratio.hi if ratio.hi else None
        hi = 1 / ratio.lo if ratio.lo else None
        winner, loser, shown = (
            slow,
            fast,
            Ratio(mid=1 / ratio.mid, lo=lo, hi=hi, n=ratio.n, verdict=ratio.verdict),
        )
    names = backend_label(winner.backend), backend_label(loser.backend)
    times = f"{number(shown.mid, 2)} times" + _ends(shown)
    if ratio.verdict is Verdict.NO_DIFFERENCE:
        return f"{where}: no difference that we can detect between {names[0]} and {names[1]} (ratio {times})."
    if ratio.n < 2:
        return f"{where}: {names[0]} {_feeds(panel, names[0])} {times} as fast as {names[1]}, in one round: without replicates there is no interval, so no winner is named."
    if not ratio.proven:
        return f"{where}: the spread is too wide to tell {names[0]} from {names[1]} (ratio {times}); run more replicates."
    return f"{where}: {names[0]} {_feeds(panel, names[0])} {times} as fast as {names[1]}{_because(loser, winner)}."


def _ends(ratio: Ratio) -> str:
    return "" if ratio.lo is None else f" [{number(ratio.lo, 2)}, {number(ratio.hi, 2)}]"


def _because(slow: CellSummary, fast: CellSummary) -> str:
    part = largest_part(slow, fast)
    if part is None:
        return ""
    of = " of the difference" + (" in the producers' work" if slow.cell.workers else "")
    return f"; {part[0]} is {percent(min(part[1], 1.0))}{of}"
