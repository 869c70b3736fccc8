"""The formulas of the planner. docs/planner.md derives them and names their sources."""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from storebench.analysis.roofline import BUSY_FRAC


class Limit(enum.StrEnum):
    """A resource that can limit the delivered rate."""

    ACCELERATORS = "accelerators"
    CORES = "cores"
    WORKERS = "workers"
    LOOP = "loading in the loop"
    LATENCY = "read latency"
    HANDOFF = "handoff"
    BANDWIDTH = "device MB/s"
    REQUESTS = "device requests/s"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one sample of a store needs, in seconds unless the name says otherwise."""

    cpu_s: float
    """CPU time of all processes of the loader."""
    producing_s: float
    """Time of the process that makes the sample, without its waits for the device."""
    wait_s: float = 0.0
    """Its wait for the device."""
    handoff_s: float = 0.0
    """Time in which the loop receives it from a worker."""
    request_s: float = 0.0
    """Time of its request to a server over the requests in flight; the process does other things meanwhile."""
    device_bytes: float = 0.0
    requests: float = 0.0
    scale: float = 1.0
    """Measured rate over the rate that the formulas give for the measured setting; it multiplies the loading limits."""

    @property
    def span_s(self) -> float:
        """Time of the process that makes the sample."""
        return self.producing_s + self.wait_s

    def missing(self, share: float) -> "Demand":
        """Return the needs if only a share of the reads misses the page cache; here all of them do."""
        return replace(
            self,
            wait_s=share * self.wait_s,
            device_bytes=share * self.device_bytes,
            requests=share * self.requests,
        )


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node, its share of the storage, and its training processes: one per accelerator."""

    cores: float
    accelerators: int = 1
    samples_per_s: float = math.inf
    """Rate of one accelerator."""
    workers: int = 0
    """Workers of each process."""
    bytes_per_s: float = math.inf
    requests_per_s: float = math.inf


def limits(demand: Demand, node: Node, busy_frac: float = BUSY_FRAC) -> dict[Limit, float]:
    """Return the samples per second that each resource of a node permits, the lowest first; not the unlimited ones.

    Where an accelerator waits for its loop, it is the limit if it is busy for `busy_frac` of the time, else the loop is.
    """
    processes, step_s = node.accelerators, 1 / node.samples_per_s
    idle_s = step_s / busy_frac - step_s
    made = Limit.WORKERS if node.workers else Limit.LOOP
    if demand.wait_s > demand.producing_s:
        made = Limit.LATENCY
    found: dict[Limit, float] = {}
    if node.workers:
        found[made] = demand.scale * _per_s(processes * node.workers, demand.span_s)
        received = Limit.HANDOFF if demand.handoff_s > idle_s else Limit.ACCELERATORS
        found[received] = _per_s(processes, step_s + demand.handoff_s)
    else:
        slower = made if demand.span_s > idle_s else Limit.ACCELERATORS
        found[slower] = demand.scale * _per_s(processes, step_s + demand.span_s)
    found[Limit.CORES] = demand.scale * _per_s(node.cores, demand.cpu_s)
    if demand.request_s:
        found[Limit.LATENCY] = _per_s(processes * max(1, node.workers), demand.request_s)
    found[Limit.BANDWIDTH] = _per_s(node.bytes_per_s, demand.device_bytes)
    found[Limit.REQUESTS] = _per_s(node.requests_per_s, demand.requests)
    finite = {name: rate for name, rate in found.items() if math.isfinite(rate)}
    return dict(sorted(finite.items(), key=lambda item: item[1]))


def _per_s(capacity: float, need: float) -> float:
    return capacity / need if need > 0 else math.inf


def hit_rate(resident: float, nodes: int = 1) -> float:
    """Return the share of reads that a page cache answers in shuffled epochs, if it holds a share of the store.

    It evicts any page, and its node reads another part of the store in each epoch. docs/planner.md derives the equation,
    which is solved by bisection.
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


_SETTLED = 1e-4
"""Share of the store that a node has not yet read, below which it has read all."""


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
