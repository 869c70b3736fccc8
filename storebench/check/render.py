"""The results of a check as text, Markdown, GitHub annotations, JUnit XML and JSON."""

import dataclasses
import datetime as dt
import json
import textwrap
from collections.abc import Callable, Sequence
from xml.etree import ElementTree as ET

from storebench.check.outcome import Outcome
from storebench.check.result import CellResult, CellState
from storebench.errors import EXIT_INCONCLUSIVE, EXIT_OK
from storebench.plain_text import json_text, markdown, plain, workflow_message, workflow_property
from storebench.units import number_of

Results = Sequence[CellResult]

_BAD = (CellState.WORSE, CellState.FAILED, CellState.MISSING)
_HEADS = ("cell", "verdict", "time ratio", "single 95%", "n", "why")
_COLUMNS = 100


def as_text(results: Results, outcome: Outcome) -> str:
    """Return an aligned table and the outcome's line, for a terminal."""
    rows = [_HEADS[:-1], *(tuple(map(plain, _row(result)[:-1])) for result in _worst_first(results))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for number, result in reversed(list(enumerate(_worst_first(results), start=1))):
        if result.state is not CellState.WITHIN_NOISE:
            reason = textwrap.wrap(plain(_row(result)[-1]), _COLUMNS - 4)
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
        level = "error" if result.state in _BAD else "warning"
        message = f"{result.state}: {result.reason}" if result.reason else str(result.state)
        lines.append(f"::{level} title={workflow_property(result.label)}::{workflow_message(message)}")
    level = {EXIT_OK: "notice", EXIT_INCONCLUSIVE: "warning"}.get(outcome.exit_code, "error")
    return (
        "\n".join([*lines, f"::{level} title=storebench check::{workflow_message(_summary(outcome))}"]) + "\n"
    )


def as_junit(results: Results, outcome: Outcome) -> str:
    """Return JUnit XML: a worse cell is a failure, a failed or missing one an error, an undecided one skipped."""
    suite = ET.Element("testsuite", name="storebench check", tests=str(len(results)))
    for attribute, counted in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(_JUNIT.get(result.state) == counted for result in results)))
    suite.set("time", _decimal(sum(_duration_s(result) for result in results)))
    suite.set("timestamp", dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    for result in results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname="storebench.check",
            name=plain(result.label),
            time=_decimal(_duration_s(result)),
        )
        properties = ET.SubElement(case, "properties")
        for name, value in _figures(result).items():
            ET.SubElement(properties, "property", name=name, value=plain(value))
        if tag := _JUNIT.get(result.state):
            ET.SubElement(
                case, tag, type=str(result.state), message=plain(f"{result.state}: {result.reason}")
            )
    ET.SubElement(suite, "system-out").text = plain(_summary(outcome))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


_JUNIT = {
    CellState.WORSE: "failure",
    CellState.FAILED: "error",
    CellState.MISSING: "error",
    CellState.INCONCLUSIVE: "skipped",
    CellState.NOT_COMPARABLE: "skipped",
    CellState.NEW: "skipped",
}


def _duration_s(result: CellResult) -> float:
    """Return the seconds of one round of the contender; 0 if it was not compared."""
    return 0.0 if result.seconds is None else result.seconds[1] * (result.samples or 1)


def _decimal(seconds: float) -> str:
    return f"{seconds:.9f}"


_FIGURES = "seconds are medians of the replicates, ratios are those of geometric means"


def _figures(result: CellResult) -> dict[str, str]:
    """Return the known figures of a cell as JUnit properties."""
    figures = {
        "state": str(result.state),
        "basis": result.basis or None,
        "ratio": result.ratio,
        "ratio_low": result.low,
        "ratio_high": result.high,
        "tail_ratio": result.tail_ratio,
        "calibrated_ratio": result.calibrated_ratio,
        "machine_ratio": result.machine_ratio,
        "figures": _FIGURES if result.seconds else None,
        "baseline_seconds_per_sample": result.seconds[0] if result.seconds else None,
        "contender_seconds_per_sample": result.seconds[1] if result.seconds else None,
    }
    return {
        name: f"{value:.6g}" if isinstance(value, float) else value
        for name, value in figures.items()
        if value is not None
    }


def as_json(results: Results, outcome: Outcome) -> str:
    """Return all results as JSON."""
    raw = {
        "outcome": dataclasses.asdict(outcome),
        "cells": [dataclasses.asdict(result) for result in results],
    }
    return json_text(json.dumps(raw, indent=2)) + "\n"


RENDERERS: dict[str, Callable[[Results, Outcome], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "github": as_github,
    "junit": as_junit,
    "json": as_json,
}
"""Format name -> renderer."""


def _summary(outcome: Outcome) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in outcome.counts.items())
    return f"{outcome.line} [{counts}; exit code {outcome.exit_code}]"


def _worst_first(results: Results) -> list[CellResult]:
    order = [
        CellState.FAILED,
        CellState.WORSE,
        CellState.MISSING,
        CellState.NOT_COMPARABLE,
        CellState.INCONCLUSIVE,
        CellState.NEW,
        CellState.NOT_GATED,
        CellState.BETTER,
        CellState.WITHIN_NOISE,
    ]
    return sorted(results, key=lambda result: (order.index(result.state), -(result.ratio or 0)))


def _row(result: CellResult) -> tuple[str, ...]:
    confirmed = {True: " (confirmed)", False: "", None: ""}[result.confirmed]
    interval = "" if result.low is None or result.high is None else f"{result.low:.3f} to {result.high:.3f}"
    return (
        result.label,
        f"{result.state}{confirmed}",
        "" if result.ratio is None else f"{result.ratio:.3f}",
        interval,
        "" if result.replicates == (0, 0) else f"{result.replicates[0]}/{result.replicates[1]}",
        result.reason or result.basis,
    )


def _markdown_table(results: Results) -> list[str]:
    rows = [_HEADS, tuple("---" for _ in _HEADS), *(tuple(map(markdown, _row(result))) for result in results)]
    return ["| " + " | ".join(row) + " |" for row in rows]
