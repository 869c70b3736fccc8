"""The results of a check as text, Markdown, GitHub annotations and JSON."""

import dataclasses
import json
import textwrap
from collections.abc import Callable, Sequence

from storebench.analysis.comparison import ALPHA
from storebench.check.judge import CellResult, CellState
from storebench.check.outcome import Outcome
from storebench.errors import EXIT_INCONCLUSIVE, EXIT_OK
from storebench.plain_text import markdown, plain, workflow_message, workflow_property
from storebench.units import number_of

Results = Sequence[CellResult]

_HEADS = ("cell", "verdict", "time ratio", "95% interval", "n", "why")


def as_text(results: Results, outcome: Outcome) -> str:
    """Return an aligned table and the outcome's line, for a terminal."""
    rows = [_HEADS[:-1], *(tuple(map(plain, _row(result)[:-1])) for result in _worst_first(results))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for number, result in reversed(list(enumerate(_worst_first(results), start=1))):
        if result.state is not CellState.WITHIN_NOISE:
            reason = textwrap.wrap(plain(_row(result)[-1]), width=96)
            lines[number + 1 : number + 1] = [f"    {line}" for line in reason]
    return "\n".join([*(line.rstrip() for line in lines), "", plain(_summary(outcome))]) + "\n"


def as_markdown(results: Results, outcome: Outcome) -> str:
    """Return a comment for a pull request: the outcome, the changes, and the remaining cells folded away."""
    shown = [result for result in _worst_first(results) if result.state is not CellState.WITHIN_NOISE]
    quiet = [result for result in results if result.state is CellState.WITHIN_NOISE]
    parts = ["### storebench check", "", f"**{markdown(_summary(outcome))}**", ""]
    if shown:
        parts += [*_markdown_table(shown), ""]
    if quiet:
        parts += [
            f"<details><summary>{number_of(len(quiet), 'cell')} within noise</summary>",
            "",
            *_markdown_table(quiet),
            "",
            "</details>",
            "",
        ]
    parts.append("The ratio is the contender's time over the baseline's: above 1 is slower.")
    return "\n".join(parts) + "\n"


def as_github(results: Results, outcome: Outcome) -> str:
    """Return one workflow command per cell that needs attention, and one for the outcome."""
    lines = []
    for result in _worst_first(results):
        if result.state in (CellState.WITHIN_NOISE, CellState.BETTER, CellState.NOT_GATED):
            continue
        bad = (CellState.WORSE, CellState.FAILED, CellState.MISSING)
        level = "error" if result.state in bad else "warning"
        message = f"{result.state}: {result.reason}" if result.reason else str(result.state)
        lines.append(f"::{level} title={workflow_property(result.label)}::{workflow_message(message)}")
    level = {EXIT_OK: "notice", EXIT_INCONCLUSIVE: "warning"}.get(outcome.exit_code, "error")
    return (
        "\n".join([*lines, f"::{level} title=storebench check::{workflow_message(_summary(outcome))}"]) + "\n"
    )


def as_json(results: Results, outcome: Outcome) -> str:
    raw = {
        "outcome": dataclasses.asdict(outcome),
        "cells": [dataclasses.asdict(result) for result in results],
    }
    return json.dumps(raw, indent=2) + "\n"


RENDERERS: dict[str, Callable[[Results, Outcome], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "github": as_github,
    "json": as_json,
}
"""Format name -> renderer."""


def _summary(outcome: Outcome) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in outcome.counts.items())
    return f"{outcome.line} [{counts}; exit code {outcome.exit_code}]"


def _worst_first(results: Results) -> list[CellResult]:
    order = list(CellState)
    return sorted(results, key=lambda result: (order.index(result.state), -(result.ratio or 0)))


def _row(result: CellResult) -> tuple[str, ...]:
    interval = "" if result.low is None or result.high is None else f"{result.low:.3f} to {result.high:.3f}"
    interval += f" ({result.level:.0%})" if interval and result.level and result.level > 1 - ALPHA else ""
    return (
        result.label,
        str(result.state),
        "" if result.ratio is None else f"{result.ratio:.3f}",
        interval,
        "" if result.replicates == (0, 0) else f"{result.replicates[0]}/{result.replicates[1]}",
        result.reason,
    )


def _markdown_table(results: Results) -> list[str]:
    rows = [_HEADS, tuple("---" for _ in _HEADS), *(tuple(map(markdown, _row(result))) for result in results)]
    return ["| " + " | ".join(row) + " |" for row in rows]
