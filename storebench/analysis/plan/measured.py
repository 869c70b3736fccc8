"""The needs of a sample, from the cells of a run."""

import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from storebench.analysis.bottleneck import looks_ahead, per_image
from storebench.analysis.limits import Demand, Node, limits
from storebench.analysis.summary import MEMORY_FORMAT, CellSummary
from storebench.formats.remote import RemoteOptions
from storebench.settings.words import LOCAL, CacheState, ComputeKind, Place, Share

# Most bytes of a request: providers of block storage count a larger one as several.
REQUEST_BYTES = 256 << 10

# Share of the store that a node has not yet read, below which it has read all.
_SETTLED = 1e-4


class Lacking(Exception):  # noqa: N818 - no error: the caller decides whether the plan goes on without the store
    """A figure that a store's plan needs and no cell has; the text says which cells to add."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The setting for which the needs of a sample are asked.

    `resident` is the share of the store that the page cache can hold; 0 from a cold start, which keeps what is read.
    """

    backend: str
    workers: int
    place: Place = LOCAL
    first_byte_s: float | None = None  # the server's; None for the measured one
    resident: float = 1.0
    readahead_kib: int | None = None
    ranks: int = 1
    model: str = ""  # the network whose crops and mirrors are part of the needs
    computes: bool = True  # a loop that only waits receives later


def why_not(cell: CellSummary) -> str:
    """Return the reason why a plan cannot use a cell; "" if it can."""
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
        self.demand = functools.cache(self._demand)

    def _demand(self, wanted: Wanted) -> Demand:
        """Return the needs of a sample of a store. Raises `Lacking` if no cell tells them."""
        cells = [c for c in self.cells if c.backend == wanted.backend and asked_place(c) == wanted.place]
        if wanted.place.remote:
            base = _nearest(cells, wanted)
            assert base is not None
            return self._for_loop(_from_server(base, wanted), base, wanted)
        held = [cell for cell in cells if _in_memory(cell)]
        warm = _nearest(held, wanted)
        if wanted.resident >= 1 or any(cell.cell.backend.format == MEMORY_FORMAT for cell in cells):
            if warm is None:
                raise Lacking('add a cell with cache = "warm"')
            return self._for_loop(Demand(cpu_s=_cpu_s(warm), producing_s=_span_s(warm)), warm, wanted)
        base = _nearest(_missing(cells, wanted), wanted)
        if base is not None:
            return self._for_loop(_from_device(base, held, wanted), base, wanted)
        raise Lacking(f'add a cell with cache = "{"limited" if wanted.resident > 0 else "cold"}"')

    def _for_loop(self, demand: Demand, base: CellSummary, wanted: Wanted) -> Demand:
        """Return the needs with the loop's workers, and with a network's crops."""
        workers, sign = base.cell.workers, bool(wanted.workers) - bool(base.cell.workers)
        if sign:
            cpu_s, span_s = self._worker_cost(base, wanted)
            demand = replace(
                demand,
                cpu_s=max(demand.cpu_s + sign * cpu_s, 0.1 * demand.cpu_s),
                producing_s=max(demand.producing_s + sign * span_s, 0.1 * demand.producing_s),
            )
        measured = base.median("samples_per_s")
        # The time in which a loop that computes nothing received a sample of this store, or of any store.
        loading = [c for c in self.cells if c.cell.workers and c.cell.compute.kind is ComputeKind.NONE]
        same = [c for c in loading if c.backend == base.backend and _in_memory(c)]
        waiting_s = statistics.median([c.per_sample("handover_s") for c in same or loading] or [0.0])
        loads = base.cell.compute.kind is ComputeKind.NONE and not base.cell.place.remote
        if workers and wanted.workers and resident_share(base) == wanted.resident and loads and measured:
            node = Node(
                cores=base.fact("conditions_cores") or 1,
                accelerators=base.cell.ranks,
                workers=workers,
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
            statistics.median(min(map(cost, added)) - min(map(cost, without)) for without, added in both)
            for cost in (_cpu_s, _span_s)
        )
        return max(0.0, cpu_s), max(0.0, span_s)

    def device_rate(self, backend: str, pace: str) -> float:
        """Return a rate of the device, at the size of a store's samples if it was measured; else infinity."""
        rates: dict[bool, list[float]] = {True: [], False: []}
        for cell in self.cells:
            if rate := cell.median(f"device_{pace}_bytes_per_s"):
                rates[cell.backend == backend].append(rate)
        return statistics.median(rates[True] or rates[False] or [math.inf])

    @functools.cached_property
    def handoff_s(self) -> float:
        """The least time in which a loop received a sample from a worker: a loop that waits receives late."""
        times = [cell.per_sample("handover_s") for cell in self.cells if cell.cell.workers]
        return min((time for time in times if time > 0), default=0.0)


def pooled(cells: Iterable[CellSummary]) -> list[list[CellSummary]]:
    """Return the cells of the same images on the same machine, whatever part of them was measured."""
    groups: dict[tuple[object, ...], list[CellSummary]] = {}
    for cell in cells:
        data = cell.cell.data
        key = (cell.environment_key, data.name, data.split, data.image_size)
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


def asked_place(cell: CellSummary) -> Place:
    """Return where a cell reads: from the local disk if it copies its store there."""
    return LOCAL if cell.cell.place.copies else cell.cell.place


