"""The order of samples is that of the seed, so it is computed again, not only compared between backends."""

import functools
from collections.abc import Iterator

from storebench.loading.order import order_digest, pass_orders, split_batches
from storebench.report.validation.findings import Finding, Rule, finding
from storebench.results import Cell, Record


def check_order(record: Record) -> Iterator[Finding]:
    """Find samples that were served in another order than the seed and the epoch decide.

    The samples of several ranks are dealt out between them. Their records are compared with one another alone.
    """
    if (
        record.digests is None
        or record.store is None
        or record.cell.ranks != 1
        or record.cell.backend.is_null
    ):
        return
    expected = seeded_order(record.cell, record.store.count, record.epoch)
    if record.digests.order != expected:
        message = (
            f"{record.digests.order}, but seed {record.cell.seed} gives {expected} in epoch {record.epoch}"
        )
        yield finding(Rule.COVERAGE, record, "digests.order", message)


def seeded_order(cell: Cell, count: int, epoch: int) -> str:
    """Return the digest of the order in which one process serves the `count` samples of a store in an epoch."""
    return _digest(
        count,
        cell.seed,
        epoch,
        cell.passes or 1,
        cell.batch_size,
        cell.max_steps,
        shuffle=cell.shuffle,
    )


@functools.lru_cache(maxsize=256)
def _digest(
    count: int, seed: int, epoch: int, passes: int, batch_size: int, max_steps: int | None, *, shuffle: bool
) -> str:
    orders = pass_orders(count, seed=seed, epoch=epoch, passes=passes, shuffle=shuffle)
    return order_digest([batch for order in orders for batch in split_batches(order, batch_size, max_steps)])
