"""Prepare the page cache once per node, between two moments at which every rank waits, and give every rank the facts."""

import dataclasses
from collections.abc import Callable

from storebench.probes.cgroup import LimitedCache
from storebench.results import CacheFacts, CacheVerdict
from storebench.settings.words import CacheState
from storebench.worker.setup import Setup


def before_opening(setup: Setup) -> CacheFacts | None:
    """Prepare the cache for opening the readers; see `StoreCache.before_opening`."""
    setup.progress.begin("the preparation of the page cache")
    return _once_per_node(setup, setup.pages.before_opening)


def prepare_cache(setup: Setup, number: int) -> CacheFacts:
    """Bring the cache into the cell's state for an epoch, and return the counts."""
    if number and setup.cell.cache == CacheState.COLD and not setup.loader.filled:
        setup.loader.close()
        before_opening(setup)
        setup.opened = setup.loader.open()
    setup.progress.begin("the preparation of the page cache")
    if setup.limit is not None:
        return _limited(setup, setup.limit)
    facts = _once_per_node(setup, lambda: _own_cache(setup, number))
    assert facts is not None
    return facts


def _own_cache(setup: Setup, number: int) -> CacheFacts:
    """Bring this node's cache into the state for an epoch; an epoch from memory has the state of the preceding reads."""
    if not setup.loader.filled:
        return setup.pages.prepare("epoch", first=not number)
    facts = setup.pages.prepare("open", first=not number)
    setup.pages.drop()
    return facts


def _limited(setup: Setup, limit: LimitedCache) -> CacheFacts:
    """Bring all ranks of a node into its memory group, the first of them after it has evicted the store."""
    facts = _once_per_node(setup, lambda: limit.prepare(setup.pids))
    assert facts is not None
    if facts.verdict is not CacheVerdict.FAILED:
        limit.enter(setup.pids)
    return dataclasses.replace(facts, metadata="hot")


def _once_per_node(setup: Setup, prepare: Callable[[], CacheFacts | None]) -> CacheFacts | None:
    """Prepare the cache on one rank of each node while the others wait, and return the facts of this rank's node."""
    me = setup.membership
    setup.group.barrier()
    mine = {me.node: prepare()} if me.leads_node else {}
    by_node = {node: facts for part in setup.group.exchange(mine) for node, facts in part.items()}
    for node, facts in by_node.items():
        if facts is not None and facts.verdict is CacheVerdict.FAILED:
            named = f"node {node}: {facts.reason}" if len(by_node) > 1 else facts.reason
            return dataclasses.replace(facts, reason=named)
    return by_node[me.node]
