"""The plan: what each store of a run delivers on a target machine, what limits it, and what lifts the limit."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storebench.accelerators import Accelerator
from storebench.analysis.labels import backend_label, caveats, number, place_words, readahead_label, size
from storebench.analysis.plan.errors import Kind, read_errors
from storebench.analysis.plan.measured import (
    REQUEST_BYTES,
    Lacking,
    Measurements,
    Wanted,
    asked_place,
    disturbed,
    pooled,
    stored_bytes,
    why_not,
)
from storebench.analysis.plan.model import Demand, Limit, Node, limits, missing_shares
from storebench.analysis.remote import requests_in_flight
from storebench.analysis.roofline import BUSY_FRAC
from storebench.analysis.summary import MEMORY_FORMAT, CellSummary, backend_rank
from storebench.errors import NotComparableError
from storebench.settings.backend import Backend
from storebench.settings.words import CacheState, ComputeKind, Place

_HOUR = 3600
_FASTER = 1.1
"""Another store is worth a conversion from here on."""
_SMALL = 1e-9
"""Share of a store in a page cache that holds nearly nothing."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machines to plan for; cores, memory and accelerators are those of each node."""

    accelerator: Accelerator
    workers: int
    """Workers of each training process; there is one process per accelerator."""
    cores: int
    samples: int
    count: int = 1
    nodes: int = 1
    memory_bytes: float | None = None
    """Page cache; None if it holds the store."""
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
        return self.nodes * self.count

    @property
    def needed(self) -> float:
        """Images per second that all accelerators take."""
        return self.accelerators * self.accelerator.images_per_s


@dataclass(frozen=True, kw_only=True)
class Need:
    """What keeps the accelerators busy for `BUSY_FRAC` of their time, or of what the handoff leaves of it.

    Of a node, a process, the storage, and a node.
    """

    cores: int
    workers: int
    bytes_per_s: float
    requests_per_s: float
    requests_in_flight: int
    """Of a process that asks a server; 0 for any other."""
    resident_bytes: float


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What accelerators that never wait ask of the storage while nothing is in memory."""

    bytes_per_image: float
    """Bytes that the storage delivers, with what the reader reads beside the image."""
    bytes_per_s: float
    requests_per_s: float
    opens_per_s: float
    """Files that are opened; 0 where many images are in one."""


@dataclass(frozen=True, kw_only=True)
class StorePlan:
    """What one store delivers to all nodes together."""

    store: str
    place: Place
    readahead_kib: int | None
    """The read-ahead, where it makes a difference."""
    container: str
    """Its format and codec: backends that share them read the same files."""
    stored_bytes: float
    images_per_s: float
    """Over all epochs, or over one after many if their number is open."""
    low: float
    high: float
    busy: float
    busy_low: float
    busy_high: float
    first_h: float
    epoch_h: float
    """Hours of the first planned epoch, and of the last."""
    total_h: float | None
    limit: Limit
    behind: Limit | None
    lift: str
    need: Need
    asked: Asked
    build_s: float | None
    pays_after_epochs: float | None = None
    """Epochs after which a conversion to the fastest store that can be built saves time; None if it does not."""
    kinds: tuple[Kind, ...]
    """In what the prediction differs from the cells."""
    curve: tuple[tuple[float, float], ...]
    """The rate of one accelerator, and what the store would deliver to so many of that rate."""

    def converted(self, best: "StorePlan") -> "StorePlan":
        """Return it with the epochs after which a conversion to the fastest store pays, if that is worth it."""
        build_s = 0.0 if self.container == best.container else best.build_s
        if self.place.remote or build_s is None or best.epoch_h * _FASTER > self.epoch_h:
            return self
        return replace(self, pays_after_epochs=build_s / (_HOUR * (self.epoch_h - best.epoch_h)))

    @property
    def load(self) -> tuple[float, bool]:
        """What it asks of the storage, the least first; plain files are the simpler store."""
        return self.asked.bytes_per_s, not self.container.startswith("files+")

    def is_tied(self, best: "StorePlan") -> bool:
        """Return whether the errors of both predictions permit it to be as fast as the fastest."""
        width = math.hypot(*(math.log(store.images_per_s / store.low) for store in (self, best)))
        return math.log(best.images_per_s / self.images_per_s) - width <= math.log(_FASTER)

    @property
    def label(self) -> str:
        name = ", ".join(filter(None, (backend_label(self.store), place_words(self.place))))
        if self.readahead_kib is None:
            return name
        return f"{name}, {readahead_label(self.readahead_kib).removeprefix('read-ahead ')} ahead"

    @property
    def in_place(self) -> bool:
        """Whether it is the images as the user has them, so that nothing converts to it."""
        return self.container.startswith("container+") or self.container == "files+original"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one dataset: the stores, best first, what they rest on, and what cells to add, and for what."""

    target: Target
    dataset: str
    image_shape: str
    readaheads_kib: tuple[int, ...]
    """The read-aheads of the machine that was measured."""
    stores: tuple[StorePlan, ...]
    """The fastest first; of those that are about equally fast, the one that asks least of the storage."""
    ties: tuple[str, ...]
    """The stores of which each may be the fastest, by the errors of such predictions."""
    conversion: str
    """The fastest store that can be built."""
    caveats: tuple[str, ...]
    lacking: tuple[str, ...]

    @property
    def choice(self) -> StorePlan:
        """The store to use: of those that are about equally fast, what the user has, then what asks least."""
        return min(_equal(self.stores), key=lambda store: (not store.in_place, store.load))


