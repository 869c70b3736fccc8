"""The plan for a loop that was profiled: what its own loader delivers to other accelerators, and what limits it."""

from collections.abc import Mapping
from typing import Any

from storebench.accelerators import Accelerator
from storebench.analysis.labels import number, percent
from storebench.analysis.plan.model import Demand, Node, limits
from storebench.analysis.table import Table
from storebench.errors import NotComparableError
from storebench.units import number_of, rounded_bytes


def plan_profile(
    profile: Mapping[str, Any],
    accelerator: Accelerator,
    *,
    count: int,
    nodes: int,
    workers: int | None,
    cores: int | None,
    bytes_per_s: float | None,
) -> tuple[str, Table]:
    """Return a sentence, and a table of the rates that the resources permit; `profile` is what its folder holds.

    Its waits for the device stay as they were; `bytes_per_s` is of storage that all nodes share.
    """
    if not profile["total_s"]:
        raise NotComparableError("this profile has too few steps", hint="Profile a longer loop.")
    if not profile["parts_s"] or not profile["batch_size"]:
        raise NotComparableError(
            "this profile did not see the inside of its loader", hint="Profile a DataLoader of torch."
        )
    parts, shares, batch = profile["parts_s"], profile["shares"], profile["batch_size"]
    making_s = (parts["dataset"] + parts["collate"]) / batch
    wait_s = making_s * (shares["reading"] + shares["blocked"])
    producing_s = making_s * shares["on a CPU"]
    node = Node(
        cores=cores or profile["cores"],
        accelerators=count,
        samples_per_s=accelerator.images_per_s,
        workers=profile["workers"] if workers is None else workers,
        **({} if bytes_per_s is None else {"bytes_per_s": bytes_per_s / nodes}),
    )
    demand = Demand(
        cpu_s=max(producing_s, (profile["cpu_s"] or 0.0) / batch if profile["workers"] else 0.0),
        producing_s=producing_s + parts.get("pickling", 0.0) / batch,
        wait_s=wait_s,
        handoff_s=parts.get("receiving", 0.0) / batch,
        device_bytes=(profile["device_bytes"] or 0.0) / batch,
    )
    found = limits(demand, node)
    busy = min(found.values()) / (count * accelerator.images_per_s)
    return (
        f"{nodes * count} x {accelerator.device}: {percent(busy)} busy with this loader; the lowest limit is {next(iter(found))}.",
        Table(
            caption="What each resource permits",
            head=("limit", "images/s"),
            rows=tuple((limit, number(nodes * rate)) for limit, rate in found.items()),
            notes=(
                f"{number_of(node.workers, 'worker')} per accelerator, {node.cores:g} cores per node",
                (
                    f"storage as far as it was read: {rounded_bytes(demand.device_bytes)} per image came from devices"
                    f"{', without a limit unless --read-mb-s gives it' if bytes_per_s is None else ''}"
                ),
                "the error of plans from a profile was not measured",
            ),
        ),
    )
