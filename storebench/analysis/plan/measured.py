"""The needs of a sample, from the cells of a run."""

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from storebench.analysis.bottleneck import looks_ahead
from storebench.analysis.plan.model import Demand, Node, hit_rate, limits
from storebench.analysis.remote import request_s, requests_in_flight
from storebench.analysis.summary import MEMORY_FORMAT, CellSummary
from storebench.settings.words import LOCAL, CacheState, ComputeKind, Place, Share

REQUEST_BYTES = 256 << 10
"""Most bytes of a request: providers of block storage count a larger one as several."""

_PRODUCING = ("fetch_s", "decode_s", "prep_s")


class Lacking(Exception):  # noqa: N818 - no error: the caller decides whether the plan goes on without the store
    """A figure that a store's plan needs and no cell has; the text says which cells to add."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The setting for which the needs of a sample are asked."""

    backend: str
    workers: int
    place: Place = LOCAL
    """Where it is read."""
    first_byte_s: float | None = None
    """The server's time to the first byte; None for the measured one."""
    resident: float = 1.0
    """Share of the store that the page cache can hold; 0 from a cold start, which keeps what is read."""
    readahead_kib: int | None = None
    ranks: int = 1
    model: str = ""
    """The network whose crops and mirrors are part of the needs; "" for none."""
    served: float = 1.0
    """Share of the samples that an epoch serves."""
    computes: bool = True
    """Whether the loop computes: one that only waits receives later."""


def why_not(cell: CellSummary) -> str:
    """Return why a plan cannot use a cell; "" if it can."""
    if cell.cell.share is not Share.NONE:
        return "read by shared readers"
    if cell.cell.tier is not None:
        return "read from emulated storage"
    if cell.cell.place.remote and not cell.median("remote_count"):
        return "asked by its library's own client, whose requests are not seen"
    return "" if cell.median("samples_per_s") and _span_s(cell) > 0 else "no round has figures"


