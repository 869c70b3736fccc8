"""The order of importance of panels, and with it the panel of the page's answer: settings decide it, never results."""

import math
from collections.abc import Sequence

from storebench.report.cells import CellSummary
from storebench.report.panels import Panel
from storebench.settings.words import ComputeKind, Share, Sync

DEFAULT_READAHEAD_KIB = 128
"""Linux's default read-ahead; panels with other sizes come first only if it was not measured."""

_COMPUTE_RANK = {ComputeKind.REAL: 2, ComputeKind.NONE: 0}
_STATE_RANK = {"limited": 3, "warm": 2, "cold": 1}
_FITTING_RANK = {"warm": 3, "limited": 2, "cold": 1}
"""If the whole dataset fits into memory, every epoch but the first is warm."""


def ordered(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels that have a rate, in the order of importance: the page's answer rests on the first one.

    Any state before a cold start, which ranks nothing; the largest images, the store larger than memory before warm (warm
    first if a run found that the whole dataset fits into memory), Linux's own read-ahead before others,
    real compute before readers and decoders alone before loaders that augment, most backends, one process before jobs of ranks,
    ranks that read separately before those that share.
    Training of fewer than 20 steps ranks nothing, so it comes first only if there is nothing else.
    """
    return sorted((panel for panel in panels if panel.measured), key=_rank, reverse=True)


def _rank(panel: Panel) -> tuple[float, ...]:
    cell = panel.first.cell
    shape = panel.measured[0].fact("store_image_shape") or "0"
    pixels = math.prod(int(side) for side in shape.split("x"))
    rate = panel.measured[0].interval("samples_per_s")
    few = any(summary.short_training for summary in panel.measured)
    return (
        min(len(panel.measured), 2),
        not few,
        not panel.speaker.cold_start,
        pixels,
        state_rank(panel.speaker),
        _readahead_rank(cell.readahead_kib),
        _COMPUTE_RANK.get(cell.compute.kind, 1),
        panel.alone,
        len(panel.measured),
        rate.n if rate else 0,
        -cell.ranks,
        cell.share is Share.NONE,
        cell.sync is Sync.OVERLAPPED,
        -cell.workers,
    )


def state_rank(cell: CellSummary) -> int:
    """Return the importance of a cell's cache state, the larger the earlier it is told; 0 for states that prove nothing."""
    ranks = _FITTING_RANK if cell.whole is not None and cell.whole.fits else _STATE_RANK
    return ranks.get(cell.state, 0)


def _readahead_rank(kib: int | None) -> int:
    return 2 if kib == DEFAULT_READAHEAD_KIB else 1 if kib is None else 0
