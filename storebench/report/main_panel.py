"""Which panel speaks for the others: chosen by what was asked for, never by what came out."""

import math
from collections.abc import Sequence

from storebench.report.cells import Panel

_COMPUTE_RANK = {"real": 2, "none": 0}
_STATE_RANK = {"limited": 4, "cold": 3, "warm": 2}
_FEW_STEPS = 20


def main_panel(found: Sequence[Panel]) -> Panel | None:
    """Return the panel that speaks for all.

    The largest images, real compute before readers and decoders alone, the store larger than memory before cold before warm, most backends.
    Training of fewer than 20 steps ranks nothing, so it speaks only where there is nothing else.
    """
    useful = [panel for panel in found if panel.measured]
    return max(useful, key=_rank, default=None)


def _rank(panel: Panel) -> tuple[float, ...]:
    cell = panel.first.cell
    shape = panel.measured[0].fact("store_image_shape") or "0"
    pixels = math.prod(int(side) for side in shape.split("x"))
    rate = panel.measured[0].interval("samples_per_s")
    few = cell.compute == "real" and min(one.steps for one in panel.measured) < _FEW_STEPS
    return (
        min(len(panel.measured), 2),
        not few,
        pixels,
        _COMPUTE_RANK.get(cell.compute, 1),
        panel.alone,
        _STATE_RANK.get(panel.speaker.state, 0),
        len(panel.measured),
        rate.n if rate else 0,
        -cell.workers,
    )
