"""``storebench trace``: write epochs of one or more cells as a timeline for Perfetto."""

import json
from pathlib import Path
from typing import Annotated

import typer

from storebench.cli.common import exit_codes, put, say


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that 'run' or 'bench' wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("trace.json"),
    cell: Annotated[
        list[str] | None,
        typer.Option(
            help="Cell id, or a backend that only one cell has; may be repeated. [default: the first cell]"
        ),
    ] = None,
    replicate: Annotated[
        int | None, typer.Option(min=0, help="Number of the replicate. [default: the first]")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="Number of the epoch. [default: the first]")
    ] = None,
) -> None:
    """Write the timeline of an epoch for Perfetto.

    The file is in Chrome's trace format; open it at ui.perfetto.dev. With several --cell, the cells are shown side by
    side. Beside the spans of each step it holds the payload, the bytes that the device delivered, read calls and faults.
    """
    with exit_codes():
        from storebench.fileio.whole_files import write_whole
        from storebench.runs.records import read_records
        from storebench.timeline import choose_record, trace_events

        records = read_records(run)
        names: list[str | None] = list(dict.fromkeys(cell)) if cell else [None]
        chosen = [choose_record(records, name, replicate=replicate, epoch=epoch) for name in names]
        traces = [trace_events(record, run, number) for number, record in enumerate(chosen, start=1)]
        events = [event for timeline in traces for event in timeline]
        write_whole(out, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        put(str(out))
        for record, timeline in zip(chosen, traces, strict=True):
            say(
                f"cell {record.cell.cell_id}: {record.cell.backend.name}, replicate {record.replicate}, "
                f"epoch {record.epoch}: {len(timeline):,} events"
            )
        cells = len({record.cell.cell_id for record in records})
        if not cell and cells > 1:
            say(f"this is one of {cells} cells; --cell chooses another, and may be repeated")
