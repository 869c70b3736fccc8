"""The needs of a sample, from the cells of a run."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from storebench.planner.model import Demand, Loop, Machine, delivered, hit_rate, limits, recency_of
from storebench.report.bottleneck import looks_ahead
from storebench.report.cells import MEMORY_FORMAT, CellSummary
from storebench.settings.words import CacheState, ComputeKind, Share

REQUEST_BYTES = 256 << 10
"""Most bytes of a request: providers of block storage count a larger one as several."""

LEAST_READ_FRAC = 0.1
"""A cell tells the cost of device bytes if it read this share of its samples from the device."""

_PRODUCING = ("fetch_s", "decode_s", "prep_s")


class Lacking(Exception):  # noqa: N818 - no error: the caller decides whether the plan goes on without the store
    """A figure that a store's plan needs and no cell has; the text says which cells to add."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The setting for which the needs of a sample are asked."""

    backend: str
    workers: int
    resident: float = 1.0
    """Share of the store that the page cache can hold; 0 from a cold start."""
    readahead_kib: int | None = None
    ranks: int = 1
    model: str = ""
    """The network whose crops and mirrors are part of the needs; "" for none."""
    served: float = 1.0
    """Share of the samples that an epoch serves."""


@dataclass(frozen=True)
class Measurements:
    """The cells of one dataset on one machine that a plan may use, with the null ones apart."""

    cells: tuple[CellSummary, ...]
    nulls: tuple[CellSummary, ...] = ()

    @classmethod
    def of(cls, cells: Iterable[CellSummary]) -> "Measurements":
        """Keep the cells with figures."""
        known = [cell for cell in cells if cell.median("samples_per_s")]
        stored = (cell for cell in known if not cell.is_null and cell.cell.share is Share.NONE)
        return cls(
            tuple(cell for cell in stored if _span_s(cell) > 0), tuple(cell for cell in known if cell.is_null)
        )

    def demand(self, wanted: Wanted) -> Demand:
        """Return the needs of a sample of a store. Raises `Lacking` if no cell tells them."""
        own = [cell for cell in self.cells if cell.backend == wanted.backend]
        warm = _nearest([cell for cell in own if _in_memory(cell)], wanted)
        if wanted.resident >= 1 or any(cell.cell.backend.format == MEMORY_FORMAT for cell in own):
            if warm is None:
                raise Lacking(f'{wanted.backend}: add a cell with cache = "warm"')
            return self._for_loop(_held(warm), warm, wanted)
        state = CacheState.COLD if wanted.resident <= 0 else CacheState.LIMITED
        same = [cell for cell in own if cell.cell.cache is state and not _in_memory(cell)]
        base = _nearest([cell for cell in same if cell.cell.readahead_kib == wanted.readahead_kib], wanted)
        if base is not None and (warm is None or bool(base.cell.workers) == bool(wanted.workers)):
            return self._for_loop(self._read_demand(base, wanted.resident), base, wanted)
        if warm is None:
            raise Lacking(f'{wanted.backend}: add cells with cache = "warm" and "limited"')
        loaded = self._for_loop(_held(warm), warm, wanted)
        read = (
            self._miss_of_device(warm, wanted) if base is None else self._read_demand(base, wanted.resident)
        )
        reading_s = read.device_bytes * self._cpu_s_per_byte(warm, limited=wanted.resident > 0)
        # The kernel copies and reads ahead at once, unless it must reclaim pages first.
        hidden_s = reading_s if base is None and _maps_its_file(warm) and not wanted.resident else 0.0
        return replace(
            loaded,
            cpu_s=loaded.cpu_s + reading_s,
            producing_s=loaded.producing_s + reading_s,
            reading_s=reading_s,
            wait_s=max(0.0, read.wait_s - hidden_s),
            device_bytes=read.device_bytes,
            requests=read.requests,
        )

    def _read_demand(self, base: CellSummary, resident: float) -> Demand:
        """Return the needs of a cell that reads from the device, with another share of the store resident."""
        span_s, cpu_s, read = _span_s(base), _cpu_s(base), _per_sample(base, "device_read_bytes")
        per_byte, warm = self._cpu_s_per_byte(base, limited=resident > 0), self._warm_sibling(base)
        producing_s = min(span_s, cpu_s if warm is None else _span_s(warm) + read * per_byte)
        more = self._misses(base, resident) / max(self._misses(base, resident_share(base)), 1e-9)
        reading_s = min(producing_s, read * per_byte)
        return Demand(
            cpu_s=max(0.0, cpu_s + reading_s * (more - 1)),
            producing_s=producing_s + reading_s * (more - 1),
            reading_s=reading_s * more,
            wait_s=(span_s - producing_s) * more,
            device_bytes=read * more,
            requests=_requests(base, read) * more,
        )

    def _misses(self, base: CellSummary, resident: float) -> float:
        """Return the share of reads that a page cache does not answer; how it evicts, a limited cell tells."""
        before, stored = base.median("resident_frac_before"), stored_bytes(base)
        recency = 0.5
        if before and 0 < before < 1 and stored:
            recency = recency_of(before, 1 - _per_sample(base, "device_read_bytes") / stored)
        return 1 - hit_rate(resident, recency)

    def _miss_of_device(self, warm: CellSummary, wanted: Wanted) -> Demand:
        """Return what reading from the device adds, if only its own rates are known."""
        stored, misses = stored_bytes(warm), 1 - hit_rate(wanted.resident, 0.5)
        read, pace = misses * stored, "random_1"
        if looks_ahead(warm):
            pace = "best"
        elif _maps_its_file(warm):
            # A fault reads ahead. From a cold start the rest is used later; in a full cache it is evicted before.
            ahead = 1024 * (wanted.readahead_kib or warm.fact("machine_readahead_kib") or 0)
            pace = "sequential"
            read = read + (1 - wanted.resident) * ahead if wanted.resident else stored / wanted.served
        rate = self.device_rate(wanted.backend, pace)
        if not math.isfinite(rate) or not stored:
            raise Lacking(f'{wanted.backend}: add a cell with cache = "limited"')
        return Demand(
            cpu_s=0.0,
            producing_s=0.0,
            wait_s=read / rate,
            device_bytes=read,
            requests=max(misses, read / REQUEST_BYTES),
        )

    def _for_loop(self, demand: Demand, base: CellSummary, wanted: Wanted) -> Demand:
        """Return the needs with the loop's workers, and with a network's crops."""
        own, cpu_s, span_s = base.cell.workers, 0.0, 0.0
        if bool(own) != bool(wanted.workers):
            cpu_s, span_s = self._worker_cost(base)
            if not wanted.workers:
                cpu_s, span_s = -cpu_s, -span_s
        demand = replace(
            demand,
            cpu_s=max(demand.cpu_s + cpu_s, 0.1 * demand.cpu_s),
            producing_s=max(demand.producing_s + span_s, 0.1 * demand.producing_s),
            handoff_s=self.handoff_s(wanted.model) if wanted.workers else 0.0,
        )
        if own and wanted.workers and resident_share(base) == wanted.resident:
            demand = replace(demand, scale=self._scale(demand, base))
        if wanted.model and base.cell.model != wanted.model:
            crops_s = max(0.0, self._prep_s(wanted.model) - base.per_sample("prep_s"))
            demand = replace(demand, cpu_s=demand.cpu_s + crops_s, producing_s=demand.producing_s + crops_s)
        return demand

    def _scale(self, demand: Demand, base: CellSummary) -> float:
        """Return the measured rate of a cell that only loads over the rate that the formulas give it."""
        measured = base.median("samples_per_s")
        if base.cell.compute.kind is not ComputeKind.NONE or not measured:
            return 1.0
        loop = Loop(accelerators=base.cell.ranks, workers=base.cell.workers)
        machine = Machine(
            cores=base.fact("conditions_cores") or 1, bytes_per_s=self.device_rate(base.backend, "best")
        )
        return measured / delivered(limits(demand, loop, machine), SHARPNESS)

    def _worker_cost(self, base: CellSummary) -> tuple[float, float]:
        """Return the seconds of CPU, and of the producer, that a worker adds to a sample that loads in the loop."""
        pairs: dict[str, tuple[list[CellSummary], list[CellSummary]]] = {}
        for cell in self.cells:
            if _in_memory(cell) and cell.cell.compute.kind is ComputeKind.NONE:
                pairs.setdefault(cell.backend, ([], []))[bool(cell.cell.workers)].append(cell)
        both = [pair for pair in pairs.values() if all(pair)]
        if not both:
            raise Lacking(f"{base.backend}: add a cell with workers = {0 if base.cell.workers else 2}")
        cpu_s, span_s = (
            statistics.median(min(map(cost, more)) - min(map(cost, one)) for one, more in both)
            for cost in (_cpu_s, _span_s)
        )
        return max(0.0, cpu_s), max(0.0, span_s)

    def _prep_s(self, model: str) -> float:
        cells = [c for c in self.cells if c.cell.model == model and c.cell.compute.kind is ComputeKind.REAL]
        return statistics.median(c.per_sample("prep_s") for c in cells) if cells else 0.0

    def device_rate(self, backend: str, pace: str) -> float:
        """Return a rate of the device in bytes/s, at the size of a store's samples if it was measured, else infinity."""
        own = [cell for cell in self.cells if cell.backend == backend]
        for cells in (own, self.cells):
            rates = [rate for cell in cells if (rate := cell.median(f"device_{pace}_bytes_per_s"))]
            if rates:
                return statistics.median(rates)
        return math.inf

    def handoff_s(self, model: str = "") -> float:
        """Return the time in which a loop receives a sample from a worker while it computes.

        A loop that waits receives late, so the least time counts; null cells of the network tell it best.
        """
        nulls = [c for c in self.nulls if c.cell.workers and c.cell.model == model]
        if nulls:
            return statistics.median(cell.per_sample("handover_s") for cell in nulls)
        return min((cell.per_sample("handover_s") for cell in self.handing), default=0.0)

    @property
    def handing(self) -> list[CellSummary]:
        """The cells with workers; those beside an accelerator alone if there are any."""
        cells = [cell for cell in self.cells if cell.cell.workers and cell.per_sample("handover_s") > 0]
        beside = [cell for cell in cells if cell.cell.compute.kind is not ComputeKind.NONE]
        return beside or cells

    def _cpu_s_per_byte(self, like: CellSummary, *, limited: bool) -> float:
        """Return the CPU seconds that a byte from the device adds: the median over stores that read alike.

        A full page cache costs more, as pages must be reclaimed.
        """
        costs: dict[bool, list[float]] = {True: [], False: []}
        state = CacheState.LIMITED if limited else CacheState.COLD
        for cell in self.cells:
            # Decoding, and processes beside each other, vary by more than reading costs.
            if cell.cell.ranks > 1 or cell.per_sample("decode_s") > _span_s(cell) / 2:
                continue
            read, warm = _per_sample(cell, "device_read_bytes"), self._warm_sibling(cell)
            if cell.cell.cache is state and warm and read >= LEAST_READ_FRAC * stored_bytes(cell):
                alike = _maps_its_file(warm) is _maps_its_file(like)
                costs[alike].append((_cpu_s(cell) - _cpu_s(warm)) / read)
        known = costs[True] or costs[False]
        return max(0.0, statistics.median(known)) if known else 0.0

    def _warm_sibling(self, cell: CellSummary) -> CellSummary | None:
        """Return the cell of the same store and workers that reads from memory, if there is one."""
        own = cell.cell
        like = Wanted(backend=cell.backend, workers=own.workers, ranks=own.ranks)
        alike = [c for c in self.cells if c.backend == cell.backend and _in_memory(c)]
        return _nearest([c for c in alike if bool(c.cell.workers) == bool(own.workers)], like)


