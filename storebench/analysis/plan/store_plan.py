"""The plan of one store: what a sample of it needs, what the target delivers of it, and what lifts the limit."""

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from storebench.analysis.labels import number, size
from storebench.analysis.limits import BUSY_FRAC, Demand, Node, limits
from storebench.analysis.plan.measured import (
    REQUEST_BYTES,
    Lacking,
    Measurements,
    Wanted,
    asked_place,
    missing_shares,
    requests_in_flight,
    stored_bytes,
)
from storebench.analysis.plan.plans import FASTER, HOUR, Asked, StorePlan, Target
from storebench.analysis.plan.prediction_errors import PredictionKind, read_errors
from storebench.analysis.summary import CellSummary
from storebench.settings.words import CacheState, Limit

# Share of a store in a page cache that holds nearly nothing.
_SMALL = 1e-9


@functools.cache
def _widths() -> dict[PredictionKind, float]:
    """Return half of the interval of each kind; the widest for those that were not measured."""
    widths = {kind: e.half_width for kind, e in read_errors().items() if e.half_width is not None}
    return {kind: widths.get(kind, max(widths.values(), default=math.inf)) for kind in PredictionKind}


@dataclass(frozen=True, kw_only=True)
class _Needs:
    """What a sample needs while all of a store is in memory, and while none is, by the cells that tell."""

    held: Demand | None
    missing: tuple[Demand, ...]

    def at(self, share: float, node: Node) -> tuple[Demand, dict[Limit, float]]:
        """Return the needs if a share of the reads misses, and the limits. What is in memory is never slower."""
        held = {} if self.held is None else limits(self.held, node)
        needs = [need.missing(share) for need in self.missing] if share else []
        choices = [(need, limits(need, node)) for need in needs]
        need, scarce = max(choices, key=lambda choice: min(choice[1].values()), default=(self.held, held))
        assert need is not None
        lower = {name: min(scarce.get(name, math.inf), held.get(name, math.inf)) for name in scarce | held}
        return need, dict(sorted(lower.items(), key=lambda item: item[1]))


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Some epochs of a node that miss the page cache equally often."""

    epochs: int
    demand: Demand
    limits: dict[Limit, float]
    kinds: tuple[PredictionKind, ...]

    @property
    def rate(self) -> float:
        return min(self.limits.values())

    @property
    def times_wrong(self) -> float:
        """How many times too high or low the rate may be; errors of several kinds are taken as independent."""
        return math.exp(math.hypot(*(_widths()[kind] for kind in self.kinds)))


class StorePlanner:
    def __init__(self, cells: Sequence[CellSummary], target: Target, measured: Measurements) -> None:
        self.cells, self.target, self.measured = cells, target, measured
        self.backend, self.place = cells[0].cell.backend, asked_place(cells[0])
        self.stored = stored_bytes(cells[0])
        # A store with an order of its own is one stream.
        self.workers = min(target.workers, 1) if self.backend.native_order else target.workers
        # Every node reads all of it, shuffled.
        self.resident = 0.0 if target.other_storage else 1.0
        if target.memory_bytes is not None:
            whole = self.stored * target.samples
            self.resident = min(1.0, target.memory_bytes / whole) if whole else 1.0
        limited = {cell.cell.readahead_kib for cell in cells if cell.cell.cache is CacheState.LIMITED}
        self.readaheads: list[int | None] = sorted(limited, key=lambda kib: kib or 0)
        self.node = self._node()

    def plans(self) -> list[StorePlan]:
        """Return its plan, or one for each read-ahead at which it was measured if they differ in rate."""
        settings = self.readaheads if self.resident < 1 and self.readaheads else [None]
        plans = [self._plan(kib) for kib in settings]
        rates = [plan.images_per_s for plan in plans]
        return [replace(plans[0], readahead_kib=None)] if max(rates) < FASTER * min(rates) else plans

    def _plan(self, readahead_kib: int | None) -> StorePlan:
        target, node, needs = self.target, self.node, self._needs(readahead_kib)
        shares = [(target.epochs or 1, 1.0)]
        if not self.place.remote:
            shares = list(missing_shares(self.resident, target.nodes, target.epochs))
        parts = []
        for epochs, share in shares:
            demand, rates = needs.at(share, node)
            kinds = self._kinds(missing=share > 0)
            parts.append(_Part(epochs=epochs, demand=demand, limits=rates, kinds=kinds))

        def of_all(rates: Iterable[float]) -> float:
            return target.nodes * statistics.harmonic_mean(list(rates), [part.epochs for part in parts])

        full = node.accelerators * node.samples_per_s
        rate, low = (
            of_all(part.rate for part in parts),
            of_all(part.rate / part.times_wrong for part in parts),
        )
        most = [(part, part.limits.get(Limit.COMPUTE, full)) for part in parts]
        high = of_all(min(end, part.rate * part.times_wrong) for part, end in most)
        busy = rate / target.needed
        # The epochs in which the accelerators wait longest say what limits them.
        waiting = max(parts, key=lambda part: part.epochs * (1 / part.rate - 1 / full))
        told = parts[-1] if busy >= BUSY_FRAC else waiting
        limit = next(iter(told.limits))
        built = ((cell.median("build_s"), cell.fact("store_count")) for cell in self.cells)
        times = [seconds / count for seconds, count in built if seconds and count]
        return StorePlan(
            store=self.backend.name,
            place=self.place,
            readahead_kib=readahead_kib,
            container=f"{self.backend.format}+{self.backend.codec}",
            stored_bytes=self.stored,
            images_per_s=rate,
            low=low,
            high=high,
            busy=busy,
            busy_low=low / target.needed,
            busy_high=high / target.needed,
            first_h=target.samples / (target.nodes * parts[0].rate) / HOUR,
            epoch_h=target.samples / (target.nodes * parts[-1].rate) / HOUR,
            total_h=None if target.epochs is None else target.samples * target.epochs / rate / HOUR,
            limit=limit,
            lift="" if busy >= BUSY_FRAC else self._lift(limit, told.demand),
            asked=self._asked(needs.at(1.0, node)[0] if needs.missing else None),
            build_s=statistics.median(times) * target.samples if times else None,
            kinds=tuple(dict.fromkeys(kind for part in parts for kind in part.kinds)),
        )

    def _node(self) -> Node:
        target, remote = self.target, self.place.remote
        bytes_per_s = self.measured.device_rate(self.backend.name, "best")
        if remote:
            bytes_per_s = 1e6 * (self.cells[0].fact("place_emulated_mb_s") or math.inf)
        if target.bytes_per_s or target.requests_per_s or (remote and target.other_storage):
            bytes_per_s = (target.bytes_per_s or math.inf) / target.nodes
        return Node(
            cores=target.cores,
            accelerators=target.count,
            samples_per_s=target.accelerator.images_per_s,
            workers=self.workers,
            bytes_per_s=bytes_per_s,
            requests_per_s=(target.requests_per_s or math.inf) / target.nodes,
        )

    def _needs(self, readahead_kib: int | None) -> _Needs:
        """Return the needs of a store. Raises `Lacking` if no cell tells one that the plan cannot do without."""
        if self.place.remote:
            return _Needs(held=None, missing=(self._demand(0.0, None),))
        fits, lacks, told = self.resident >= 1, list[Lacking](), dict[tuple[float, int | None], Demand]()
        # What fits into memory needs at most what does not.
        small = [(_SMALL, kib) for kib in (self.readaheads if fits else [readahead_kib])]
        for resident, kib in ((1.0, None), *small, *([(0.0, None)] if fits else [])):
            try:
                told[resident, kib] = self._demand(resident, kib)
            except Lacking as lack:
                lacks.append(lack)
        held = told.pop((1.0, None), None)
        if (fits and held is None) or not (told or (fits and self.target.epochs is None)):
            raise lacks[0 if fits and held is None else -1]
        return _Needs(held=held, missing=tuple(told.values()))

    def _asked(self, need: Demand | None) -> Asked:
        """Return the load on the storage; without a cell that read from it, the least that a reader can ask."""
        rate, read = self.target.needed, need.device_bytes if need else self.stored
        opens = self.backend.format == "files" and not self.place.remote
        return Asked(
            bytes_per_image=read,
            bytes_per_s=rate * read,
            requests_per_s=rate * (need.requests if need else max(1.0, self.stored / REQUEST_BYTES)),
            opens_per_s=rate if opens else 0.0,
        )

    def _demand(self, resident: float, readahead_kib: int | None) -> Demand:
        """Return the needs on the target's storage, where waits become requests one after another."""
        target = self.target
        demand = self.measured.demand(
            Wanted(
                backend=self.backend.name,
                workers=self.workers,
                place=self.place,
                first_byte_s=target.first_byte_s,
                resident=resident,
                readahead_kib=readahead_kib,
                ranks=target.count,
                model=target.accelerator.model.partition("-")[0],
            )
        )
        if not demand.device_bytes or self.place.remote:
            return demand
        described = target.bytes_per_s or target.requests_per_s
        if not described and math.isinf(self.measured.device_rate(self.backend.name, "best")):
            raise Lacking("no cell has a rate of its device; measure with --cache cold, or give --read-mb-s")
        if not target.other_storage:
            return demand
        demand = replace(demand, requests=max(demand.requests, demand.device_bytes / REQUEST_BYTES))
        if target.first_byte_s is None:
            return demand
        transfer_s = demand.device_bytes / (target.bytes_per_s or math.inf)
        alone_s = demand.device_bytes / self.measured.device_rate(self.backend.name, "random_1")
        in_flight = max(1.0, alone_s / demand.wait_s) if demand.wait_s else 1.0
        return replace(demand, wait_s=demand.requests * target.first_byte_s / in_flight + transfer_s)

    def _kinds(self, *, missing: bool) -> tuple[PredictionKind, ...]:
        """Return the differences between the prediction of some epochs and the cells."""
        target, cells, states = self.target, self.cells, {cell.cell.cache for cell in self.cells}
        missing = missing and not self.place.remote
        small = missing and self.resident < 1
        differs = {
            PredictionKind.ACCELERATOR_LOOP: not target.workers,
            PredictionKind.ACCELERATOR_WORKERS: bool(target.workers),
            PredictionKind.WORKERS: all(cell.cell.workers != self.workers for cell in cells)
            or all(cell.fact("conditions_cores") != target.cores for cell in cells),
            PredictionKind.RANKS: target.count > 1,
            PredictionKind.MEMORY: small and CacheState.LIMITED in states,
            PredictionKind.MEMORY_OF_COLD: small and CacheState.LIMITED not in states,
            PredictionKind.COLD: missing and not small,
            PredictionKind.DEVICE: missing and target.other_storage,
            PredictionKind.PLACE: self.place.remote,
        }
        return tuple(kind for kind, is_so in differs.items() if is_so)

    def _lift(self, limit: Limit, demand: Demand) -> str:
        """Return the amount of a resource that keeps a node's accelerators busy."""
        target, alone = self.target, self.target.accelerator.images_per_s
        taken, wished = target.count / (1 / alone + demand.handoff_s), BUSY_FRAC * target.count * alone
        rate = wished if wished < taken else BUSY_FRAC * taken
        if self.place.remote and limit is Limit.LATENCY:
            requests = BUSY_FRAC * alone * demand.request_s * requests_in_flight(self.cells[0])
            return f"{math.ceil(requests):,} requests in flight"
        workers = f"{math.ceil(rate / target.count * demand.span_s / demand.scale):,} workers each"
        workers = "another reader" if self.backend.native_order else workers
        memory = "" if self.place.remote else f" or {size(self.stored * target.samples)}"
        return {
            Limit.CORES: f"{math.ceil(rate * demand.cpu_s / demand.scale):,} cores",
            Limit.WORKERS: workers,
            Limit.LOOP: "workers",
            Limit.HANDOFF: "larger batches",
            Limit.LATENCY: f"{workers}{memory}",
            Limit.STORAGE: f"{number(target.nodes * rate * demand.device_bytes / 1e9)} GB/s{memory}",
            Limit.REQUESTS: f"{number(target.nodes * rate * demand.requests)} requests/s{memory}",
        }.get(limit, "")
