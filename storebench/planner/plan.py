"""The plan: what each store of a run delivers on a target machine, what limits it, and what lifts the limit."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from storebench.accelerators import Accelerator
from storebench.errors import NotComparableError
from storebench.planner.errors import Kind, KindError, read_errors
from storebench.planner.measured import (
    SHARPNESS,
    Lacking,
    Measurements,
    Wanted,
    disturbed,
    pooled,
    stored_bytes,
)
from storebench.planner.model import Demand, Limit, Loop, Machine, delivered, limits, second
from storebench.report.cells import MEMORY_FORMAT, CellSummary, backend_rank
from storebench.report.roofline import BUSY_FRAC
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind

_HOUR = 3600
_FASTER = 1.1
"""Another store is worth a conversion from here on."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machines to plan for; None is taken from the run."""

    accelerator: Accelerator
    count: int = 1
    """Accelerators of each node."""
    workers: int | None = None
    """Workers of each training process; there is one process per accelerator."""
    cores: int | None = None
    memory_bytes: float | None = None
    """Page cache of each node; None if it holds the store."""
    nodes: int = 1
    samples: int | None = None
    bytes_per_s: float | None = None
    """Storage that all nodes share; None for the run's own device in each node. The same for the next two."""
    requests_per_s: float | None = None
    first_byte_s: float | None = None
    epochs: int | None = None

    @property
    def other_storage(self) -> bool:
        """Whether the storage is described instead of measured."""
        return not (self.bytes_per_s is self.requests_per_s is self.first_byte_s is None)

    @property
    def accelerators(self) -> int:
        """All accelerators."""
        return self.nodes * self.count

    @property
    def needed(self) -> float:
        """Images per second that all accelerators take."""
        return self.accelerators * self.accelerator.images_per_s


@dataclass(frozen=True, kw_only=True)
class Need:
    """What keeps the accelerators busy for `BUSY_FRAC` of their time, if nothing else limits; None if nothing can."""

    cores: int | None
    """Of each node."""
    workers: int | None
    """Of each training process."""
    bytes_per_s: float | None
    """Of the storage, for all nodes."""
    requests_per_s: float | None
    resident_bytes: float
    """Bytes of the whole store."""


@dataclass(frozen=True, kw_only=True)
class StorePlan:
    """What one store delivers to all nodes together."""

    store: str
    """Its backend, with the read-ahead where that matters."""
    container: str
    """Its format and codec: backends that share them read the same files."""
    images_per_s: float
    low: float | None
    high: float | None
    busy: float
    epoch_h: float
    total_h: float | None
    """Hours of all epochs; the first one reads a store that is not resident."""
    limit: Limit
    behind: Limit | None
    """The limit behind it."""
    lift: str
    need: Need
    convert_to: str | None
    """The fastest other store, if it is worth a conversion."""
    pays_after_epochs: float | None
    build_s: float | None
    error: str
    """The measured error of such predictions."""
    rests_on: str
    """Emulated and synthetic sources, or ""."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one dataset: the stores, best first, and what could not be planned."""

    target: Target
    dataset: str
    sentence: str
    stores: tuple[StorePlan, ...]
    lacking: tuple[str, ...]
    """What cells to add, and for what."""


def plan(cells: Iterable[CellSummary], target: Target, dataset: str | None = None) -> Plan:
    """Return the plan for the dataset with the largest images, or for the one that is named.

    Raises
    ------
    NotComparableError
        The cells are of several machines, or tell too little for any store.
    """
    group = _chosen(list(cells), dataset)
    planner = _Planner(group, _completed(group, target))
    made, lacking = list[StorePlan](), list[str]()
    for store, settings in planner.stores().items():
        try:
            made += _differing(store, [planner.store_plan(store, kib) for kib in settings])
        except Lacking as lack:
            lacking.append(str(lack))
    if not made:
        raise NotComparableError(
            f"no store can be planned from these cells ({lacking[0] if lacking else 'none has figures'})",
            hint="'storebench bench planner' measures all that a plan needs.",
        )
    found = planner.with_conversions(sorted(made, key=lambda store: -store.images_per_s))
    return Plan(
        target=planner.target,
        dataset=group[0].cell.data.name,
        sentence=_sentence(found, planner.target),
        stores=tuple(found),
        lacking=(*lacking, *planner.unknown()),
    )


def _differing(store: str, plans: Sequence[StorePlan]) -> Sequence[StorePlan]:
    """Return the first of a store's plans alone if read-ahead makes no difference to its rate."""
    rates = [plan.images_per_s for plan in plans]
    return [replace(plans[0], store=store)] if max(rates) < _FASTER * min(rates) else plans


