"""``storebench check``: baseline against contender, and an exit code for CI."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storebench.cli.common import exit_codes, put_text, say
from storebench.cli.streams import write_out
from storebench.errors import UsageError

if TYPE_CHECKING:
    from storebench.check.judge import CellResult
    from storebench.check.outcome import Outcome


class OutputFormat(enum.StrEnum):
    """Output format of the results."""

    TEXT = "text"
    MARKDOWN = "markdown"
    GITHUB = "github"
    JSON = "json"


def check(
    baseline: Annotated[
        Path, typer.Argument(help="A run's folder, such as the baseline of 'bench --against'.")
    ],
    contender: Annotated[Path, typer.Argument(help="The run's folder to compare with it.")],
    policy: Annotated[Path | None, typer.Option(help="TOML file with thresholds and counter gates.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail on any cell that is missing, new or inconclusive.")
    ] = False,
    allow_missing: Annotated[
        list[str] | None,
        typer.Option(help="Label, id or pattern of cells that the contender may lack; may be repeated."),
    ] = None,
    output: Annotated[
        list[OutputFormat] | None,
        typer.Option("--format", help="Output format; may be repeated, with one --out each. [default: text]"),
    ] = None,
    out: Annotated[
        list[Path] | None, typer.Option(help="File for the --format in the same position. [default: -]")
    ] = None,
) -> None:
    """Compare two runs cell by cell; times get a verdict where the runs were interleaved ('bench --against').

    Exit codes: 0 no regression, 1 regression, 3 not comparable, 4 inconclusive, 5 failed or missing cells, or nothing
    measured.
    """
    with exit_codes():
        from storebench.check.judge import judge
        from storebench.check.outcome import check_names, outcome
        from storebench.check.policy import Policy, load_policy
        from storebench.check.sides import read_side, same_code

        rules = load_policy(policy) if policy else Policy()
        if same_code(baseline, contender):
            put_text("both sides are the same code and the same cells: no regression [exit code 0]")
            return
        after, before = read_side(contender, baseline=False), read_side(baseline, baseline=True)
        if before.pairing and before.pairing == after.pairing:
            rules.require_times(cell.label for cell in after.cells.values())
        results = judge(before, after, rules)
        check_names(allow_missing or [], results)
        decided = outcome(results, rules, strict=strict, allow_missing=allow_missing or [])
        _write(results, decided, output or [OutputFormat.TEXT], out or [])
        if not _prints_outcome(output or [OutputFormat.TEXT], out or []):
            say(f"storebench check: {decided.line}")
        raise typer.Exit(decided.exit_code)


def _prints_outcome(formats: list[OutputFormat], files: list[Path]) -> bool:
    """Return whether a format that ends with the outcome's line was printed."""
    printed = formats[len(files) :] + [
        name for name, path in zip(formats, files, strict=False) if str(path) == "-"
    ]
    return any(name in (OutputFormat.TEXT, OutputFormat.MARKDOWN, OutputFormat.GITHUB) for name in printed)


def _write(
    results: "list[CellResult]", decided: "Outcome", formats: list[OutputFormat], files: list[Path]
) -> None:
    from storebench.check.render import RENDERERS
    from storebench.fileio.whole_files import write_whole

    if len(files) > len(formats):
        raise UsageError("more --out than --format", hint="Give one --format for each --out.")
    paths = [*files, *[Path("-")] * (len(formats) - len(files))]
    for name, path in zip(formats, paths, strict=True):
        text = RENDERERS[name.value](results, decided)
        if str(path) != "-":
            write_whole(path, text)
        elif name in (OutputFormat.TEXT, OutputFormat.MARKDOWN):
            put_text(text)
        else:  # programs read these formats, and commands in them are intended
            write_out(text)