class Measurements:
    """The cells of one dataset on one machine that a plan may use: those of stores with figures."""

    def __init__(self, cells: Iterable[CellSummary]) -> None:
        self.cells = [cell for cell in cells if not cell.is_null and not why_not(cell)]
        self._demands: dict[Wanted, Demand] = {}

    def demand(self, wanted: Wanted) -> Demand:
        """Return the needs of a sample of a store. Raises `Lacking` if no cell tells them."""
        if wanted not in self._demands:
            self._demands[wanted] = self._demand(wanted)
        return self._demands[wanted]

    def _demand(self, wanted: Wanted) -> Demand:
        own = [
            cell
            for cell in self.cells
            if cell.backend == wanted.backend and asked_place(cell) == wanted.place
        ]
        if wanted.place.remote:
            base = _nearest(own, wanted)
            assert base is not None
            return self._for_loop(_from_server(base, wanted), base, wanted)
        held = [cell for cell in own if _in_memory(cell)]
        warm = _nearest(held, wanted)
        if wanted.resident >= 1 or any(cell.cell.backend.format == MEMORY_FORMAT for cell in own):
            if warm is None:
                raise Lacking('add a cell with cache = "warm"')
            return self._for_loop(Demand(cpu_s=_cpu_s(warm), producing_s=_span_s(warm)), warm, wanted)
        state = CacheState.COLD if wanted.resident <= 0 else CacheState.LIMITED
        missed = [cell for cell in own if not _in_memory(cell)]
        same = [c for c in missed if c.cell.cache is state and c.cell.readahead_kib == wanted.readahead_kib]
        if not same and state is CacheState.LIMITED:
            # A reader that reads no page beside its samples: a miss costs what it does from a cold start.
            exact = [c for c in missed if c.cell.backend.format == "files" or looks_ahead(c)]
            same = [c for c in exact if c.cell.cache is CacheState.COLD]
        base = _nearest(same, wanted)
        if base is None and state is CacheState.LIMITED:
            raise Lacking('add a cell with cache = "limited"')
        if base is None:
            if warm is None:
                raise Lacking('add cells with cache = "warm" and "cold"')
            return self._for_loop(self._read_from_device(warm, wanted), warm, wanted)
        loop = replace(wanted, workers=base.cell.workers, ranks=base.cell.ranks, model="")
        span_s, cpu_s, read = _span_s(base), _cpu_s(base), _per_sample(base, "device_read_bytes")
        warm = _nearest([cell for cell in held if bool(cell.cell.workers) == bool(loop.workers)], loop)
        producing_s = min(span_s, cpu_s if warm is None else _span_s(warm))
        more = (1 - hit_rate(wanted.resident)) / max(1 - hit_rate(resident_share(base)), 1e-9)
        needs = Demand(
            cpu_s=cpu_s,
            producing_s=producing_s,
            wait_s=(span_s - producing_s) * more,
            device_bytes=read * more,
            requests=_requests(base) * more,
        )
        return self._for_loop(needs, base, wanted)

    def _read_from_device(self, warm: CellSummary, wanted: Wanted) -> Demand:
        """Return the needs from a cold start of a store that was measured in memory only, from rates of the device."""
        stored, pace = stored_bytes(warm), "random_1"
        read = stored
        advised = dict(warm.cell.backend.options).get("readahead") == "off"
        calls_of_mapped = 1.0 if warm.cell.workers else 0.5
        if looks_ahead(warm):
            pace = "best"
        elif not advised and _per_sample(warm, "read_calls") < calls_of_mapped:
            # It maps its file, and a fault reads ahead; what is read ahead is used later.
            pace, read = "sequential", stored / wanted.served
        rate = self.device_rate(wanted.backend, pace)
        if not math.isfinite(rate) or not stored:
            raise Lacking('add a cell with cache = "cold"')
        return Demand(
            cpu_s=_cpu_s(warm),
            producing_s=_span_s(warm),
            wait_s=read / rate,
            device_bytes=read,
            requests=max(1.0, read / REQUEST_BYTES),
        )

    def _for_loop(self, demand: Demand, base: CellSummary, wanted: Wanted) -> Demand:
        """Return the needs with the loop's workers, and with a network's crops."""
        own, cpu_s, span_s = base.cell.workers, 0.0, 0.0
        if bool(own) != bool(wanted.workers):
            cpu_s, span_s = self._worker_cost(base, wanted)
            if not wanted.workers:
                cpu_s, span_s = -cpu_s, -span_s
        demand = replace(
            demand,
            cpu_s=max(demand.cpu_s + cpu_s, 0.1 * demand.cpu_s),
            producing_s=max(demand.producing_s + span_s, 0.1 * demand.producing_s),
        )
        measured, waiting_s = base.median("samples_per_s"), self._waiting_handoff_s(base)
        loads = base.cell.compute.kind is ComputeKind.NONE and not base.cell.place.remote
        if own and wanted.workers and resident_share(base) == wanted.resident and loads and measured:
            node = Node(
                cores=base.fact("conditions_cores") or 1,
                accelerators=base.cell.ranks,
                workers=own,
                bytes_per_s=self.device_rate(base.backend, "best"),
            )
            of_base = replace(demand, handoff_s=waiting_s)
            demand = replace(demand, scale=measured / min(limits(of_base, node).values()))
        if wanted.workers:
            demand = replace(demand, handoff_s=self.handoff_s if wanted.computes else waiting_s)
        if wanted.model and base.cell.model != wanted.model:
            trained = [cell for cell in self.cells if cell.cell.model == wanted.model]
            prep_s = [c.per_sample("prep_s") for c in trained if c.cell.compute.kind is ComputeKind.REAL]
            crops_s = max(0.0, statistics.median(prep_s or [0.0]) - base.per_sample("prep_s"))
            demand = replace(demand, cpu_s=demand.cpu_s + crops_s, producing_s=demand.producing_s + crops_s)
        return demand

    def _worker_cost(self, base: CellSummary, wanted: Wanted) -> tuple[float, float]:
        """Return the seconds of CPU, and of the producer, that a worker adds to a sample that loads in the loop."""
        pairs: dict[str, tuple[list[CellSummary], list[CellSummary]]] = {}
        for cell in self.cells:
            alike = asked_place(cell).remote == asked_place(base).remote
            held = _in_memory(cell) or cell.cell.place.remote
            if alike and held and cell.cell.compute.kind is ComputeKind.NONE:
                pairs.setdefault(cell.backend, ([], []))[bool(cell.cell.workers)].append(cell)
        both = [pair for pair in pairs.values() if all(pair)]
        if not both:
            raise Lacking(f"add a cell with workers = {min(2, wanted.workers)}")
        cpu_s, span_s = (
            statistics.median(min(map(cost, more)) - min(map(cost, one)) for one, more in both)
            for cost in (_cpu_s, _span_s)
        )
        return max(0.0, cpu_s), max(0.0, span_s)

    def device_rate(self, backend: str, pace: str) -> float:
        """Return a rate of the device in bytes/s, at the size of a store's samples if it was measured, else infinity."""
        rates: dict[bool, list[float]] = {True: [], False: []}
        for cell in self.cells:
            if rate := cell.median(f"device_{pace}_bytes_per_s"):
                rates[cell.backend == backend].append(rate)
        known = rates[True] or rates[False]
        return statistics.median(known) if known else math.inf

    def _waiting_handoff_s(self, base: CellSummary) -> float:
        """Return the time in which a loop that computes nothing received a sample of a store, or of any store."""
        loading = [c for c in self.cells if c.cell.workers and c.cell.compute.kind is ComputeKind.NONE]
        own = [c for c in loading if c.backend == base.backend and _in_memory(c)]
        return statistics.median([c.per_sample("handover_s") for c in own or loading] or [0.0])

    @functools.cached_property
    def handoff_s(self) -> float:
        """The least time in which a loop received a sample from a worker: a loop that waits receives late."""
        times = [cell.per_sample("handover_s") for cell in self.cells if cell.cell.workers]
        return min((time for time in times if time > 0), default=0.0)


