"""The plan: what each store of a run delivers on a target machine, what limits it, and what lifts the limit."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from storebench.analysis.choices import is_larger, training_change
from storebench.analysis.labels import backend_label, caveats
from storebench.analysis.panels import base_rank, pixels
from storebench.analysis.plan.measured import Lacking, Measurements, asked_place, disturbed, pooled, why_not
from storebench.analysis.plan.plans import Plan, StorePlan, Target, ordered
from storebench.analysis.plan.store_plan import StorePlanner
from storebench.analysis.summary import MEMORY_FORMAT, CellSummary, backend_rank
from storebench.errors import NotComparableError
from storebench.settings.words import ComputeKind, Place


def plan(cells: Iterable[CellSummary], dataset: str | None = None, **target: Any) -> Plan:
    """Return the plan for the dataset with the largest images, or for the one that is named.

    `target` holds the fields of a `Target`; what is missing or None is taken from the run. Raises NotComparableError if
    the cells are of several machines, or tell too little for any store.
    """
    every = list(cells)
    # A mount's file system is part of the environment.
    cells = [cell for cell in every if not cell.cell.place.mounted] or every
    group = _chosen(cells, dataset)
    base = min(group, key=base_rank)
    group += [cell for cell in cells if is_larger(cell, base)]
    planned, measured = _target(group, target), Measurements(group)
    made, lacking = plans(group, planned, measured)
    if not made:
        raise NotComparableError(
            f"no store can be planned from these cells ({lacking[0] if lacking else 'none has figures'})",
            hint="'storebench bench planner' measures all that a plan needs.",
        )
    best = next((store for store in made if not store.in_place and not store.place.remote), made[0])
    fastest = max(made, key=lambda store: store.images_per_s)
    handing = {cell.cell.compute.kind for cell in measured.cells if cell.cell.workers}
    if planned.workers and handing <= {ComputeKind.NONE}:
        lacking.append(
            'handoff beside an accelerator: add cells with workers = 2 and compute = "emulated:10"'
        )
    if len(cells) < len(every):
        lacking.append("cells at mounted places: plan from a run of that place alone")
    mine, name = {cell.backend for cell in group}, base.cell.data.name
    resized = {cell.backend for cell in cells if cell.cell.data.name == name and not cell.is_null} - mine
    if resized:
        lacking.append(_without(sorted(resized, key=backend_rank), "its images have another size"))
    changes = {cell.backend: training_change(cell, base) for cell in group}
    wrong = _labels(cell for cell in measured.cells if cell.invalid)
    noisy = _labels(cell for cell in measured.cells if disturbed(cell))
    return Plan(
        target=planned,
        dataset=name,
        image_shape=next((str(shape) for cell in group if (shape := cell.fact("store_image_shape"))), ""),
        stores=tuple(replace(store.converted(best), change=changes[store.store]) for store in made),
        ties=tuple(store.label for store in made if store.is_tied(fastest)),
        conversion=best.label,
        caveats=(
            *caveats(measured.cells),
            *(["EMULATED accelerators: loops that slept"] if ComputeKind.EMULATED in handing else []),
            *([f"INVALID records: {wrong}"] if wrong else []),
            *([f"DISTURBED rounds: {noisy}"] if noisy else []),
        ),
        lacking=tuple(lacking),
    )


def plans(
    group: Sequence[CellSummary], target: Target, measured: Measurements
) -> tuple[list[StorePlan], list[str]]:
    """Return the plans of the stores, best first, and the reasons why others have none."""
    stores: dict[tuple[str, Place], list[CellSummary]] = {}
    reasons, lacking = dict[str, str](), dict[str, list[str]]()
    asked = [(cell.backend, cell.cell.place) for cell in group if cell.cell.place.remote]
    plain = {(backend, place.kind) for backend, place in asked if not place.emulated}
    for cell in sorted(group, key=lambda cell: backend_rank(cell.backend)):
        server = cell.backend, cell.cell.place.kind
        # What a place emulates is not the described storage.
        is_other = target.other_storage and cell.cell.place.emulated and server in plain
        if cell.is_null or cell.cell.backend.format == MEMORY_FORMAT or is_other:
            continue
        if reason := why_not(cell):
            reasons[cell.backend] = reason
        else:
            stores.setdefault((cell.backend, asked_place(cell)), []).append(cell)
    for store, reason in reasons.items():
        if store not in {name for name, _ in stores}:
            lacking.setdefault(reason, []).append(store)
    made = list[StorePlan]()
    for (store, _), cells in stores.items():
        try:
            made += StorePlanner(cells, target, measured).plans()
        except Lacking as lack:
            lacking.setdefault(str(lack), []).append(store)
    return list(ordered(made)), [_without(names, reason) for reason, names in lacking.items()]


def _labels(cells: Iterable[CellSummary]) -> str:
    return ", ".join(map(backend_label, sorted({cell.backend for cell in cells}, key=backend_rank)))


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
        names = ", ".join(sorted({cell.cell.data.name for cell in cells}))
        raise NotComparableError(f"no cell of {dataset!r} has figures", hint=f"These runs have {names}.")
    return max(groups, key=lambda group: (max(map(pixels, group)), len(group)))


def _target(group: Sequence[CellSummary], given: dict[str, Any]) -> Target:
    """Return the target with what it leaves open as it was measured."""
    cells = [cell for cell in group if cell.usable]
    loaded = [cell.cell.workers for cell in cells if cell.cell.compute.kind is ComputeKind.NONE]
    measured = {
        "workers": max(loaded, default=0),
        "cores": max((int(cell.fact("conditions_cores") or 1) for cell in cells), default=1),
        "samples": max((int(cell.fact("store_count") or 0) for cell in cells), default=0),
    }
    target = Target(**(measured | {name: value for name, value in given.items() if value is not None}))
    if not target.samples:
        raise NotComparableError("no cell says how many images it read", hint="Name a number: --samples N.")
    return target
