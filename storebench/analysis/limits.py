"""What limits a loop: the needs of a sample, the resources of a node, and the rate that each resource permits.

Reports, rooflines and plans use this one law. docs/planner.md derives it.
"""

import math
from dataclasses import dataclass, replace

from storebench.settings.words import Limit

# Below this share of its time, an accelerator is starving.
BUSY_FRAC = 0.9

# Of the limits of measured cells.
REMEDIES = {
    Limit.COMPUTE: "a faster accelerator, or a smaller network: no store helps",
    Limit.COPY: "pinned memory, or smaller samples",
    Limit.CONTENTION: "fewer workers, or more cores: loading takes the network's cores",
    Limit.READER: "another reader or container",
    Limit.DECODE: "more workers, a faster decoder, or raw pixels",
    Limit.PREP: "more workers, or cheaper augmentation",
    Limit.FETCH: "more reads in flight, or more memory",
    Limit.LATENCY: "more reads in flight, or more memory",
    Limit.STORAGE: "a faster disk or line, fewer bytes (a codec), or more memory",
    Limit.HANDOFF: "larger batches, or another loader",
    Limit.BALANCED: "no single part limits it",
}


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one sample of a store needs, in seconds unless the name says otherwise."""

    cpu_s: float = 0.0  # of all processes of the loader
    producing_s: float  # of the process that makes the sample, without its waits for the device
    wait_s: float = 0.0  # for the device
    handoff_s: float = 0.0  # until the loop has it
    request_s: float = 0.0
    """Time of its request to a server over the requests in flight; the process does other things meanwhile."""
    device_bytes: float = 0.0
    requests: float = 0.0
    scale: float = 1.0
    """Measured rate over the rate that the formulas give for the measured setting; it multiplies the loading limits."""

    @property
    def span_s(self) -> float:
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

    cores: float = math.inf
    accelerators: int = 1
    samples_per_s: float = math.inf  # of one accelerator
    workers: int = 0  # of each process
    bytes_per_s: float = math.inf
    requests_per_s: float = math.inf


def limits(demand: Demand, node: Node, busy_frac: float = BUSY_FRAC) -> dict[Limit, float]:
    """Return the samples per second that each resource of a node permits, the lowest first; not the unlimited ones.

    Where an accelerator waits for its loop, it is the limit if it is busy for `busy_frac` of the time, else the loop.
    """
    processes, step_s = node.accelerators, 1 / node.samples_per_s
    idle_s, received_s = step_s / busy_frac - step_s, step_s + demand.handoff_s
    made = Limit.WORKERS if node.workers else Limit.LOOP
    if demand.wait_s > demand.producing_s:
        made = Limit.LATENCY
    rates: dict[Limit, float] = {}
    if node.workers:
        rates[made] = demand.scale * _per_s(processes * node.workers, demand.span_s)
        rates[Limit.HANDOFF if demand.handoff_s > idle_s else Limit.COMPUTE] = _per_s(processes, received_s)
    else:
        slower = made if demand.span_s > idle_s else Limit.COMPUTE
        rates[slower] = demand.scale * _per_s(processes, received_s + demand.span_s)
    rates[Limit.CORES] = demand.scale * _per_s(node.cores, demand.cpu_s)
    if demand.request_s:
        rates[Limit.LATENCY] = _per_s(processes * max(1, node.workers), demand.request_s)
    rates[Limit.STORAGE] = _per_s(node.bytes_per_s, demand.device_bytes)
    rates[Limit.REQUESTS] = _per_s(node.requests_per_s, demand.requests)
    finite = {limit: rate for limit, rate in rates.items() if math.isfinite(rate)}
    return dict(sorted(finite.items(), key=lambda item: item[1]))


def _per_s(capacity: float, need: float) -> float:
    return capacity / need if need > 0 else math.inf


def delivered(ingestion: float, supply: float, handoff_s: float, *, overlap: bool) -> float:
    """Return the samples per second that reach an accelerator which takes `ingestion` of them from a supply."""
    node = Node(samples_per_s=ingestion, workers=int(overlap))
    return min(limits(Demand(producing_s=1 / supply, handoff_s=handoff_s), node).values())


def starving_above(supply: float, handoff_s: float, *, overlap: bool) -> float:
    """Return the ingestion rate above which an accelerator is busy less than `BUSY_FRAC`, by `delivered`."""
    idle_frac = 1 / BUSY_FRAC - 1
    if not overlap:
        return idle_frac / (1 / supply + handoff_s)
    full = supply / BUSY_FRAC
    return min(full, idle_frac / handoff_s) if handoff_s > 0 else full
