"""Planted sides judged: by the package, and by the command line."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from storebench.check.judge import CellResult, judge
from storebench.check.sides import read_side
from storebench.cli.main import app


def check(baseline: Path, contender: Path) -> dict[str, CellResult]:
    """Return what a check says of each cell of two sides, by backend."""
    first, second = read_side(baseline, baseline=True), read_side(contender, baseline=False)
    return {result.label.split("/")[1]: result for result in judge(first, second)}


def run(*arguments: Any) -> tuple[int, str]:
    """Run ``storebench check``; return its exit code and everything printed."""
    done = CliRunner().invoke(app, ["check", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done.exit_code, done.output