def _equal(stores: Sequence[StorePlan]) -> list[StorePlan]:
    """Return the stores that are about as fast as the fastest."""
    most = max(store.images_per_s for store in stores)
    return [store for store in stores if _FASTER * store.images_per_s >= most]


def _ordered(stores: Sequence[StorePlan]) -> Iterator[StorePlan]:
    while stores:
        equal = _equal(stores)
        yield from sorted(equal, key=lambda store: store.load)
        stores = [store for store in stores if store not in equal]


def plan(cells: Iterable[CellSummary], dataset: str | None = None, **target: Any) -> Plan:
    """Return the plan for the dataset with the largest images, or for the one that is named.

    `target` holds the fields of a `Target`; what is missing or None is taken from the run. Raises NotComparableError if
    the cells are of several machines, or tell too little for any store.
    """
    every = list(cells)
    # A mount's file system is part of the environment.
    cells = [cell for cell in every if not (cell.cell.place.mounted or cell.cell.place.folder)] or every
    group = _chosen(cells, dataset)
    planner = _Planner(group, _target(group, target), Measurements(group))
    made, lacking = planner.plans()
    if not made:
        raise NotComparableError(
            f"no store can be planned from these cells ({lacking[0] if lacking else 'none has figures'})",
            hint="'storebench bench planner' measures all that a plan needs.",
        )
    best = next((store for store in made if not store.in_place and not store.place.remote), made[0])
    fastest = max(made, key=lambda store: store.images_per_s)
    handing = {cell.cell.compute.kind for cell in planner.measured.cells if cell.cell.workers}
    if planner.target.workers and handing <= {ComputeKind.NONE}:
        lacking.append(
            'handoff beside an accelerator: add cells with workers = 2 and compute = "emulated:10"'
        )
    if len(cells) < len(every):
        lacking.append("cells at mounted places: plan from a run of that place alone")
    mine, name = {cell.backend for cell in group}, group[0].cell.data.name
    resized = {cell.backend for cell in cells if cell.cell.data.name == name and not cell.is_null} - mine
    if resized:
        lacking.append(_without(sorted(resized, key=backend_rank), "its images have another size"))
    by_label = [(backend_label(store), own) for (store, _), own in planner.by_store.items()]
    wrong = [label for label, own in by_label if any(cell.invalid for cell in own)]
    noisy = [label for label, own in by_label if any(map(disturbed, own))]
    from_disk = [
        c for c in planner.measured.cells if c.median("device_read_bytes") and not asked_place(c).remote
    ]
    readaheads = (cell.cell.readahead_kib or cell.fact("machine_readahead_kib") for cell in from_disk)
    return Plan(
        target=planner.target,
        dataset=group[0].cell.data.name,
        image_shape=next((str(shape) for cell in group if (shape := cell.fact("store_image_shape"))), ""),
        readaheads_kib=tuple(sorted({*filter(None, readaheads)})),
        stores=tuple(store.converted(best) for store in made),
        ties=tuple(store.label for store in made if store.is_tied(fastest)),
        conversion=best.label,
        caveats=(
            *caveats(planner.measured.cells),
            *(["EMULATED accelerators: loops that slept"] if ComputeKind.EMULATED in handing else []),
            *([f"INVALID records: {', '.join(wrong)}"] if wrong else []),
            *([f"DISTURBED rounds: {', '.join(noisy)}"] if noisy else []),
        ),
        lacking=tuple(lacking),
    )


