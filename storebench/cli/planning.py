"""The verb `plan`: what each store delivers on a machine that it was not measured on."""

import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storebench.cli.common import exit_codes, put, put_json, say, write_out
from storebench.cli.options import JsonOption, finite
from storebench.cli.results import drawn
from storebench.errors import UsageError

if TYPE_CHECKING:
    from storebench.planner.plan import Plan


def plan(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs of one machine, as 'bench planner' measures.")
    ],
    accelerator: Annotated[
        str,
        typer.Option(
            metavar="NAME[:MODEL][:COUNT]",
            help="Accelerator, network, and how many each node has ('storebench accelerators' lists them), or NAME=RATE, in"
            " images/s.",
        ),
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Workers of each training process, one per accelerator. [default: the run's]"
        ),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of each node. [default: the run's]")] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            metavar="GiB",
            help="Page cache of each node. [default: enough for the store]",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes with these accelerators.")] = 1,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Images of an epoch. [default: those of the run]")
    ] = None,
    read_mb_s: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            metavar="MB/s",
            help="Storage that all nodes share. [default: the run's, per node]",
        ),
    ] = None,
    iops: Annotated[
        float | None, typer.Option(callback=finite, help="Requests per second of that storage.")
    ] = None,
    first_byte_ms: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, metavar="MS", help="Time to the first byte of a request to it."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of the training.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The run's dataset. [default: the one with the largest images]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict what each store delivers on another machine.

    A plan names what limits each store, and what lifts the limit. The error of such predictions is measured by
    'python -m benchmarks.plan_error', and stands below the table.
    """
    with exit_codes():
        for name, value in (("--read-mb-s", read_mb_s), ("--iops", iops)):
            if value is not None and value <= 0:
                raise UsageError(f"must be more than 0, not {value:g}", where=name)
        from storebench.accelerators import find_accelerator

        counted = re.fullmatch(r"(.+):([1-9][0-9]*)", accelerator.strip())
        profile = find_accelerator(counted[1] if counted else accelerator)
        from storebench.planner.plan import plan as planned
        from storebench.report.analysis import find_runs, load_results
        from storebench.report.cells import summarise

        made = planned(
            [cell for file in find_runs(runs) for cell in summarise(load_results(file))],
            dataset,
            accelerator=profile,
            count=int(counted[2]) if counted else 1,
            workers=workers,
            cores=cores,
            memory_bytes=None if memory is None else memory * 2**30,
            nodes=nodes,
            samples=samples,
            bytes_per_s=None if read_mb_s is None else read_mb_s * 1e6,
            requests_per_s=iops,
            first_byte_s=None if first_byte_ms is None else first_byte_ms / 1e3,
            epochs=epochs,
        )
        if as_json:
            put_json(dataclasses.asdict(made))
        else:
            _show(made)
            for line in made.lacking:
                say(f"not planned: {line}")


def _show(made: "Plan") -> None:
    """Print the store to use, the target, and a table; what is the same for all stores stands above it."""
    from storebench.planner.errors import read_errors
    from storebench.report.labels import number, percent
    from storebench.report.roofline import BUSY_FRAC
    from storebench.report.tables import Table

    target, stores, choice = made.target, made.stores, made.choice
    words = f"{target.accelerators} x {target.accelerator.device}: {percent(choice.busy)} busy with {choice.label}"
    put(f"{words}." if choice.busy >= BUSY_FRAC else f"No store feeds {words}; its limit is {choice.limit}.")
    resident = "nothing" if target.other_storage else "all stores"
    held = resident if target.memory_bytes is None else f"at most {target.memory_bytes / 2**30:g} GiB"
    put(
        f"accelerators: {target.accelerator.title} ({target.accelerator.origin})",
        f"they take: {number(target.needed)} images/s",
        f"nodes: {target.nodes}, each with {target.cores} cores and {target.count * target.workers} workers",
        f"in the page cache: {held}",
        f"storage: {'as given, for all nodes' if target.other_storage else 'that of the run, in each node'}",
        f"images: {target.samples:,} of {made.dataset}",
    )
    columns = {
        "store": [store.label for store in stores],
        "images/s": [number(store.images_per_s) for store in stores],
        "busy": [percent(store.busy) for store in stores],
        "90% interval": [f"{s.low / target.needed:.0%}-{s.high / target.needed:.0%}" for s in stores],
        "h in all": ["" if store.total_h is None else number(store.total_h) for store in stores],
        "limit": [store.limit.value for store in stores],
        "lifted by": [store.lift for store in stores],
        "pays after": [
            "" if store.pays_after_epochs is None else f"{math.ceil(store.pays_after_epochs):,}"
            for store in stores
        ],
    }
    for head in [*columns][2:]:
        value = columns[head][0]
        if (not value or len(stores) > 1) and {*columns[head]} == {value}:
            del columns[head]
            put(*([f"{head}: {value}"] if value else []))
    if "pays after" in columns:
        put(f"pays after: the epochs in which a conversion to {stores[0].label} saves its time")
    rows = tuple(zip(*columns.values(), strict=True))
    write_out(drawn(Table(caption="What each store delivers", head=tuple(columns), rows=rows)))
    errors = read_errors()
    for kind in dict.fromkeys(kind for store in stores for kind in store.kinds):
        error = percent(errors[kind].median_error) if kind in errors else "not measured"
        put(f"median error, {kind}: {error}")
    put(*made.caveats)