def pooled(cells: Iterable[CellSummary]) -> list[list[CellSummary]]:
    """Return the cells of the same images on the same machine, whatever part of them was measured."""
    groups: dict[tuple[object, ...], list[CellSummary]] = {}
    for cell in cells:
        data, shape = cell.cell.data, cell.fact("store_image_shape")
        key = (cell.environment_key, data.name, data.split, data.image_size, shape)
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


def asked_place(cell: CellSummary) -> Place:
    """Return where a cell reads: from the local disk if it copies its store there."""
    return LOCAL if cell.cell.place.copies else cell.cell.place


def _from_server(base: CellSummary, wanted: Wanted) -> Demand:
    """Return the needs of a sample that is asked of a server: first byte and transfer, over the requests in flight."""
    return Demand(
        cpu_s=_cpu_s(base),
        producing_s=base.per_sample("decode_s") + base.per_sample("prep_s"),
        request_s=request_s(base, wanted.first_byte_s) / requests_in_flight(base),
        device_bytes=_per_sample(base, "remote_received_bytes"),
        requests=_per_sample(base, "remote_count"),
    )


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


def _requests(cell: CellSummary) -> float:
    """Return the requests per sample that the block device completed for a cell; one per missed sample if they were not counted."""
    own, everyones = _per_sample(cell, "device_read_bytes"), _per_sample(cell, "block_device_read_bytes")
    if counted := _per_sample(cell, "block_device_reads"):
        return counted * min(1.0, own / everyones)
    return max(min(1.0, own / (stored_bytes(cell) or math.inf)), own / REQUEST_BYTES)


def _per_sample(cell: CellSummary, counter: str) -> float:
    total, samples = cell.median(counter), cell.median("samples")
    return total / samples if total and samples else 0.0