def _without(stores: Sequence[str], reason: str) -> str:
    more = f" and {len(stores) - 1} more" if len(stores) > 1 else ""
    return f"{stores[0]}{more}: {reason}"


def _chosen(cells: Sequence[CellSummary], dataset: str | None) -> list[CellSummary]:
    """Return the cells of one dataset on the one machine."""
    machines = {cell.environment_key for cell in cells}
    if len(machines) > 1:
        raise NotComparableError(
            f"these runs are of {len(machines)} machines", hint="Name runs of one machine."
        )
    groups = [group for group in pooled(cells) if dataset in (None, group[0].cell.data.name)]
    if not groups:
        known = ", ".join(sorted({cell.cell.data.name for cell in cells}))
        raise NotComparableError(f"no cell of {dataset!r} has figures", hint=f"These runs have {known}.")

    def pixels(cell: CellSummary) -> int:
        return math.prod(map(int, str(cell.fact("store_image_shape") or 0).split("x")))

    return max(groups, key=lambda group: (max(map(pixels, group)), len(group)))


def _target(group: Sequence[CellSummary], given: dict[str, Any]) -> Target:
    """Return the target with what it leaves open as it was measured."""
    known = [cell for cell in group if cell.usable]
    loaded = [cell.cell.workers for cell in known if cell.cell.compute.kind is ComputeKind.NONE]
    measured = {
        "workers": max(loaded, default=0),
        "cores": max((int(cell.fact("conditions_cores") or 1) for cell in known), default=1),
        "samples": max((int(cell.fact("store_count") or 0) for cell in known), default=0),
    }
    target = Target(**(measured | {name: value for name, value in given.items() if value is not None}))
    if not target.samples:
        raise NotComparableError("no cell says how many images it read", hint="Name a number: --samples N.")
    return target


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


def _limited_at(own: Iterable[CellSummary]) -> list[int | None]:
    """Return the read-aheads at which a store was read at a memory limit."""
    settings = {cell.cell.readahead_kib for cell in own if cell.cell.cache is CacheState.LIMITED}
    return sorted(settings, key=lambda kib: kib or 0)


