"""``storebench check``: baseline against contender, and an exit code for CI."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storebench.cli.common import exit_codes, put_text, say, stores_dir
from storebench.cli.streams import write_out
from storebench.errors import NotComparableError, StorebenchError, UsageError

if TYPE_CHECKING:
    from storebench.check.judge import CellResult
    from storebench.check.policy import Policy
    from storebench.check.sides.model import Side


class OutputFormat(enum.StrEnum):
    """Output format of the results."""

    TEXT = "text"
    MARKDOWN = "markdown"
    GITHUB = "github"
    JUNIT = "junit"
    JSON = "json"


def check(
    baseline: Annotated[
        Path, typer.Argument(help="results/baselines/NAME, a run's folder, or pytest-benchmark's JSON.")
    ],
    contender: Annotated[
        Path, typer.Argument(help="A run's folder, a --benchmark-json file, or a folder of such files.")
    ],
    policy: Annotated[Path | None, typer.Option(help="TOML file with thresholds and counter gates.")] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Repeat suspected cells before calling them worse.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail on any cell that is missing, new or inconclusive.")
    ] = False,
    allow_missing: Annotated[
        list[str] | None,
        typer.Option(help="Label, id or pattern of cells that the contender may lack; may be repeated."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Make the contender the baseline; earlier ones are kept.")
    ] = False,
    reason: Annotated[
        str, typer.Option(help="Reason why --update may accept a regression; stored with the baseline.")
    ] = "",
    output: Annotated[
        list[OutputFormat] | None,
        typer.Option("--format", help="Output format; may be repeated, with one --out each. [default: text]"),
    ] = None,
    out: Annotated[
        list[Path] | None, typer.Option(help="File for the --format in the same position. [default: -]")
    ] = None,
    stores: Annotated[
        Path | None, typer.Option(help="For --confirm: folder of all stores. [default: ./stores]")
    ] = None,
) -> None:
    """Compare two sides cell by cell.

    Exit codes: 0 no regression, 1 regression, 3 not comparable, 4 inconclusive, 5 failed or missing cells, or nothing
    measured.
    """
    with exit_codes():
        from storebench.check.outcome import check_names, outcome
        from storebench.check.policy import Policy, load_policy
        from storebench.check.sides.model import same_code
        from storebench.check.sides.read import read_side

        rules = load_policy(policy) if policy else Policy()
        if same_code(baseline, contender):
            put_text("both sides are the same code and the same cells: no regression [exit code 0]")
            return
        after = read_side(contender, baseline=False)
        try:
            before = read_side(baseline, baseline=True)
        except NotComparableError as error:
            if not update:
                raise
            _first_baseline(baseline, after, error, rules, reason)
            return
        rules.require_times(cell.label for cell in after.cells.values())
        results = _results(before, after, rules, stores or stores_dir(), confirm=confirm)
        check_names(allow_missing or [], results)
        decided = outcome(results, rules, strict=strict, allow_missing=allow_missing or [])
        _write(results, decided, output or [OutputFormat.TEXT], out or [])
        if update:
            from storebench.check.baseline import update as write_baseline

            say(f"wrote {write_baseline(baseline, after, results, rules, reason=reason)}")
            return
        if not _prints_outcome(output or [OutputFormat.TEXT], out or []):
            say(f"storebench check: {decided.line}")
        raise typer.Exit(decided.exit_code)


def _prints_outcome(formats: list[OutputFormat], files: list[Path]) -> bool:
    """Return whether a format that ends with the outcome's line was printed."""
    printed = formats[len(files) :] + [
        name for name, path in zip(formats, files, strict=False) if str(path) == "-"
    ]
    return any(name in (OutputFormat.TEXT, OutputFormat.MARKDOWN, OutputFormat.GITHUB) for name in printed)


def _first_baseline(
    baseline: Path, contender: "Side", error: StorebenchError, rules: "Policy", reason: str
) -> None:
    from storebench.check.baseline import is_free
    from storebench.check.baseline import update as write_baseline

    if not is_free(baseline) and not reason.strip():
        # The file is not a baseline of this version: replacing it must be a deliberate decision.
        raise NotComparableError(error.what, where=error.where, hint="Replace it with --reason TEXT.")
    say(f"wrote {write_baseline(baseline, contender, None, rules, reason=reason)}")


def _results(
    before: "Side", after: "Side", rules: "Policy", stores: Path, *, confirm: bool
) -> "list[CellResult]":
    from storebench.check.judge import judge

    results = judge(before, after, rules)
    if not confirm:
        return results
    from storebench.check.confirm import RerunOptions
    from storebench.check.confirm import confirm as run_again

    return run_again(results, before, after, rules, RerunOptions(stores=stores, say=say))


def _write(
    results: "list[CellResult]", decided: object, formats: list[OutputFormat], files: list[Path]
) -> None:
    from storebench.check.outcome import Outcome
    from storebench.check.render import RENDERERS
    from storebench.fileio.whole_files import write_whole

    assert isinstance(decided, Outcome)
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