def _chosen(cells: Sequence[CellSummary], dataset: str | None) -> list[CellSummary]:
    machines = {cell.environment_key for cell in cells}
    if len(machines) > 1:
        raise NotComparableError(
            f"these runs are of {len(machines)} machines", hint="Name runs of one machine."
        )
    groups = [group for group in pooled(cells) if dataset in (None, group[0].cell.data.name)]
    if not groups:
        known = ", ".join(sorted({cell.cell.data.name for cell in cells}))
        raise NotComparableError(f"no cell of {dataset!r} has figures", hint=f"These runs have {known}.")
    return max(groups, key=lambda group: (_pixels(group), len(group)))


def _pixels(group: Sequence[CellSummary]) -> int:
    shape = next((shape for cell in group if (shape := cell.fact("store_image_shape"))), "0")
    return math.prod(int(side) for side in str(shape).split("x"))


def _completed(group: Sequence[CellSummary], target: Target) -> Target:
    """Return the target with what it leaves open as it was measured."""
    known = [cell for cell in group if cell.usable]
    loaded = [cell.cell.workers for cell in known if cell.cell.compute.kind is ComputeKind.NONE]
    cores = [int(cell.fact("conditions_cores") or 1) for cell in known]
    samples = target.samples or max((int(cell.fact("store_count") or 0) for cell in known), default=0)
    if not samples:
        raise NotComparableError("no cell says how many images it read", hint="Name a number: --samples N.")
    return replace(
        target,
        workers=max(loaded, default=0) if target.workers is None else target.workers,
        cores=target.cores or max(cores),
        samples=samples,
    )