class _Planner:
    def __init__(self, group: Sequence[CellSummary], target: Target, measured: Measurements) -> None:
        self.target, self.measured = target, measured
        network = target.accelerator.model.partition("-")[0]
        self.model = network if any(cell.cell.model == network for cell in group) else ""
        errors = read_errors()
        widths = {kind: e.half_width for kind, e in errors.items() if e.half_width is not None}
        self.widths = {kind: widths.get(kind, max(widths.values(), default=math.inf)) for kind in Kind}
        self.by_store: dict[tuple[str, Place], list[CellSummary]] = {}
        reasons = dict[str, str]()
        asked = [(cell.backend, cell.cell.place) for cell in group if cell.cell.place.remote]
        plain = {(backend, place.kind) for backend, place in asked if not place.emulated}
        for cell in sorted(group, key=lambda cell: backend_rank(cell.backend)):
            if cell.is_null or cell.cell.backend.format == MEMORY_FORMAT:
                continue
            server = cell.backend, cell.cell.place.kind
            if target.other_storage and cell.cell.place.emulated and server in plain:
                continue  # what it emulates is not the described storage
            if reason := why_not(cell):
                reasons[cell.backend] = reason
            else:
                self.by_store.setdefault((cell.backend, asked_place(cell)), []).append(cell)
        planned = {name for name, _ in self.by_store}
        self.unusable = {store: reason for store, reason in reasons.items() if store not in planned}

    def plans(self) -> tuple[list[StorePlan], list[str]]:
        """Return the plans of the stores, best first, and what cells the others lack."""
        made, lacking = list[StorePlan](), dict[str, list[str]]()
        for store, reason in self.unusable.items():
            lacking.setdefault(reason, []).append(store)
        for (store, _), own in self.by_store.items():
            try:
                made += self.store_plans(own)
            except Lacking as lack:
                lacking.setdefault(str(lack), []).append(store)
        return list(_ordered(made)), [_without(stores, reason) for reason, stores in lacking.items()]

    def store_plans(self, own: Sequence[CellSummary]) -> list[StorePlan]:
        """Return the plan of a store, or one for each read-ahead at which it was measured if they differ in rate."""
        settings = _limited_at(own)
        if self._resident(own[0]) >= 1 or not settings:
            settings = [None]
        plans = [self._store_plan(own, kib) for kib in settings]
        rates = [plan.images_per_s for plan in plans]
        return [replace(plans[0], readahead_kib=None)] if max(rates) < _FASTER * min(rates) else plans

    def _store_plan(self, own: Sequence[CellSummary], readahead_kib: int | None) -> StorePlan:
        target, backend, place = self.target, own[0].cell.backend, asked_place(own[0])
        node, resident, needs = self._node(own[0]), self._resident(own[0]), self._needs(own, readahead_kib)
        shares = [(target.epochs or 1, 1.0)]
        if not place.remote:
            shares = list(missing_shares(resident, target.nodes, target.epochs))
        epochs = [count for count, _ in shares]

        def of_all(rates: Iterable[float]) -> float:
            """Return the rate of all nodes over all epochs."""
            return target.nodes * statistics.harmonic_mean(list(rates), epochs)

        def delivered(node: Node) -> float:
            return of_all(min(needs.at(share, node)[1].values()) for _, share in shares)

        parts = [needs.at(share, node) for _, share in shares]
        rates, full = [min(found.values()) for _, found in parts], node.accelerators * node.samples_per_s
        most = [found.get(Limit.ACCELERATORS, full) for _, found in parts]
        kinds = [self._kinds(own, resident, missing=share > 0) for _, share in shares]
        # Errors of several kinds are taken as independent.
        off = [math.exp(math.hypot(*(self.widths[kind] for kind in each))) for each in kinds]
        rate, low = of_all(rates), of_all(each / times for each, times in zip(rates, off, strict=True))
        high = of_all(min(end, each * times) for end, each, times in zip(most, rates, off, strict=True))
        busy = rate / target.needed
        # The epochs in which the accelerators wait longest.
        waits = [count * (1 / each - 1 / full) for count, each in zip(epochs, rates, strict=True)]
        demand, found = parts[-1 if busy >= BUSY_FRAC else waits.index(max(waits))]
        first, *behind = found
        need = self._need(demand, own[0])
        built = ((cell.median("build_s"), cell.fact("store_count")) for cell in own)
        times = [seconds / count for seconds, count in built if seconds and count]
        speeds = [node.samples_per_s * 2.0**power for power in range(-4, 5)]
        return StorePlan(
            store=backend.name,
            place=place,
            readahead_kib=readahead_kib,
            container=f"{backend.format}+{backend.codec}",
            stored_bytes=stored_bytes(own[0]),
            images_per_s=rate,
            low=low,
            high=high,
            busy=busy,
            busy_low=low / target.needed,
            busy_high=high / target.needed,
            first_h=target.samples / (target.nodes * rates[0]) / _HOUR,
            epoch_h=target.samples / (target.nodes * rates[-1]) / _HOUR,
            total_h=None if target.epochs is None else target.samples * target.epochs / rate / _HOUR,
            limit=first,
            behind=next(iter(behind), None),
            lift="" if busy >= BUSY_FRAC else _lift(first, need, backend, place),
            need=need,
            asked=self._asked(needs.at(1.0, node)[0] if needs.missing else None, own[0]),
            build_s=statistics.median(times) * target.samples if times else None,
            kinds=tuple(dict.fromkeys(kind for each in kinds for kind in each)),
            curve=tuple((speed, delivered(replace(node, samples_per_s=speed))) for speed in speeds),
        )

    def _node(self, cell: CellSummary) -> Node:
        target, remote = self.target, asked_place(cell).remote
        bytes_per_s = self.measured.device_rate(cell.backend, "best")
        if remote:
            bytes_per_s = 1e6 * (cell.fact("place_emulated_mb_s") or math.inf)
        if target.bytes_per_s or target.requests_per_s or (remote and target.other_storage):
            bytes_per_s = (target.bytes_per_s or math.inf) / target.nodes
        return Node(
            cores=target.cores,
            accelerators=target.count,
            samples_per_s=target.accelerator.images_per_s,
            workers=self._workers(cell.cell.backend),
            bytes_per_s=bytes_per_s,
            requests_per_s=(target.requests_per_s or math.inf) / target.nodes,
        )

    def _needs(self, own: Sequence[CellSummary], readahead_kib: int | None) -> _Needs:
        """Return the needs of a store. Raises `Lacking` if no cell tells one that the plan cannot do without."""
        backend, place, fits = own[0].cell.backend, asked_place(own[0]), self._resident(own[0]) >= 1
        if place.remote:
            return _Needs(held=None, missing=(self._demand(backend, place, None, 0.0),))
        lacks, told = list[Lacking](), dict[tuple[float, int | None], Demand]()
        # What fits into memory needs at most what does not.
        small = [(_SMALL, kib) for kib in (_limited_at(own) if fits else [readahead_kib])]
        for resident, kib in ((1.0, None), *small, *([(0.0, None)] if fits else [])):
            try:
                told[resident, kib] = self._demand(backend, place, kib, resident)
            except Lacking as lack:
                lacks.append(lack)
        held = told.pop((1.0, None), None)
        if (fits and held is None) or not (told or (fits and self.target.epochs is None)):
            raise lacks[0 if fits and held is None else -1]
        return _Needs(held=held, missing=tuple(told.values()))

    def _asked(self, need: Demand | None, cell: CellSummary) -> Asked:
        """Return what is asked of the storage; without a cell that read from it, the least that a reader can."""
        rate, stored = self.target.needed, stored_bytes(cell)
        opens = cell.cell.backend.format == "files" and not asked_place(cell).remote
        read = need.device_bytes if need else stored
        return Asked(
            bytes_per_image=read,
            bytes_per_s=rate * read,
            requests_per_s=rate * (need.requests if need else max(1.0, stored / REQUEST_BYTES)),
            opens_per_s=rate if opens else 0.0,
        )

    def _resident(self, cell: CellSummary) -> float:
        """Return the share of a store that a node's page cache holds: every node reads all of it, shuffled."""
        stored = stored_bytes(cell) * self.target.samples
        if self.target.memory_bytes is None:
            return 0.0 if self.target.other_storage else 1.0
        return min(1.0, self.target.memory_bytes / stored) if stored else 1.0

    def _workers(self, backend: Backend) -> int:
        """Return the workers that a process can use: a store with an order of its own is one stream."""
        return min(self.target.workers, 1) if backend.native_order else self.target.workers

    def _demand(self, backend: Backend, place: Place, readahead_kib: int | None, resident: float) -> Demand:
        """Return the needs on the target's storage: waits become requests one after another, as far as the reader waits."""
        demand = self.measured.demand(
            Wanted(
                backend=backend.name,
                workers=self._workers(backend),
                place=place,
                first_byte_s=self.target.first_byte_s,
                resident=resident,
                readahead_kib=readahead_kib,
                ranks=self.target.count,
                model=self.model,
            )
        )
        if not demand.device_bytes or place.remote:
            return demand
        described = self.target.bytes_per_s or self.target.requests_per_s
        if not described and math.isinf(self.measured.device_rate(backend.name, "best")):
            raise Lacking(
                "no cell has a rate of its device; measure with --cache cold, as 'bench codecs' does, or give --read-mb-s"
            )
        if not self.target.other_storage:
            return demand
        demand = replace(demand, requests=max(demand.requests, demand.device_bytes / REQUEST_BYTES))
        if self.target.first_byte_s is None:
            return demand
        transfer_s = demand.device_bytes / (self.target.bytes_per_s or math.inf)
        alone_s = demand.device_bytes / self.measured.device_rate(backend.name, "random_1")
        in_flight = max(1.0, alone_s / demand.wait_s) if demand.wait_s else 1.0
        return replace(demand, wait_s=demand.requests * self.target.first_byte_s / in_flight + transfer_s)

    def _kinds(self, own: Sequence[CellSummary], resident: float, *, missing: bool) -> list[Kind]:
        """Return in what the prediction of some epochs differs from the cells."""
        target, workers = self.target, self._workers(own[0].cell.backend)
        states = {cell.cell.cache for cell in own}
        asked = asked_place(own[0]).remote
        missing, small = missing and not asked, missing and not asked and resident < 1
        differs = {
            Kind.ACCELERATOR_LOOP: not target.workers,
            Kind.ACCELERATOR_WORKERS: bool(target.workers),
            Kind.WORKERS: all(cell.cell.workers != workers for cell in own)
            or all(cell.fact("conditions_cores") != target.cores for cell in own),
            Kind.RANKS: target.count > 1,
            Kind.MEMORY: small and CacheState.LIMITED in states,
            Kind.MEMORY_OF_COLD: small and CacheState.LIMITED not in states,
            Kind.COLD: missing and not small and CacheState.COLD in states,
            Kind.COLD_OF_DEVICE: missing and not small and CacheState.COLD not in states,
            Kind.DEVICE: missing and target.other_storage,
            Kind.PLACE: asked,
        }
        return [kind for kind, is_so in differs.items() if is_so]

    def _need(self, demand: Demand, cell: CellSummary) -> Need:
        """Return what gives the loading rate that keeps a node's accelerators busy."""
        target, alone = self.target, self.target.accelerator.images_per_s
        taken, wished = target.count / (1 / alone + demand.handoff_s), BUSY_FRAC * target.count * alone
        rate = wished if wished < taken else BUSY_FRAC * taken
        return Need(
            cores=math.ceil(rate * demand.cpu_s / demand.scale),
            workers=math.ceil(rate / target.count * demand.span_s / demand.scale),
            bytes_per_s=target.nodes * rate * demand.device_bytes,
            requests_per_s=target.nodes * rate * demand.requests,
            requests_in_flight=math.ceil(
                BUSY_FRAC * alone * demand.request_s * requests_in_flight(cell) if demand.request_s else 0
            ),
            resident_bytes=stored_bytes(cell) * target.samples,
        )


def _lift(limit: Limit, need: Need, backend: Backend, place: Place) -> str:
    if place.remote and limit is Limit.LATENCY:
        return f"{need.requests_in_flight:,} requests in flight"
    workers = "another reader" if backend.native_order else f"{need.workers:,} workers each"
    memory = "" if place.remote else f" or {size(need.resident_bytes)}"
    return {
        Limit.CORES: f"{need.cores:,} cores",
        Limit.WORKERS: workers,
        Limit.LOOP: "workers",
        Limit.HANDOFF: "larger batches",
        Limit.LATENCY: f"{workers}{memory}",
        Limit.BANDWIDTH: f"{number(need.bytes_per_s / 1e9)} GB/s{memory}",
        Limit.REQUESTS: f"{number(need.requests_per_s)} requests/s{memory}",
    }.get(limit, "")
