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
    fails.
    """
    with exit_codes():
        from storebench.report.validation.validate import validate as find
        from storebench.units import number_of

        findings = find(results)
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
