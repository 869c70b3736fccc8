"""A plan as text: a sentence, the target, a table, and how wrong such predictions are."""

import math

from storebench.accelerators import Accelerator
from storebench.planner.errors import GOALS, read_errors
from storebench.planner.measured import Lacking, Measurements, Wanted
from storebench.planner.plan import Plan, StorePlan
from storebench.report.cells import CellSummary
from storebench.report.labels import backend_label, duration, number, percent, size
from storebench.report.roofline import BUSY_FRAC
from storebench.report.tables import Table
from storebench.units import format_duration


def sentence(plan: Plan) -> str:
    """Return which store to use, or what limits the best one."""
    target, choice = plan.target, plan.choice
    words = f"{target.accelerators} x {target.accelerator.device}: {percent(choice.busy)} busy with {choice.label}"
    return (
        f"{words}." if choice.busy >= BUSY_FRAC else f"No store feeds {words}; its limit is {choice.limit}."
    )


def facts(plan: Plan) -> list[str]:
    """Return the target, one line for each part."""
    target = plan.target
    resident = "nothing" if target.other_storage else "all stores"
    held = resident if target.memory_bytes is None else f"at most {target.memory_bytes / 2**30:g} GiB"
    return [
        f"accelerators: {target.accelerator.title} ({target.accelerator.origin})",
        f"they take: {number(target.needed)} images/s",
        f"nodes: {target.nodes}, each with {target.cores} cores and {target.count * target.workers} workers",
        f"in the page cache: {held}",
        f"storage: {'as given, for all nodes' if target.other_storage else 'that of the run, in each node'}",
        f"images: {target.samples:,} of {plan.dataset}",
    ]


def table(plan: Plan) -> Table:
    """Return one row per store, without the columns that are empty."""
    stores = plan.stores
    columns = {
        "store": [store.label for store in stores],
        "images/s": [number(store.images_per_s) for store in stores],
        "90% interval": [f"{number(store.low)}-{number(store.high)}" for store in stores],
        "busy": [percent(store.busy) for store in stores],
        "per epoch" if plan.target.epochs is None else "per epoch, all": [
            ", ".join(_time(hours) for hours in (store.epoch_h, store.total_h) if hours is not None)
            for store in stores
        ],
        "limit, next": [", ".join(filter(None, (store.limit, store.behind))) for store in stores],
        "lifted by": [store.lift for store in stores],
        "epochs to pay": [_pays(store) for store in stores],
    }
    shown = {head: values for head, values in columns.items() if any(values)}
    note = f"epochs to pay: after so many, a conversion to {stores[0].label} has saved its time"
    return Table(
        caption="What each store delivers",
        head=tuple(shown),
        rows=tuple(zip(*shown.values(), strict=True)),
        notes=(note,) if "epochs to pay" in shown else (),
    )


def _time(hours: float) -> str:
    seconds = 3600 * hours
    return duration(seconds) if seconds < 100 else format_duration(seconds)


def _pays(store: StorePlan) -> str:
    return "" if store.pays_after_epochs is None else f"{math.ceil(store.pays_after_epochs):,}"


def sensitivity(plan: Plan) -> Table:
    """Return what the best store delivers if an input is half or twice as large."""
    return Table(
        caption="What the best store delivers if one input changes",
        head=("input", "value", "images/s at half", "images/s at twice", "best store at half, at twice"),
        rows=tuple(
            (
                change.input,
                size(change.value) if change.input == "memory" else f"{change.value:,g}",
                *(number(answer[1]) if answer else "" for answer in (change.half, change.double)),
                ", ".join(dict.fromkeys(answer[0] for answer in (change.half, change.double) if answer)),
            )
            for change in plan.sensitivity
        ),
    )


def errors(plan: Plan) -> list[str]:
    """Return the measured error of each kind of prediction, and what is not real about the cells."""
    known, lines = read_errors(), []
    for kind in dict.fromkeys(kind for store in plan.stores for kind in store.kinds):
        error = known.get(kind)
        words = "not measured" if error is None else percent(error.median_error)
        missed = error is not None and not error.good
        lines.append(f"median error, {kind}: {words}{f' (goal: {GOALS.median:.0%})' if missed else ''}")
    return [*lines, *plan.caveats]


def disk_line(cells: list[CellSummary], backend: str, accelerator: Accelerator) -> str:
    """Return what an accelerator needs of a store from a cold start, and for how many the disk is enough; "" if unknown."""
    measured, rate = Measurements(cells), accelerator.images_per_s
    workers = max((cell.cell.workers for cell in measured.cells if cell.backend == backend), default=0)
    try:
        need = measured.demand(Wanted(backend=backend, workers=workers, resident=0.0))
    except Lacking:
        return ""
    device = measured.device_rate(backend, "best")
    if not need.device_bytes or not math.isfinite(device):
        return ""
    return (
        f"{accelerator.title} needs {number(rate * need.device_bytes / 1e6)} MB/s and {number(rate * need.requests)} reads/s of"
        f" {backend_label(backend)}; this disk gives enough for {number(device / need.device_bytes / rate)} of them."
    )