def pooled(cells: Iterable[CellSummary]) -> list[list[CellSummary]]:
    """Return the cells of the same images on the same machine, whatever part of them was measured."""
    groups: dict[tuple[object, ...], list[CellSummary]] = {}
    for cell in cells:
        data = cell.cell.data
        key = (
            cell.environment_key,
            data.name,
            data.split,
            data.image_size,
            cell.fact("store_image_shape") or "",
        )
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


SHARPNESS = 2.5
"""Exponent of the smooth minimum; fitted by benchmarks/plan_error.py to the half of the cells that it does not report."""


def _nearest(cells: Sequence[CellSummary], wanted: Wanted) -> CellSummary | None:
    """Return the cell whose loop is most like the wanted one."""

    def distance(cell: CellSummary) -> tuple[float, ...]:
        own = cell.cell
        return (
            bool(own.workers) != bool(wanted.workers),
            own.model != wanted.model if wanted.model else 0,
            abs(own.ranks - wanted.ranks),
            (ComputeKind.NONE, ComputeKind.EMULATED, ComputeKind.REAL).index(own.compute.kind),
            abs(own.workers - wanted.workers),
            -(cell.median("timed_steps") or 0),
        )

    return min(cells, key=distance, default=None)


def _in_memory(cell: CellSummary) -> bool:
    own = cell.cell
    return own.cache is CacheState.WARM or own.backend.format == MEMORY_FORMAT


