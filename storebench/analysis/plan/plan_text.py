"""A plan as text: a sentence, the target, two tables, and how wrong such predictions are."""

import math
from collections.abc import Sequence

from storebench.analysis.choices import TrainingChange
from storebench.analysis.labels import duration, number, percent
from storebench.analysis.limits import BUSY_FRAC
from storebench.analysis.plan.plans import Plan, StorePlan
from storebench.analysis.plan.prediction_errors import read_errors
from storebench.analysis.table import Table
from storebench.units import format_duration, number_of


def sentence(plan: Plan) -> str:
    """Return the store to use, or the limit of the best one."""
    target, choice = plan.target, plan.choice
    accelerators = f"{target.accelerators} x {target.accelerator.device}"
    stored = f"{number(choice.stored_bytes / 1e3)} KB per image"
    words = f"{accelerators}: {_busy(choice)} busy with {choice.label} ({stored})"
    if choice.change is not TrainingChange.NOTHING:
        words += f", but {choice.change}"
    if choice.busy >= BUSY_FRAC:
        return f"{words}."
    told = "No store feeds" if choice.busy_high < BUSY_FRAC else "It is open whether a store feeds"
    return f"{told} {words}; its limit is {choice.limit}."


def _busy(store: StorePlan) -> str:
    low, high = percent(store.busy_low), percent(store.busy_high)
    return high if low == high else f"{low.removesuffix('%')} to {high}"


def facts(plan: Plan) -> list[str]:
    target, profile, ties = plan.target, plan.target.accelerator, len(plan.ties)
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
        f"not told apart from the fastest: {number_of(ties - 1, 'store')}; all are marked =",
    ]


def table(plan: Plan) -> Table:
    stores = plan.stores
    columns: dict[str, Sequence[str]] = {
        "store": [store.label for store in stores],
        "images/s": [f"{'= ' * (store.label in plan.ties)}{number(store.images_per_s)}" for store in stores],
        "busy": [_busy(store).replace(" to ", "-") for store in stores],
        "per epoch": [_time(store.epoch_h) for store in stores if store.total_h is None],
        "all epochs": ["" if store.total_h is None else _time(store.total_h) for store in stores],
        "limit": [store.limit for store in stores],
        "lifted by": [store.lift for store in stores],
        "changes in training": [
            str(store.change)
            for store in stores
            if any(other.change is not TrainingChange.NOTHING for other in stores)
        ],
        "epochs to pay": [
            "" if store.pays_after_epochs is None else f"{math.ceil(store.pays_after_epochs):,}"
            for store in stores
        ],
    }
    shown = {head: values for head, values in columns.items() if any(values)}
    notes = ["busy: a 90% interval; nine of ten such predictions were this wrong at most"]
    if "epochs to pay" in shown:
        notes.append(f"epochs to pay: after so many, a conversion to {plan.conversion} has saved its time")
    return Table(
        caption="What each store delivers",
        head=tuple(shown),
        rows=tuple(zip(*shown.values(), strict=True)),
        notes=tuple(notes),
    )


def load(plan: Plan) -> Table:
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


def errors(plan: Plan) -> list[str]:
    """Return the measured error of each kind of prediction, and what is not real about the cells."""
    measured, lines = read_errors(), []
    for kind in dict.fromkeys(kind for store in plan.stores for kind in store.kinds):
        error = measured.get(kind)
        lines.append(
            f"median error, {kind}: {'not measured' if error is None else percent(error.median_error)}"
        )
    return [*lines, *plan.caveats]
