"""The formulas of the planner. docs/planner.md derives them and names their sources."""

import enum
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass


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
    reading_s: float = 0.0
    """The part of both that only reading from the device costs."""
    wait_s: float = 0.0
    """Its wait for the device."""
    handoff_s: float = 0.0
    """Time in which the loop receives it from a worker."""
    device_bytes: float = 0.0
    requests: float = 0.0
    scale: float = 1.0
    """Measured rate over the rate that the formulas give for the measured setting; it multiplies the loading limits."""

    @property
    def latency_bound(self) -> bool:
        """Whether a sample takes longer to read than to decode and prepare."""
        return self.wait_s + self.reading_s > self.producing_s - self.reading_s

    @property
    def span_s(self) -> float:
        """Time of the process that makes the sample."""
        return self.producing_s + self.wait_s


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node, and the storage that it reads from."""

    cores: float
    bytes_per_s: float = math.inf
    requests_per_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The training processes of a node, one per accelerator."""

    accelerators: int = 1
    samples_per_s: float = math.inf
    """Rate of one accelerator."""
    workers: int = 0
    """Workers of each process."""

    @property
    def producers(self) -> int:
        """Processes that read and decode."""
        return self.accelerators * max(1, self.workers)

    @property
    def busy_processes(self) -> int:
        """Processes that use a core when nothing waits."""
        return self.accelerators * (self.workers + 1)


def limits(demand: Demand, loop: Loop, machine: Machine) -> dict[Limit, float]:
    """Return the samples per second that each resource of a node permits, the lowest first."""
    step_s = 1 / loop.samples_per_s
    found: dict[Limit, float] = {}
    if loop.workers:
        made = Limit.LATENCY if demand.latency_bound else Limit.WORKERS
        found[made] = demand.scale * _per_s(loop.producers, demand.span_s)
        received = Limit.HANDOFF if demand.handoff_s > step_s else Limit.ACCELERATORS
        found[received] = _per_s(loop.accelerators, step_s + demand.handoff_s)
    else:
        made = Limit.LATENCY if demand.latency_bound else Limit.LOOP
        found[Limit.ACCELERATORS if step_s > demand.span_s else made] = demand.scale * _per_s(
            loop.accelerators, step_s + demand.span_s
        )
    if loop.busy_processes > machine.cores:
        found[Limit.CORES] = demand.scale * _per_s(machine.cores, demand.cpu_s)
    found[Limit.BANDWIDTH] = _per_s(machine.bytes_per_s, demand.device_bytes)
    found[Limit.REQUESTS] = _per_s(machine.requests_per_s, demand.requests)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _per_s(capacity: float, need: float) -> float:
    return capacity / need if need > 0 else math.inf


_PROCESSOR = (Limit.WORKERS, Limit.CORES)


def delivered(found: Mapping[Limit, float], sharpness: float) -> float:
    """Return a smooth minimum of limits, (sum of rate^-sharpness)^(-1/sharpness), which is below the lowest of them.

    Workers and the cores that they run on are one resource, so only the lower of the two counts.
    """
    stages = [rate for name, rate in found.items() if name not in _PROCESSOR and math.isfinite(rate)]
    stages += [min(own)] if (own := [found[name] for name in _PROCESSOR if name in found]) else []
    least = min(stages, default=math.inf)
    if not math.isfinite(least):
        return least
    return least * math.pow(math.fsum(math.pow(rate / least, -sharpness) for rate in stages), -1 / sharpness)


def hit_rate(resident: float, recency: float) -> float:
    """Return the share of reads that a page cache answers in shuffled epochs, if it holds a share of the store.

    `recency` is 1 for a cache that evicts the page that was used least recently, and 0 for one that evicts any page.
    """
    if resident >= 1:
        return 1.0
    if resident <= 0:
        return 0.0
    least_recent = resident + (1 - resident) * math.log1p(-resident)
    return recency * least_recent + (1 - recency) * _evicting_at_random(resident)


@functools.lru_cache(maxsize=1024)
def _evicting_at_random(resident: float) -> float:
    """Solve hit = ((1 - exp(-a)) / a)^2 with a = (1 - hit) / resident, by bisection."""
    low, high = 0.0, resident
    for _ in range(60):
        hit = (low + high) / 2
        chance = (1 - hit) / resident
        low, high = (hit, high) if (-math.expm1(-chance) / chance) ** 2 > hit else (low, hit)
    return low


def recency_of(resident: float, hits: float) -> float:
    """Return the recency for which a cache that holds `resident` has a measured hit rate, from 0 to 1."""
    random, recent = hit_rate(resident, 0.0), hit_rate(resident, 1.0)
    return min(1.0, max(0.0, (random - hits) / (random - recent))) if random > recent else 0.0


def second(found: Mapping[Limit, float]) -> Limit | None:
    """Return the limit behind the lowest one; None if nothing else limits."""
    rest = [name for name, rate in found.items() if math.isfinite(rate)]
    return rest[1] if len(rest) > 1 else None