def resident_share(cell: CellSummary) -> float:
    """Return the share of the store that a cell's page cache could hold; 0 from a cold start."""
    if _in_memory(cell):
        return 1.0
    stored, count = cell.fact("bytes_on_disk"), cell.cell.memory_bytes
    return min(1.0, count / stored) if stored and count else 0.0


def disturbed(cell: CellSummary) -> bool:
    """Return whether other work took the machine's cores in any of a cell's rounds."""
    return any(row["conditions_disturbed"] for row in cell.usable)


def stored_bytes(cell: CellSummary) -> float:
    """Return the bytes on the disk per sample; 0 if unknown."""
    stored, count = cell.fact("bytes_on_disk"), cell.fact("store_count")
    return stored / count if stored and count else 0.0


def _span_s(cell: CellSummary) -> float:
    """Return the time in which one process makes a sample, with its waits for the device."""
    span = sum(cell.per_sample(name) for name in _PRODUCING)
    if not cell.cell.workers:
        span = max(span, cell.per_sample("data_wait_s"))
    return span * cell.cell.ranks


def _cpu_s(cell: CellSummary) -> float:
    """Return the CPU time of the loader per sample; the network's is left out."""
    if cell.cell.compute.kind is ComputeKind.REAL:
        return _span_s(cell)
    return cell.median("whole_cpu_s_per_sample") or _span_s(cell)


def _maps_its_file(cell: CellSummary) -> bool:
    """Return whether a reader maps its file and lets the kernel read ahead: it makes no read calls for samples."""
    of_worker = 1.0 if cell.cell.workers else 0.5
    advised = dict(cell.cell.backend.options).get("readahead") == "off"
    return not advised and _per_sample(cell, "read_calls") < of_worker


def _held(cell: CellSummary) -> Demand:
    """Return the needs of a cell that reads from memory."""
    return Demand(cpu_s=_cpu_s(cell), producing_s=_span_s(cell))


def _per_sample(cell: CellSummary, counter: str) -> float:
    total, samples = cell.median(counter), cell.median("samples")
    return total / samples if total and samples else 0.0


def _requests(cell: CellSummary, read: float) -> float:
    """Return the requests to the device per sample: faults, or read calls where the samples are read by calls."""
    calls = _per_sample(cell, "read_calls") if not cell.cell.workers else 0.0
    stored = stored_bytes(cell)
    missed = min(1.0, read / stored) if stored else 1.0
    return max(_per_sample(cell, "major_faults"), calls * missed, read / REQUEST_BYTES)