def _missing(cells: Iterable[CellSummary], wanted: Wanted) -> list[CellSummary]:
    """Return the cells that tell what a sample costs that is not in memory."""
    state = CacheState.COLD if wanted.resident <= 0 else CacheState.LIMITED
    missed = [cell for cell in cells if not _in_memory(cell)]
    same = [c for c in missed if c.cell.cache is state and c.cell.readahead_kib == wanted.readahead_kib]
    if same or state is CacheState.COLD:
        return same
    # A reader that reads no page beside its samples pays for a miss what it pays from a cold start.
    cold = [cell for cell in missed if cell.cell.cache is CacheState.COLD]
    return [cell for cell in cold if cell.cell.backend.format == "files" or looks_ahead(cell)]


def _from_device(base: CellSummary, held: Iterable[CellSummary], wanted: Wanted) -> Demand:
    """Return the needs of a sample if a cell's reads miss as often as wanted; beyond a warm cell's time is a wait."""
    loop = replace(wanted, workers=base.cell.workers, ranks=base.cell.ranks, model="")
    span_s, cpu_s, read = _span_s(base), _cpu_s(base), per_image(base, "device_read_bytes")
    warm = _nearest([cell for cell in held if bool(cell.cell.workers) == bool(loop.workers)], loop)
    producing_s = min(span_s, cpu_s if warm is None else _span_s(warm))
    more = (1 - hit_rate(wanted.resident)) / max(1 - hit_rate(resident_share(base)), 1e-9)
    return Demand(
        cpu_s=cpu_s,
        producing_s=producing_s,
        wait_s=(span_s - producing_s) * more,
        device_bytes=read * more,
        requests=_requests(base) * more,
    )


def _from_server(base: CellSummary, wanted: Wanted) -> Demand:
    """Return the needs of a sample that is asked of a server: first byte and transfer, over the requests in flight."""
    return Demand(
        cpu_s=_cpu_s(base),
        producing_s=base.per_sample("decode_s") + base.per_sample("prep_s"),
        request_s=_request_s(base, wanted.first_byte_s) / requests_in_flight(base),
        device_bytes=per_image(base, "remote_received_bytes"),
        requests=per_image(base, "remote_count"),
    )


def _request_s(cell: CellSummary, first_byte_s: float | None) -> float:
    """Return the time of an image's requests to a server, one after another; 0 where not measured.

    First byte and rate of one request are those that were measured at the place alone, or as given.
    """
    first_ms: float | None = cell.fact("place_first_byte_ms")
    mb_s: float | None = cell.fact("place_mb_s")
    requests, received = per_image(cell, "remote_count"), per_image(cell, "remote_received_bytes")
    if not (first_ms and mb_s and requests and received):
        return 0.0
    first_s = first_ms / 1e3 if first_byte_s is None else first_byte_s
    return requests * first_s + received / mb_s / 1e6


def requests_in_flight(cell: CellSummary) -> int:
    backend = cell.cell.backend
    return RemoteOptions.parse(backend.options, backend.name).inflight


def _nearest(cells: Sequence[CellSummary], wanted: Wanted) -> CellSummary | None:
    def distance(cell: CellSummary) -> tuple[float, ...]:
        fields = cell.cell
        return (
            bool(fields.workers) != bool(wanted.workers),
            fields.model != wanted.model if wanted.model else 0,
            abs(fields.ranks - wanted.ranks),
            (ComputeKind.NONE, ComputeKind.EMULATED, ComputeKind.REAL).index(fields.compute.kind),
            abs(fields.workers - wanted.workers),
            -(cell.median("timed_steps") or 0),
        )

    return min(cells, key=distance, default=None)


def _in_memory(cell: CellSummary) -> bool:
    return cell.cell.cache is CacheState.WARM or cell.cell.backend.format == MEMORY_FORMAT


def resident_share(cell: CellSummary) -> float:
    """Return the share of the store that a cell's page cache could hold; 0 from a cold start."""
    if _in_memory(cell):
        return 1.0
    stored, count = cell.fact("bytes_on_disk"), cell.cell.memory_bytes
    return min(1.0, count / stored) if stored and count else 0.0


def disturbed(cell: CellSummary) -> bool:
    return any(row.record.conditions and row.record.conditions.disturbed for row in cell.usable)


def stored_bytes(cell: CellSummary) -> float:
    stored, count = cell.fact("bytes_on_disk"), cell.fact("store_count")
    return stored / count if stored and count else 0.0


def _span_s(cell: CellSummary) -> float:
    """Return the time in which one process makes a sample, with its waits for the device."""
    span = sum(cell.per_sample(name) for name in ("fetch_s", "decode_s", "prep_s"))
    if not cell.cell.workers:
        span = max(span, cell.per_sample("data_wait_s"))
    return span * cell.cell.ranks


def _cpu_s(cell: CellSummary) -> float:
    """Return the CPU time of the loader per sample; the network's is left out."""
    if cell.cell.compute.kind is ComputeKind.REAL:
        return _span_s(cell)
    return cell.median("whole_cpu_s_per_sample") or _span_s(cell)


def _requests(cell: CellSummary) -> float:
    """Return the requests per sample to the block device; one per missed sample if they were not counted."""
    read, everyones = per_image(cell, "device_read_bytes"), per_image(cell, "block_device_read_bytes")
    if counted := per_image(cell, "block_device_reads"):
        return counted * min(1.0, read / everyones)
    return max(min(1.0, read / (stored_bytes(cell) or math.inf)), read / REQUEST_BYTES)


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
