"""A bug in a command is a line that names a file with the details, and one for an issue."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from storebench._version import __version__

BOOM = """
from storebench.cli.output import exit_codes
from storebench.cli.main import app

@app.command("boom")
def boom() -> None:
    with exit_codes():
        {}

app(["boom"])
"""


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("{}['a\\nb']", "KeyError"),
        ("bytes(1 << 60)", "MemoryError"),
    ],
)
def test_an_error_that_nobody_expected_is_two_lines(tmp_path: Path, code: str, kind: str) -> None:
    def boom(debug: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TMPDIR": str(tmp_path), "STOREBENCH_DEBUG": debug}
        command = [sys.executable, "-c", BOOM.format(code)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    done = boom("0")
    assert done.returncode == 5
    line, report = done.stderr.splitlines()
    assert re.search(
        rf": {kind} at storebench/cli/output\.py:\d+; storebench {re.escape(__version__)}", report
    )
    assert str(tmp_path) not in report
    assert line.startswith(f"storebench: unexpected error: {kind}")
    details = Path(line.rpartition(" ")[2])
    assert details.parent == tmp_path
    assert details.stat().st_mode & 0o077 == 0
    assert "Traceback (most recent call last)" in details.read_text(encoding="utf-8")
    if kind == "KeyError":
        assert "Traceback (most recent call last)" in boom("1").stderr
