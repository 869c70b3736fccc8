"""A plan as text: a sentence, the target, a table, and how wrong such predictions are."""

import math
from collections.abc import Iterator, Sequence

from storebench.accelerators import Accelerator
from storebench.analysis.labels import backend_label, duration, number, percent, readahead_label, size
from storebench.analysis.plan.errors import MEDIAN_GOAL, read_errors
from storebench.analysis.plan.measured import Lacking, Measurements, Wanted
from storebench.analysis.plan.plan import Plan, StorePlan
from storebench.analysis.roofline import BUSY_FRAC
from storebench.analysis.summary import CellSummary
from storebench.analysis.table import Table
from storebench.units import format_duration, number_of


def sentence(plan: Plan) -> str:
    """Return which store to use, or what limits the best one."""
    target, choice = plan.target, plan.choice
    accelerators = f"{target.accelerators} x {target.accelerator.device}"
    words = f"{accelerators}: {_busy(choice)} busy with {choice.label} ({number(choice.stored_bytes / 1e3)} KB per image)"
    if choice.busy >= BUSY_FRAC:
        return f"{words}."
    told = "No store feeds" if choice.busy_high < BUSY_FRAC else "It is open whether a store feeds"
    return f"{told} {words}; its limit is {choice.limit}."


def _busy(store: StorePlan) -> str:
    """Return the 90% interval of the share of the time in which the accelerators are busy."""
    low, high = percent(store.busy_low), percent(store.busy_high)
    return high if low == high else f"{low.removesuffix('%')} to {high}"


def facts(plan: Plan) -> list[str]:
    """Return the target, one line for each part."""
    target, profile = plan.target, plan.target.accelerator
    on_disk = [store for store in plan.stores if not store.place.remote]
    storage = "that of the run, in each node" if on_disk else "the servers of the run"
    held = "all stores" if len(on_disk) == len(plan.stores) else "all stores on a disk"
    if on_disk and target.memory_bytes is not None:
        held = f"at most {target.memory_bytes / 2**30:g} GiB"
    elif target.other_storage or not on_disk:
        held = "nothing"
    return [
        f"accelerators: {', '.join(filter(None, (profile.title, profile.precision)))}",
        f"they take: {number(target.needed)} images/s in all",
        f"source of their rate: {profile.source or 'as given'}",
        f"nodes: {target.nodes}, each with {target.cores} cores and {target.count * target.workers} workers",
        f"in the page cache: {held}",
        f"storage: {'as given, for all nodes' if target.other_storage else storage}",
        f"images: {target.samples:,} of {plan.dataset}, {plan.image_shape or 'of unknown size'}",
        *_reads(plan),
    ]


def _reads(plan: Plan) -> Iterator[str]:
    """Yield what each node reads in each epoch, and with which read-ahead, where it matters."""
    target, ties = plan.target, len(plan.ties)
    if target.nodes > 1 and not all(store.place.remote for store in plan.stores):
        figures = "many epochs later" if target.epochs is None else "over all epochs"
        yield f"reads: another 1/{target.nodes} of the images by each node in each epoch; the figures are those {figures}"
    if target.other_storage and plan.readaheads_kib:
        sizes = ", ".join(readahead_label(kib).removeprefix("read-ahead ") for kib in plan.readaheads_kib)
        yield f"read-ahead: that of the run's machine ({sizes}); the client of other storage has its own"
    yield f"not told apart from the fastest: {number_of(ties - 1, 'store')}; all are marked ="


def table(plan: Plan, *, page: bool = False) -> Table:
    """Return one row per store, without the columns that are empty; those of a page do not fit into 100 letters."""
    stores = plan.stores
    columns: dict[str, Sequence[str]] = {
        "store": [store.label for store in stores],
        "images/s": [f"{'= ' * (store.label in plan.ties)}{number(store.images_per_s)}" for store in stores],
        "busy": [_busy(store).replace(" to ", "-") for store in stores],
        "first epoch": [_time(store.first_h) for store in stores if page],
        "per epoch": [_time(store.epoch_h) for store in stores if page or store.total_h is None],
        "all epochs": ["" if store.total_h is None else _time(store.total_h) for store in stores],
        "limit": [store.limit for store in stores],
        "next limit": [store.behind or "" for store in stores if page],
        "lifted by": [store.lift for store in stores],
        "epochs to pay": [
            "" if epochs is None else f"{math.ceil(epochs):,}"
            for epochs in (store.pays_after_epochs for store in stores)
        ],
    }
    shown = {head: values for head, values in columns.items() if any(values)}
    notes = ["busy: a 90% interval; nine of ten such predictions were this wrong at most"]
    if any(columns["epochs to pay"]):
        notes.append(f"epochs to pay: after so many, a conversion to {plan.conversion} has saved its time")
    return Table(
        caption="What each store delivers",
        head=tuple(shown),
        rows=tuple(zip(*shown.values(), strict=True)),
        notes=tuple(notes),
    )


def load(plan: Plan) -> Table:
    """Return what each store asks of the storage."""
    heads = ("store", "KB/image stored", "KB/image read", "GB/s", "requests/s", "opens/s")
    return Table(
        caption=f"What {number(plan.target.needed)} images/s ask of the storage while nothing is in memory",
        head=heads,
        rows=tuple(
            (
                store.label,
                number(store.stored_bytes / 1e3),
                number(store.asked.bytes_per_image / 1e3),
                number(store.asked.bytes_per_s / 1e9),
                number(store.asked.requests_per_s),
                number(store.asked.opens_per_s),
            )
            for store in plan.stores
        ),
    )


def _time(hours: float) -> str:
    seconds = 3600 * hours
    return duration(seconds) if seconds < 600 else format_duration(seconds)


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
        lines.append(f"median error, {kind}: {words}{f' (goal: {MEDIAN_GOAL:.0%})' if missed else ''}")
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
