"""``storebench trace``: write one epoch as a timeline for Perfetto."""

import json
from pathlib import Path
from typing import Annotated

import typer

from storebench.cli.common import exit_codes, put, say


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that 'run' or 'bench' wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("trace.json"),
    cell: Annotated[str | None, typer.Option(help="Backend or cell id. [default: the first cell]")] = None,
) -> None:
    """Write the timeline of one epoch in Chrome's trace format; open it at ui.perfetto.dev."""
    with exit_codes():
        from storebench.fileio.whole_files import write_whole
        from storebench.runs.records import read_records
        from storebench.timeline import choose_record, trace_events

        record = choose_record(read_records(run), cell)
        events = trace_events(record, run)
        write_whole(out, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        put(str(out))
        say(
            f"{record.cell.backend.name}, replicate {record.replicate}, epoch {record.epoch}: {len(events):,} events"
        )
