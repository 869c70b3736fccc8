"""``storebench validate``: check whether results can be trusted."""

import dataclasses
from typing import Annotated

import typer

from storebench import errors
from storebench.cli.common import exit_codes, put, put_json, say
from storebench.cli.options import ResultsArgument


def validate(
    results: ResultsArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON array.")] = False,
) -> None:
    """Check whether results can be trusted.

    It checks the schema, arithmetic, coverage, cache states, ceilings and equal samples. The exit code is 5 if any check
    fails. Replicates that failed have no figures to check; their number is printed.
    """
    with exit_codes():
        from storebench.report.checks.records import nothing_to_read, read_all, validate_records
        from storebench.results import Status
        from storebench.units import number_of

        records, unreadable = read_all(results)
        if not records and not unreadable:
            raise nothing_to_read(results)
        findings = [*unreadable, *validate_records(records)]
        failed = [record for record, _ in records if record.status is not Status.OK]
        if as_json:
            put_json([dataclasses.asdict(finding) for finding in findings])
        else:
            put(*map(str, findings))
        if findings:
            cells = len({finding.cell_id for finding in findings})
            raise errors.IntegrityError(
                f"{number_of(len(findings), 'finding')} in {number_of(cells, 'cell')}",
                hint="Do not use these figures; run the cells again.",
            )
        say("no findings")
        if failed:
            backends = ", ".join(
                sorted({f"{record.cell.backend.name} {record.cell.cache}" for record in failed})
            )
            say(f"not checked: {number_of(len(failed), 'record')} of failed replicates ({backends})")
