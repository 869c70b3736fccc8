"""The order of samples is that of the seed, so it is computed again, not only compared between backends."""

import functools
from collections.abc import Iterator
from typing import Any

from storebench.loading.order import order_digest, pass_orders, split_batches
from storebench.report.validation.findings import Finding, Rule, finding
from storebench.results import Cell, Record


def check_order(record: Record) -> Iterator[Finding]:
    """Find samples that were served in another order than the seed, the epoch and the replicate decide.

    The samples of several ranks are dealt out between them. Their records are compared with one another alone.
    """
    if (
        record.digests is None
        or record.store is None
        or record.cell.ranks != 1
        or record.cell.backend.is_null
    ):
        return
    expected = seeded_order(record.cell, record.store.count, record.epoch, record.replicate)
    # The committed reference runs of November 2026 gave every replicate the order of the first.
    if record.digests.order not in {expected, seeded_order(record.cell, record.store.count, record.epoch, 0)}:
        message = (
            f"{record.digests.order}, but seed {record.cell.seed} gives {expected} in epoch {record.epoch} of replicate"
            f" {record.replicate}"
        )
        yield finding(Rule.COVERAGE, record, "digests.order", message)


def seeded_order(cell: Cell, count: int, epoch: int, replicate: int) -> str:
    """Return the digest of the order in which one process serves the `count` samples of a store in an epoch."""
    return _digest(
        count,
        cell.batch_size,
        cell.max_steps,
        seed=cell.seed,
        epoch=epoch,
        replicate=replicate,
        passes=cell.passes or 1,
        shuffle=cell.shuffle,
    )


@functools.lru_cache(maxsize=256)
def _digest(count: int, batch_size: int, max_steps: int | None, **drawn: Any) -> str:
    orders = pass_orders(count, **drawn)
    return order_digest([batch for order in orders for batch in split_batches(order, batch_size, max_steps)])
