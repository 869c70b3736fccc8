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
    from storebench.accelerators import Accelerator
    from storebench.planner.plan import Plan, StorePlan, Target

_MOST_ACCELERATORS = 1_000_000


def plan(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs of one machine, as 'bench planner' measures.")
    ],
    accelerator: Annotated[
        str,
        typer.Option(
            metavar="NAME[:COUNT]",
            help="Accelerator, and how many of them each node has; one that is not listed: NAME=RATE, in images/s.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="The network; 'storebench accelerators' lists them.")
    ] = None,
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
    'python -m benchmarks.plan_error', and stands beside each of them.
    """
    with exit_codes():
        for name, value in (("--read-mb-s", read_mb_s), ("--iops", iops)):
            if value is not None and value <= 0:
                raise UsageError(f"must be more than 0, not {value:g}", where=name)
        found, count = _accelerators(accelerator, model)
        from storebench.planner.plan import Target
        from storebench.planner.plan import plan as planned
        from storebench.report.analysis import find_runs, load_results
        from storebench.report.cells import summarise

        target = Target(
            accelerator=found,
            count=count,
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
        cells = [cell for file in find_runs(runs) for cell in summarise(load_results(file))]
        made = planned(cells, target, dataset)
        if as_json:
            put_json(dataclasses.asdict(made))
            return
        put(made.sentence, *_conditions(made))
        _tables(made)
        for line in made.lacking:
            say(f"not planned: {line}")


def _accelerators(text: str, model: str | None) -> "tuple[Accelerator, int]":
    """Return the accelerator and the count that ``NAME[:COUNT]`` means."""
    from storebench.accelerators import find_accelerator

    name, count = text.strip(), 1
    if match := re.fullmatch(r"(.+):(-?\d+)", name):
        name, count = match[1], int(match[2])
    if not 1 <= count <= _MOST_ACCELERATORS:
        raise UsageError(
            f"{count} is no number of accelerators", where="--accelerator", hint="Write NAME or NAME:COUNT."
        )
    if model is not None and ":" not in name and "=" not in name:
        name = f"{name}:{model}"
    return find_accelerator(name), count


def _conditions(made: "Plan") -> list[str]:
    """Return the target, one fact per line."""
    target = made.target
    return [
        f"accelerators: {target.accelerators} x {target.accelerator.title} ({target.accelerator.origin})",
        f"takes: {target.needed:,.0f} images/s",
        f"nodes: {target.nodes}, each with {target.cores} cores, {target.count * (target.workers or 0)} workers, {_memory(target)}",
        f"storage: {_storage(target)}",
        f"images: {target.samples:,} of {made.dataset}",
    ]


def _memory(target: "Target") -> str:
    if target.memory_bytes is None:
        return "nothing resident" if target.other_storage else "all resident"
    return f"{target.memory_bytes / 2**30:g} GiB of page cache"


def _storage(target: "Target") -> str:
    if not target.other_storage:
        return "the run's device in each node"
    known = []
    if target.bytes_per_s is not None:
        known.append(f"{target.bytes_per_s / 1e6:,g} MB/s")
    if target.requests_per_s is not None:
        known.append(f"{target.requests_per_s:,g} requests/s")
    if target.first_byte_s is not None:
        known.append(f"{target.first_byte_s * 1e3:g} ms to the first byte")
    return ", ".join(known) + " for all nodes"


def _tables(made: "Plan") -> None:
    from storebench.report.tables import Table

    in_all = made.target.epochs is not None
    heads = ("store", "images/s", "90% interval", "busy", "h per epoch", *(["h in all"] if in_all else []))
    rows = [
        (
            store.store,
            _figure(store.images_per_s),
            "-"
            if store.low is None or store.high is None
            else f"{_figure(store.low)} to {_figure(store.high)}",
            f"{store.busy:.0%}",
            _figure(store.epoch_h),
            *([_figure(store.total_h or 0.0)] if in_all else []),
            store.limit.value,
            store.behind.value if store.behind else "-",
            store.error,
        )
        for store in made.stores
    ]
    delivers = Table(
        caption="What each store delivers", head=(*heads, "limit", "behind it", "error"), rows=tuple(rows)
    )
    needs = Table(
        caption="What lifts the limit, and what each store needs to keep the accelerators 90% busy",
        head=(
            *("store", "lifted by", "cores", "workers each", "MB/s", "requests/s", "GiB resident"),
            *("convert to", "rests on"),
        ),
        rows=tuple(map(_needs, made.stores)),
    )
    write_out(drawn(delivers))
    write_out(drawn(needs))


def _needs(store: "StorePlan") -> tuple[str, ...]:
    need = store.need

    def known(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    pays = store.pays_after_epochs
    return (
        store.store,
        store.lift or "-",
        known(need.cores),
        known(need.workers),
        known(None if need.bytes_per_s is None else need.bytes_per_s / 1e6),
        known(need.requests_per_s),
        _figure(need.resident_bytes / 2**30),
        "-" if pays is None else f"{store.convert_to}, pays after {math.ceil(pays):,} epochs",
        store.rests_on or "measured",
    )


def _figure(value: float) -> str:
    """Return a figure with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
