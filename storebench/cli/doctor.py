"""``storebench doctor``: what this machine can and cannot measure, and what to do about it."""

import dataclasses
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storebench.cli.common import exit_codes, put, put_json

if TYPE_CHECKING:
    from storebench.probes.doctor import Check

_ADVICE_WIDTH = 80


def doctor(
    path: Annotated[
        Path, typer.Argument(help="Folder of the stores, present or future.", show_default="here")
    ] = Path(),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Report what this machine can and cannot measure.

    Each finding says what to do about it. The command writes, reads and evicts a scratch file of 8 MiB in PATH. It
    changes no setting.
    """
    with exit_codes():
        from storebench.probes.doctor import checkup

        checks = checkup(path.resolve())
        if as_json:
            put_json([dataclasses.asdict(check) for check in checks])
        else:
            put(*_lines(checks))


def _lines(checks: list["Check"]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:<5} {check.name:<{width}}  {check.found}")
        advice = textwrap.wrap(check.advice, _ADVICE_WIDTH)
        indent = " " * (width + 8)
        lines += [f"{indent}{'   ' if number else '-> '}{line}" for number, line in enumerate(advice)]
    return lines
