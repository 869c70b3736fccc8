"""The verb `plan`: what each store delivers on a machine that it was not measured on."""

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from storebench.cli.arguments import JsonOption, finite
from storebench.cli.output import exit_codes, put, put_json, say, write_out
from storebench.cli.results import drawn
from storebench.errors import UsageError

_real = partial(typer.Option, callback=finite)


def plan(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs of one machine, as 'bench planner' measures.")
    ],
    accelerator: Annotated[
        str,
        typer.Option(
            metavar="NAME[:MODEL][:COUNT]",
            help="Accelerator, network, and how many each node has ('storebench accelerators' lists them), or"
            " NAME=RATE, in images/s.",
        ),
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1024,
            help="Workers of each training process, one per accelerator. [default: the run's]",
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, max=65_536, help="Cores of each node. [default: the run's]")
    ] = None,
    memory: Annotated[
        float | None,
        _real(
            metavar="GiB", help="Page cache of each node. [default: enough for the store]", min=0, max=2**20
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=100_000, help="Nodes with these accelerators.")] = 1,
    samples: Annotated[
        int | None, typer.Option(min=1, max=10**12, help="Images of an epoch. [default: those of the run]")
    ] = None,
    read_mb_s: Annotated[
        float | None,
        _real(metavar="MB/s", help="Storage that all nodes share. [default: the run's, per node]"),
    ] = None,
    iops: Annotated[float | None, _real(help="Requests per second of that storage.")] = None,
    first_byte_ms: Annotated[
        float | None,
        _real(metavar="MS", help="Time to the first byte of a request to it.", min=0, max=60_000),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, max=10**6, help="Epochs of the training.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The run's dataset. [default: the one with the largest images]")
    ] = None,
    allow_invalid: Annotated[
        bool, typer.Option("--allow-invalid", help="Plan from results that do not validate, and name them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict what each store delivers on another machine.

    A plan names what limits each store, and what lifts the limit. The error of such predictions is measured by
    'python -m benchmarks.plan_error', and stands below the table.
    """
    with exit_codes():
        for option, value in (("--read-mb-s", read_mb_s), ("--iops", iops)):
            if value is not None and value <= 0:
                raise UsageError(f"must be more than 0, not {value:g}", where=option)
        from storebench.accelerators import find_accelerator

        accelerator = re.sub(r"^([^=]+):([1-9][0-9]*)(=.+)$", r"\1\3:\2", accelerator.strip())
        counted = re.fullmatch(r"(.+):([1-9][0-9]*)", accelerator)
        name, count = (counted[1], int(counted[2])) if counted else (accelerator, 1)
        profile = find_accelerator(name)
        from storebench.analysis.checks.records import read_results
        from storebench.analysis.plan.plan import plan as planned
        from storebench.analysis.plan.plan_text import errors, facts, load, sentence, table

        made = planned(
            read_results(runs, allow_invalid=allow_invalid).cells_by_run,
            dataset,
            accelerator=profile,
            count=count,
            nodes=nodes,
            workers=workers,
            cores=cores,
            bytes_per_s=None if read_mb_s is None else read_mb_s * 1e6,
            memory_bytes=None if memory is None else memory * 2**30,
            samples=samples,
            requests_per_s=iops,
            first_byte_s=None if first_byte_ms is None else first_byte_ms / 1e3,
            epochs=epochs,
        )
        if as_json:
            put_json({"answer": sentence(made), "choice": made.choice.label, **dataclasses.asdict(made)})
            return
        put(sentence(made), *facts(made))
        stores = table(made)
        write_out(drawn(stores))
        put(*stores.notes)
        write_out(drawn(load(made)))
        put(*errors(made))
        for line in made.lacking:
            say(f"not planned: {line}")