class _Planner:
    def __init__(self, group: Sequence[CellSummary], target: Target) -> None:
        self.group, self.target = group, target
        self.measured = Measurements.of(group)
        network = target.accelerator.model.partition("-")[0]
        self.model = network if any(cell.cell.model == network for cell in group) else ""
        self.errors = read_errors()

    def stores(self) -> dict[str, list[int | None]]:
        """Return each store with the read-aheads at which it was measured, if it does not fit into memory."""
        found: dict[str, list[int | None]] = {}
        cells = [cell for cell in self.measured.cells if cell.cell.backend.format != MEMORY_FORMAT]
        for backend in sorted({cell.backend for cell in cells}, key=backend_rank):
            own = [cell for cell in cells if cell.backend == backend]
            settings = {cell.cell.readahead_kib for cell in own if cell.cell.cache is CacheState.LIMITED}
            if self._resident(own[0]) >= 1 or not settings:
                settings = {None}
            found[backend] = sorted(settings, key=lambda kib: kib or 0)
        return found

    def unknown(self) -> list[str]:
        """Return what figures are missing that no plan fails without."""
        found = []
        if self.target.workers and not any(
            cell.cell.compute.kind is not ComputeKind.NONE for cell in self.measured.handing
        ):
            found.append(
                'handoff beside an accelerator: add cells with workers = 2 and compute = "emulated:10"'
            )
        rate = self.measured.device_rate("", "best")
        if not math.isfinite(rate) and self.target.bytes_per_s is None:
            found.append("MB/s of the device: leave ceilings on, or name them with --read-mb-s")
        return found

    def store_plan(self, store: str, readahead_kib: int | None) -> StorePlan:
        own = [cell for cell in self.measured.cells if cell.backend == store]
        resident = self._resident(own[0])
        demand, resident = self._demand(store, readahead_kib, resident)
        node = self._node(store)
        found = limits(demand, self._loop(), node)
        rate = self._rate(found)
        try:
            first, _ = self._demand(store, readahead_kib, 0.0)
            first_h = self._hours(self._rate(limits(first, self._loop(), node)))
        except Lacking:
            first_h = self._hours(rate)
        kinds = self._kinds(own, resident)
        width, error = self._error(kinds)
        epochs, epoch_h = self.target.epochs, self._hours(rate)
        busy = rate / self.target.needed
        need = self._need(demand, own[0])
        return StorePlan(
            store=store if readahead_kib is None else f"{store}, read-ahead {readahead_kib} KiB",
            container=f"{own[0].cell.backend.format}+{own[0].cell.backend.codec}",
            images_per_s=rate,
            low=None if width is None else rate * math.exp(-width),
            high=None if width is None else min(self.target.needed, rate * math.exp(width)),
            busy=busy,
            epoch_h=epoch_h,
            total_h=None if epochs is None else first_h + (epochs - 1) * epoch_h,
            limit=next(iter(found)),
            behind=second(found),
            lift="" if busy >= BUSY_FRAC else _lift(found, need),
            need=need,
            convert_to=None,
            pays_after_epochs=None,
            build_s=self._build_s(own),
            error=error,
            rests_on=self._rests_on(own),
        )

    def with_conversions(self, stores: Sequence[StorePlan]) -> list[StorePlan]:
        """Add to each store the fastest one, if converting to it saves more time than it takes."""
        best = stores[0]
        return [self._converted(store, best) for store in stores]

    def _converted(self, store: StorePlan, best: StorePlan) -> StorePlan:
        build_s = 0.0 if store.container == best.container else best.build_s
        if build_s is None or best.images_per_s < _FASTER * store.images_per_s:
            return store
        saved_s = _HOUR * (store.epoch_h - best.epoch_h)
        return replace(store, convert_to=best.store, pays_after_epochs=build_s / saved_s)

    def _loop(self) -> Loop:
        return Loop(
            accelerators=self.target.count,
            samples_per_s=self.target.accelerator.images_per_s,
            workers=self.target.workers or 0,
        )

    def _node(self, store: str) -> Machine:
        """Return one node with its share of the storage."""
        cores = float(self.target.cores or 1)
        if not self.target.other_storage:
            return Machine(cores=cores, bytes_per_s=self.measured.device_rate(store, "best"))
        return Machine(
            cores=cores,
            bytes_per_s=(self.target.bytes_per_s or math.inf) / self.target.nodes,
            requests_per_s=(self.target.requests_per_s or math.inf) / self.target.nodes,
        )

    def _rate(self, found: dict[Limit, float]) -> float:
        """Return the rate of all nodes."""
        return self.target.nodes * delivered(found, SHARPNESS)

    def _hours(self, rate: float) -> float:
        return (self.target.samples or 0) / rate / _HOUR

    def _resident(self, cell: CellSummary) -> float:
        """Return the share of a store that a node's page cache holds: every node reads all of it, shuffled."""
        stored = stored_bytes(cell) * (self.target.samples or 0)
        if self.target.memory_bytes is None:
            return 0.0 if self.target.other_storage else 1.0
        return min(1.0, self.target.memory_bytes / stored) if stored else 1.0

    def _demand(self, store: str, readahead_kib: int | None, resident: float) -> tuple[Demand, float]:
        """Return the needs, and the share of the store for which they are known."""
        wanted = Wanted(
            backend=store,
            workers=self.target.workers or 0,
            resident=resident,
            readahead_kib=readahead_kib,
            ranks=self.target.count,
            model=self.model,
        )
        try:
            demand = self.measured.demand(wanted)
        except Lacking as lack:
            if self.target.memory_bytes is not None:
                raise
            try:
                demand, resident = self.measured.demand(replace(wanted, resident=0.0)), 0.0
            except Lacking:
                raise lack from None
        return self._on_storage(store, demand), resident

    def _on_storage(self, store: str, demand: Demand) -> Demand:
        """Return the needs on the target's storage: waits become requests one after another, as far as the reader waits."""
        if not demand.device_bytes or not self.target.other_storage:
            return demand
        transfer_s = demand.device_bytes / (self.target.bytes_per_s or math.inf)
        if self.target.first_byte_s is None:
            return replace(demand, wait_s=max(demand.wait_s, transfer_s))
        alone_s = demand.device_bytes / self.measured.device_rate(store, "random_1")
        in_flight = max(1.0, alone_s / demand.wait_s) if demand.wait_s else 1.0
        return replace(demand, wait_s=demand.requests * self.target.first_byte_s / in_flight + transfer_s)

    def _kinds(self, own: Sequence[CellSummary], resident: float) -> list[Kind]:
        """Return in what the prediction differs from the cells."""
        workers = self.target.workers or 0
        found = [Kind.ACCELERATOR_WORKERS if workers else Kind.ACCELERATOR_LOOP]
        cores = {cell.fact("conditions_cores") for cell in own}
        if workers not in {cell.cell.workers for cell in own} or self.target.cores not in cores:
            found.append(Kind.WORKERS)
        if self.target.count > 1:
            found.append(Kind.RANKS)
        if resident < 1:
            measured = {cell.cell.cache for cell in own}
            known = Kind.MEMORY if CacheState.LIMITED in measured else Kind.MEMORY_OF_DEVICE
            found.append(known if resident > 0 else Kind.COLD)
            if self.target.other_storage:
                found.append(Kind.DEVICE)
        return found

    def _error(self, kinds: Sequence[Kind]) -> tuple[float | None, str]:
        """Return half of the 90% interval on the logarithm, and the largest error of the kinds in words.

        Errors of several kinds are taken as independent. A kind without a width of its own gets the largest one.
        """
        widest = max((e.half_width for e in self.errors.values() if e.half_width is not None), default=None)
        widths = [self._half_width(kind, widest) for kind in kinds]
        unknown = [kind for kind in kinds if kind not in self.errors]
        known = [(self.errors[kind], kind) for kind in kinds if kind in self.errors]
        worst: tuple[KindError, Kind] | None = max(known, key=lambda one: one[0].median_error, default=None)
        words = f"{worst[0].median_error:.0%} ({worst[1]})" if worst else "not measured"
        if unknown:
            words = f"not measured ({unknown[0]})"
        return None if None in widths else math.hypot(*(width or 0.0 for width in widths)), words

    def _half_width(self, kind: Kind, widest: float | None) -> float | None:
        own = self.errors[kind].half_width if kind in self.errors else None
        return widest if own is None else own

    def _need(self, demand: Demand, cell: CellSummary) -> Need:
        rate, scale = self._supply_needed(demand), demand.scale
        each = math.inf if rate is None else rate / self.target.count
        return Need(
            cores=None if rate is None else math.ceil(rate * demand.cpu_s / scale),
            workers=None if rate is None else math.ceil(each * demand.span_s / scale),
            bytes_per_s=None if rate is None else self.target.nodes * rate * demand.device_bytes,
            requests_per_s=None if rate is None else self.target.nodes * rate * demand.requests,
            resident_bytes=stored_bytes(cell) * (self.target.samples or 0),
        )

    def _supply_needed(self, demand: Demand) -> float | None:
        """Return the loading rate of a node whose smooth minimum with the accelerators keeps them busy; None if none does."""
        loop = self._loop()
        taken = loop.accelerators / (1 / loop.samples_per_s + demand.handoff_s)
        wished = BUSY_FRAC * loop.accelerators * loop.samples_per_s
        if taken <= wished:
            return None
        return math.pow(math.pow(wished, -SHARPNESS) - math.pow(taken, -SHARPNESS), -1 / SHARPNESS)

    def _build_s(self, own: Sequence[CellSummary]) -> float | None:
        """Return the seconds to write the store for all samples, from the measured time per sample."""
        times = [
            seconds / count
            for cell in own
            if (seconds := cell.median("build_s")) and (count := cell.fact("store_count"))
        ]
        return statistics.median(times) * (self.target.samples or 0) if times else None

    def _rests_on(self, own: Sequence[CellSummary]) -> str:
        origins = {str(cell.fact("store_origin") or "unknown") for cell in own} - {"real"}
        words = [f"{origin} images" for origin in sorted(origins)]
        if self.target.workers and any(
            cell.cell.compute.kind is ComputeKind.EMULATED for cell in self.measured.handing
        ):
            words.append("emulated handoff")
        if all(cell.cell.cache in BOUNDED_STATES for cell in own):
            words.append("nothing measured in memory")
        if any(map(disturbed, own)):
            words.append("disturbed rounds")
        return ", ".join(words)


