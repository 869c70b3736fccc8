"""Verbs of results: report, export, trace, check, share and validate."""

import dataclasses
import io
import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench import errors
from storebench.cli.arguments import JsonOption, ResultsArgument, accelerator_option
from storebench.cli.output import exit_codes, put, put_json, say, write_out, writes_into
from storebench.plain_text import markdown as escaped
from storebench.plain_text import plain
from storebench.units import number_of

if TYPE_CHECKING:
    from storebench.accelerators import Accelerator
    from storebench.analysis.answer import Answer
    from storebench.analysis.checks.records import Results
    from storebench.analysis.table import Table
    from storebench.report.build import Report
    from storebench.report.content import Content


def report(
    results: ResultsArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("report"),
    allow_invalid: Annotated[
        bool, typer.Option("--allow-invalid", help="Report results that do not validate, and mark them.")
    ] = False,
    accelerators: Annotated[
        list[str] | None,
        accelerator_option("Mark this accelerator on the roofline, and say which stores feed it"),
    ] = None,
    plots: Annotated[
        bool, typer.Option("--plots", help="Write each plot of the page as an SVG and a PNG file as well.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write tables, plots and a page from results."""
    with exit_codes():
        from storebench.accelerators import find_accelerator

        named = [find_accelerator(name) for name in accelerators or ()]
        from storebench.report.build import write_report

        writes_into(out)
        written = write_report(results, out, allow_invalid=allow_invalid, accelerators=named, plots=plots)
        if as_json:
            put_json(as_dict(written))
            return
        put_content(written.content)
        say(f"page: {written.files[0]}")


def put_content(content: "Content", stores: Path | None = None) -> None:
    """Print the answer of a report, its matrix of stores by settings, and what would change the answer."""
    from storebench.report.tables import copies_pay

    told = content.answer
    put(told.sentence, *filter(None, (told.conditions,)), *content.incomplete)
    chose_itself = told.base is not None and told.base.whole is not None
    overview = None if chose_itself and told.table else content.overview or next(iter(content.tables), None)
    requests = content.more("requests")
    noted = [(table, table.notes) for table in (*content.more("order"), *requests)]
    plain_ones = [(table, ()) for table in (*content.beside, overview, *content.feeding[:1])]
    for table, notes in ((told.table if chose_itself else None, told.lines), *plain_ones, *noted):
        if table is not None:
            put("")
            write_out(drawn(table))
        put(*notes)
    if not requests:
        put(*copies_pay(content.cells))
    if told.changes:
        put("", "What would change this:", *(f"- {text}" for text in told.changes))
    put(*content.caveats)
    if told.command:
        out = f" --out {shlex.quote(str(stores))}" if stores else ""
        put("To convert all images:", f"  {told.command}{out}")
    if content.accelerators and not content.feeding:
        say("--accelerator: no cell only loads, so nothing is known about it; run cells with compute none")
    for count, kind in (
        (len(content.failed), "failed"),
        (sum(bool(c.invalid) for c in content.cells), "did not validate"),
    ):
        if count:
            say(f"warning: {number_of(count, 'cell')} {kind}")


def print_summary(
    results: "Results", named: Sequence["Accelerator"] = (), stores: Path | None = None
) -> None:
    from storebench.report.content import content_of

    content = content_of(results, named)
    put_content(content, stores)
    told = content.answer
    if told.base is None or told.base.whole is None:
        for table in () if content.more("requests") or content.beside else content.io:
            write_out(drawn(table))
            put(*table.notes)
    if short := [int(cell.fact("store_count") or 0) for cell in content.cells if cell.whole_only]:
        say(f"too few steps in the requested state for a rate; use --size {2 * max(short)}")


def so_far(run: Path) -> tuple[str, str]:
    """Return the answer of an unfinished run, and its stores by settings as text."""
    from storebench.analysis.checks.records import read_results
    from storebench.record.lines import RECORDS_NAME
    from storebench.report.content import content_of
    from storebench.report.text import text

    content = content_of(read_results(run / RECORDS_NAME, allow_invalid=True))
    overview = content.overview
    return content.answer.sentence, text(overview, shutil.get_terminal_size().columns) if overview else ""


def listed(tables: Iterable["Table"]) -> list[dict[str, Any]]:
    """Return tables as JSON has them."""
    return [
        {"caption": table.caption, "rows": [dict(zip(table.raw_head, row, strict=True)) for row in table.raw]}
        for table in tables
    ]


def as_dict(written: "Report") -> dict[str, Any]:
    content, told = written.content, written.content.answer
    return {
        **_told(told),
        "machines": {machine: _told(each) for machine, each in told.machines.items()},
        "caveats": list(content.caveats),
        "accelerators": listed(content.feeding),
        "beside": listed(content.beside),
        "commands": list(content.commands),
        "incomplete": list(content.incomplete),
        "failed_cells": len(content.failed),
        "invalid_cells": sum(bool(cell.invalid) for cell in content.cells),
        "tables": listed(content.tables),
        "files": [str(path) for path in written.files],
    }


def _told(told: "Answer") -> dict[str, Any]:
    return {
        "answer": told.sentence,
        "conditions": told.conditions,
        "base": told.base and told.base.backend,
        "choice": told.choice and told.choice.backend,
        "best": told.best and told.best.cell.backend,
        "verdict": str(told.verdict),
        "ratio": told.ratio and {"mid": told.ratio.mid, "low": told.ratio.low, "high": told.ratio.high},
        "choices": listed([told.table])[0]["rows"] if told.table else [],
        "lines": list(told.lines),
        "changes": list(told.changes),
        "command": told.command,
    }


def drawn(table: "Table") -> str:
    """Return a table as text that is as wide as the terminal, or as a log."""
    from storebench.report.text import text

    return text(table, shutil.get_terminal_size().columns if sys.stdout.isatty() else 100)


def export(
    results: ResultsArgument,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write a CSV file. [default: CSV on standard output]")
    ] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write a Parquet file.")] = None,
) -> None:
    """Write all records as one flat table, CSV or Parquet.

    There is one row per record (one epoch of one replicate of one cell) and one column per figure, with its unit in its
    name: the table that 'storebench.load_results' returns. Lists are JSON. What was not measured is empty.
    """
    with exit_codes():
        from pandas.api.types import is_numeric_dtype

        from storebench.analysis.frame import RECORD_COLUMN
        from storebench.analysis.runs import load_results
        from storebench.system.whole_files import write_whole

        table = load_results(results).drop(columns=RECORD_COLUMN)
        texts = table.columns[[not is_numeric_dtype(table[name]) for name in table.columns]]

        def text(value: Any) -> str:
            return plain(value) if isinstance(value, str) else json.dumps(value, default=dataclasses.asdict)

        table = table.assign(**{name: table[name].map(text, na_action="ignore") for name in texts})
        if csv is not None:
            write_whole(csv, table.to_csv(index=False, lineterminator="\n"))
        if parquet is not None:
            content = io.BytesIO()
            # Columns of nothing but missing texts are texts, too.
            table.astype(dict.fromkeys(texts, "string")).to_parquet(content, index=False)
            write_whole(parquet, content.getvalue())
        if csv is None and parquet is None:
            write_out(table.to_csv(index=False, lineterminator="\n"))
        size = f"{number_of(len(table), 'record')}, {number_of(len(table.columns), 'column')}"
        for path in filter(None, (csv, parquet)):
            say(f"{path}: {size}")


def trace(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A folder that 'run', 'bench' or 'profile' wrote.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("trace.json"),
    cell: Annotated[
        str | None,
        typer.Option(help="Cell id, or a backend that only one cell has. [default: the first cell]"),
    ] = None,
    replicate: Annotated[
        int | None, typer.Option(min=0, help="Number of the replicate. [default: the first]")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="Number of the epoch. [default: the first]")
    ] = None,
) -> None:
    """Write the timeline of an epoch for Perfetto.

    The file is in Chrome's trace format; open it at ui.perfetto.dev. Beside the spans of each step it holds the
    payload, the bytes that the device delivered, read calls and faults.
    """
    with exit_codes():
        from storebench.analysis.checks.records import read_run
        from storebench.report.trace import choose_record, trace_events
        from storebench.system.whole_files import write_whole

        records = read_run(run)
        record = choose_record(records, cell, replicate=replicate, epoch=epoch)
        events = trace_events(record, run)
        write_whole(out, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        put(str(out))
        say(
            f"cell {record.cell.cell_id}: {record.cell.backend.name}, replicate {record.replicate}, "
            f"epoch {record.epoch}: {len(events):,} events"
        )
        cells = len({record.cell.cell_id for record in records})
        if not cell and cells > 1:
            say(f"this is one of {cells} cells; --cell chooses another")


def check(
    baseline: Annotated[
        Path, typer.Argument(help="A run's folder, such as the baseline of 'bench --against'.")
    ],
    contender: Annotated[Path, typer.Argument(help="The run's folder to compare with it.")],
    counters_only: Annotated[
        bool,
        typer.Option(
            "--counters-only", help="Leave times out, which say little of runs that were not interleaved."
        ),
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", help="Also write the verdicts as Markdown, for a pull request."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs cell by cell.

    Times get a verdict where the runs were interleaved ('bench --against').

    Exit codes: 0 no sign of a regression, 1 regression, 3 not comparable, 4 perhaps slower, 5 failed or missing cells,
    or nothing measured. The terminal shows the cells that changed; --markdown and --json have all.
    """
    with exit_codes():
        from storebench.check.judge import judge
        from storebench.check.outcome import SAME_CODE, outcome, verdict_table
        from storebench.check.sides import read_side, same_code
        from storebench.system.whole_files import write_whole

        if same_code(baseline, contender):
            results, decided = [], SAME_CODE
        else:
            after, before = read_side(contender, baseline=False), read_side(baseline, baseline=True)
            results = judge(before, after, counters_only=counters_only)
            decided = outcome(results)
        told = [result for result in results if not result.is_quiet]
        quiet = [result for result in results if result.is_quiet]
        if markdown is not None:
            lines = ["### storebench check", f"**{escaped(decided.line)}**"]
            lines += [verdict_table(told).to_markdown()] if told else []
            folded = f"<summary>{number_of(len(quiet), 'cell')} without a sign of change</summary>"
            rest = verdict_table(quiet).to_markdown()
            lines += [f"<details>{folded}\n\n{rest}\n</details>"] if quiet else []
            write_whole(markdown, "\n\n".join(lines))
        if as_json:
            cells = [dataclasses.asdict(result) for result in results]
            put_json({"outcome": dataclasses.asdict(decided), "cells": cells})
        else:
            put(decided.line)
            if told:
                write_out(drawn(verdict_table(told)) + "\n")
        raise typer.Exit(decided.exit_code)


def share(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that 'run' or 'bench' wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("shared.json.xz"),
) -> None:
    """Write a run into one small file for others.

    It has the figures of every epoch, the machine, versions and digests, and no name of a host, a user, a folder, a
    server or a class. Nothing is sent. 'validate', 'report' and 'plan' read the file like a run.
    """
    with exit_codes():
        from storebench.analysis.sharing import contents
        from storebench.analysis.sharing import share as shared
        from storebench.record.shared import SUFFIX
        from storebench.system.whole_files import write_whole

        if not out.name.endswith(SUFFIX):
            raise errors.UsageError(f"{out}: the name of a shared file ends in {SUFFIX}")
        content, packed = shared(run)
        write_whole(out, packed)
        put(*contents(content))
        say(f"{out}: {len(packed):,} bytes")


def validate(results: ResultsArgument, as_json: JsonOption = False) -> None:
    """Check whether results can be trusted.

    It checks the schema, arithmetic, coverage, cache states, ceilings and equal samples. The exit code is 5 if any
    check fails. Replicates that failed have no figures to check; their number is printed.
    """
    with exit_codes():
        from storebench.analysis.checks.records import examine
        from storebench.analysis.labels import not_held
        from storebench.run.about import incomplete

        examined = examine(results)
        failed = [record for record, _ in examined.records if record.failed]
        if as_json:
            put_json([dataclasses.asdict(finding) for finding in examined.findings])
        else:
            put(*map(str, examined.findings))
        lines = not_held(examined.cells)
        if wrong := examined.wrong:
            cells = number_of(len({finding.cell_id for finding in wrong}), "cell")
            lines.append(f"{number_of(len(wrong), 'finding')} in {cells}")
        if wrong or any(cell.too_few and not cell.failure for cell in examined.cells):
            raise errors.IntegrityError(
                "; ".join(lines), hint="Do not use these figures; run the cells again."
            )
        for line in lines or ["no findings"]:
            say(line)
        for line in incomplete(examined.records):
            say(line)
        if failed:
            backends = ", ".join(
                sorted({f"{record.cell.backend.name} {record.cell.cache}" for record in failed})
            )
            say(f"not checked: {number_of(len(failed), 'record')} of failed replicates ({backends})")
