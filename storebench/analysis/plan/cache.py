"""How often a page cache that holds part of a store answers. docs/planner.md derives the equation."""

import math
from collections.abc import Iterator

# Share of the store that a node has not yet read, below which it has read all.
_SETTLED = 1e-4


def hit_rate(resident: float, nodes: int = 1) -> float:
    """Return the share of reads that a page cache answers in shuffled epochs, if it holds a share of the store.

    It evicts any page, and its node reads another part of the store in each epoch; solved by bisection.
    """
    if not 0 < resident < 1:
        return float(resident >= 1)
    low, high, read = 0.0, resident, 1 / nodes
    for _ in range(60):
        hit = (low + high) / 2
        evicted = read * (1 - hit) / resident
        kept = (-math.expm1(-evicted) / evicted) ** 2 * read / (1 - (1 - read) * math.exp(-evicted))
        low, high = (hit, high) if kept > hit else (low, hit)
    return low


def missing_shares(resident: float, nodes: int, epochs: int | None) -> Iterator[tuple[int, float]]:
    """Yield numbers of epochs, and the mean share of their reads that miss the page cache, from the first epoch on.

    Without a number of epochs, only the share after many of them. In epoch k, a node has read 1 - (1 - 1/nodes)^(k - 1)
    of the store.
    """
    least, unread, left = 1 - hit_rate(resident, nodes), 1 - 1 / nodes, epochs or 0
    part, missed = max(1, nodes // 20), 1.0
    while left and missed > max(least, _SETTLED):
        count = min(part, left)
        mean = missed * (1 - unread**count) * nodes / count
        yield count, max(least, mean)
        left, missed = left - count, missed * unread**count
    if left or epochs is None:
        yield left or 1, least