def _lift(found: dict[Limit, float], need: Need) -> str:
    """Return what moves the lowest limit but the accelerators' own."""
    limit = next((name for name in found if name is not Limit.ACCELERATORS), Limit.ACCELERATORS)
    if limit is Limit.HANDOFF or need.cores is None or need.workers is None:
        return "larger batches, or another loader"
    match limit:
        case Limit.CORES:
            return f"{need.cores:,} cores"
        case Limit.WORKERS:
            return f"{need.workers:,} workers each"
        case Limit.LOOP:
            return "workers"
        case Limit.LATENCY:
            return f"{need.workers:,} workers each, or memory"
        case Limit.BANDWIDTH:
            return f"{(need.bytes_per_s or 0) / 1e6:,.0f} MB/s, or memory"
        case Limit.REQUESTS:
            return f"{need.requests_per_s:,.0f} requests/s, or memory"
        case _:
            return ""


def _sentence(stores: Sequence[StorePlan], target: Target) -> str:
    """Return the answer in one sentence: of stores that are about equally fast, plain files, if they are among them."""
    fast = [store for store in stores if _FASTER * store.images_per_s >= stores[0].images_per_s]
    best = min(fast, key=lambda store: not store.container.startswith("files+"))
    busy = math.floor(100 * best.busy)
    feeds = f"{best.store} keeps {target.accelerators} {target.accelerator.device} {busy}% busy"
    return (
        f"{feeds}." if best.busy >= BUSY_FRAC else f"No store feeds them: {feeds}; its limit is {best.limit}."
    )
