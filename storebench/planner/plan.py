"""The plan: what each store of a run delivers on a target machine, what limits it, and what lifts the limit."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from storebench.accelerators import Accelerator
from storebench.errors import NotComparableError
from storebench.planner.errors import Kind, read_errors
from storebench.planner.measured import (
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
from storebench.planner.model import Demand, Limit, Node, limits
from storebench.report.cells import MEMORY_FORMAT, CellSummary, backend_rank
from storebench.report.labels import backend_label, caveats, number, place_words, readahead_label, size
from storebench.report.remote import requests_in_flight
from storebench.report.roofline import BUSY_FRAC
from storebench.settings.backend import Backend
from storebench.settings.words import CacheState, ComputeKind, Place

_HOUR = 3600
_INPUTS = {
    "accelerators per node": "count",
    "nodes": "nodes",
    "workers": "workers",
    "cores": "cores",
    "memory": "memory_bytes",
    "storage, bytes/s": "bytes_per_s",
    "storage, requests/s": "requests_per_s",
    "first byte, s": "first_byte_s",
}
"""Field of a target by the name of the input."""
_FASTER = 1.1
"""Another store is worth a conversion from here on."""


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
        """All accelerators."""
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
class StorePlan:
    """What one store delivers to all nodes together."""

    store: str
    place: Place
    """Where it is read."""
    readahead_kib: int | None
    """The read-ahead, where it makes a difference."""
    container: str
    """Its format and codec: backends that share them read the same files."""
    images_per_s: float
    low: float
    high: float
    """Ends of the 90% interval."""
    busy: float
    epoch_h: float
    total_h: float | None
    """Hours of all epochs; the first one reads a store that is not resident."""
    limit: Limit
    behind: Limit | None
    """The second limit."""
    lift: str
    need: Need
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
        if self.place.remote or build_s is None or best.images_per_s < _FASTER * self.images_per_s:
            return self
        return replace(self, pays_after_epochs=build_s / (_HOUR * (self.epoch_h - best.epoch_h)))

    @property
    def label(self) -> str:
        """Its name for people."""
        name = ", ".join(filter(None, (backend_label(self.store), place_words(self.place))))
        if self.readahead_kib is None:
            return name
        return f"{name}, {readahead_label(self.readahead_kib).removeprefix('read-ahead ')} ahead"

    @property
    def in_place(self) -> bool:
        """Whether it is the images as the user has them, so that nothing converts to it."""
        return self.container.startswith("container+") or self.container == "files+original"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What the best store delivers if one input has half or twice its value."""

    input: str
    value: float
    half: tuple[str, float] | None
    """The best store, and its images/s; None if there is no half, or if no cell tells what it would do."""
    double: tuple[str, float] | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one dataset: the stores, best first, what they rest on, and what cells to add, and for what."""

    target: Target
    dataset: str
    stores: tuple[StorePlan, ...]
    conversion: str
    """The fastest store that can be built."""
    sensitivity: tuple[Change, ...]
    caveats: tuple[str, ...]
    lacking: tuple[str, ...]

    @property
    def choice(self) -> StorePlan:
        """The store to use: of those that are about equally fast, what the user has, then plain files."""
        fast = [s for s in self.stores if _FASTER * s.images_per_s >= self.stores[0].images_per_s]
        return min(fast, key=lambda store: (not store.in_place, not store.container.startswith("files+")))


def plan(cells: Iterable[CellSummary], dataset: str | None = None, **target: Any) -> Plan:
    """Return the plan for the dataset with the largest images, or for the one that is named.

    `target` holds the fields of a `Target`; what is missing or None is taken from the run. Raises NotComparableError if
    the cells are of several machines, or tell too little for any store.
    """
    every = list(cells)
    # A mount's file system is part of the environment.
    cells = [cell for cell in every if not (cell.cell.place.mounted or cell.cell.place.folder)] or every
    group = _chosen(cells, dataset)
    planner = _Planner(group, _target(group, target))
    made, lacking = planner.plans()
    if not made:
        raise NotComparableError(
            f"no store can be planned from these cells ({lacking[0] if lacking else 'none has figures'})",
            hint="'storebench bench planner' measures all that a plan needs.",
        )
    best = next((store for store in made if not store.in_place and not store.place.remote), made[0])
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
        first, *more = sorted(resized, key=backend_rank)
        lacking.append(f"{first}{f' and {len(more)} more' if more else ''}: its images have another size")
    noisy = [backend_label(store) for (store, _), own in planner.by_store.items() if any(map(disturbed, own))]
    return Plan(
        target=planner.target,
        dataset=group[0].cell.data.name,
        stores=tuple(store.converted(best) for store in made),
        conversion=best.label,
        sensitivity=tuple(_changes(group, planner.target)),
        caveats=(
            *caveats(planner.measured.cells),
            *(["EMULATED accelerators: loops that slept"] if ComputeKind.EMULATED in handing else []),
            *([f"DISTURBED rounds: {', '.join(noisy)}"] if noisy else []),
        ),
        lacking=tuple(lacking),
    )


def _changes(group: Sequence[CellSummary], target: Target) -> Iterator[Change]:
    """Yield what each input that has a number changes."""

    def best(name: str, value: float) -> tuple[str, float] | None:
        field: dict[str, Any] = {_INPUTS.get(name, name): value}
        if name == "accelerator":
            field = {name: replace(target.accelerator, images_per_s=value)}
        made, _ = _Planner(group, replace(target, **field)).plans()
        return (made[0].label, made[0].images_per_s) if made else None

    given = {name: getattr(target, field) for name, field in _INPUTS.items()}
    for name, value in ({"accelerator": target.accelerator.images_per_s} | given).items():
        if value:
            half = value // 2 if isinstance(value, int) else value / 2
            yield Change(
                input=name,
                value=value,
                half=best(name, half) if half else None,
                double=best(name, 2 * value),
            )


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


class _Planner:
    def __init__(self, group: Sequence[CellSummary], target: Target) -> None:
        self.target, self.measured = target, Measurements(group)
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
        refused: dict[str, list[str]] = {}
        for store, reason in reasons.items():
            if store not in {name for name, _ in self.by_store}:
                refused.setdefault(reason, []).append(store)
        self.unusable = [
            f"{first}{f' and {len(others)} more' if others else ''}: {reason}"
            for reason, (first, *others) in refused.items()
        ]

    def plans(self) -> tuple[list[StorePlan], list[str]]:
        """Return the plans of the stores, best first, and what cells the others lack."""
        made, lacking = list[StorePlan](), [*self.unusable]
        for own in self.by_store.values():
            try:
                made += self.store_plans(own)
            except Lacking as lack:
                lacking.append(str(lack))
        return sorted(made, key=lambda store: -store.images_per_s), lacking

    def store_plans(self, own: Sequence[CellSummary]) -> list[StorePlan]:
        """Return the plan of a store, or one for each read-ahead at which it was measured if they differ in rate."""
        settings = {cell.cell.readahead_kib for cell in own if cell.cell.cache is CacheState.LIMITED}
        if self._resident(own[0]) >= 1 or not settings:
            settings = {None}
        plans = [self._store_plan(own, kib) for kib in sorted(settings, key=lambda kib: kib or 0)]
        rates = [plan.images_per_s for plan in plans]
        return [replace(plans[0], readahead_kib=None)] if max(rates) < _FASTER * min(rates) else plans

    def _store_plan(self, own: Sequence[CellSummary], readahead_kib: int | None) -> StorePlan:
        target, backend, resident = self.target, own[0].cell.backend, self._resident(own[0])
        store, workers = backend.name, self._workers(backend)
        shared, device = target.bytes_per_s or math.inf, self.measured.device_rate(store, "best")
        if (place := asked_place(own[0])).remote:
            device = 1e6 * (own[0].fact("place_emulated_mb_s") or math.inf)
        node = Node(
            cores=target.cores,
            accelerators=target.count,
            samples_per_s=target.accelerator.images_per_s,
            workers=workers,
            bytes_per_s=shared / target.nodes if target.other_storage else device,
            requests_per_s=(target.requests_per_s or math.inf) / target.nodes,
        )
        demand = self._demand(backend, place, readahead_kib, resident)
        found = limits(demand, node)
        alone, rate = node.samples_per_s, target.nodes * min(found.values())
        hours, total_h = target.samples / rate / _HOUR, None
        if target.epochs is not None:
            total_h = target.epochs * hours
            with suppress(Lacking):
                filling = target.nodes * min(
                    limits(self._demand(backend, place, readahead_kib, 0.0), node).values()
                )
                total_h += target.samples / filling / _HOUR - hours
        kinds, busy, need = self._kinds(own, resident), rate / target.needed, self._need(demand, own[0])
        first, *behind = found
        if busy < BUSY_FRAC and first is Limit.ACCELERATORS:
            first, behind = behind[0], [first]
        # Errors of several kinds are taken as independent.
        width = math.hypot(*(self.widths[kind] for kind in kinds))
        built = ((cell.median("build_s"), cell.fact("store_count")) for cell in own)
        times = [seconds / count for seconds, count in built if seconds and count]
        return StorePlan(
            store=store,
            place=place,
            readahead_kib=readahead_kib,
            container=f"{backend.format}+{backend.codec}",
            images_per_s=rate,
            low=rate * math.exp(-width),
            high=min(target.needed, rate * math.exp(width)),
            busy=busy,
            epoch_h=hours,
            total_h=total_h,
            limit=first,
            behind=next(iter(behind), None),
            lift="" if busy >= BUSY_FRAC else _lift(first, need, backend, place),
            need=need,
            build_s=statistics.median(times) * target.samples if times else None,
            kinds=tuple(kinds),
            curve=tuple(
                (each, target.nodes * min(limits(demand, replace(node, samples_per_s=each)).values()))
                for each in (alone * 2.0**power for power in range(-4, 5))
            ),
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
        if not demand.device_bytes or not self.target.other_storage or place.remote:
            return demand
        demand = replace(demand, requests=max(demand.requests, demand.device_bytes / REQUEST_BYTES))
        if self.target.first_byte_s is None:
            return demand
        transfer_s = demand.device_bytes / (self.target.bytes_per_s or math.inf)
        alone_s = demand.device_bytes / self.measured.device_rate(backend.name, "random_1")
        in_flight = max(1.0, alone_s / demand.wait_s) if demand.wait_s else 1.0
        return replace(demand, wait_s=demand.requests * self.target.first_byte_s / in_flight + transfer_s)

    def _kinds(self, own: Sequence[CellSummary], resident: float) -> list[Kind]:
        """Return in what the prediction differs from the cells."""
        target, workers = self.target, self._workers(own[0].cell.backend)
        limited = any(cell.cell.cache is CacheState.LIMITED for cell in own)
        asked, resident = asked_place(own[0]).remote, 1.0 if asked_place(own[0]).remote else resident
        differs = {
            Kind.ACCELERATOR_LOOP: not target.workers,
            Kind.ACCELERATOR_WORKERS: bool(target.workers),
            Kind.WORKERS: all(cell.cell.workers != workers for cell in own)
            or all(cell.fact("conditions_cores") != target.cores for cell in own),
            Kind.RANKS: target.count > 1,
            Kind.MEMORY: 0 < resident < 1 and limited,
            Kind.MEMORY_OF_DEVICE: 0 < resident < 1 and not limited,
            Kind.COLD: resident <= 0,
            Kind.DEVICE: resident < 1 and target.other_storage,
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
