"""Standard streams that a shell, cron or a daemon closed: the same exit code, and no word in a wrong place."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.quick_cli import storebench

ONE, SEVERAL = ("<&-", ">&-", "2>&-"), ("<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-")


def first(*some: str) -> list[Any]:
    """Return every combination of closed streams; without --full, only some are tried, and the rest by another test."""
    others = [closed for closed in (*ONE, *SEVERAL) if closed not in some]
    return [*some, *(pytest.param(closed, marks=pytest.mark.full) for closed in others)]


SAMPLES = "-d mnist --synthetic --limit 8 --out stores"


def shell(folder: Path, closed: str, arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a shell that closes some of its standard streams."""
    command = f"{shlex.quote(sys.executable)} -m storebench {arguments} {closed}"
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("closed", first(*ONE))
def test_a_command_succeeds_without_some_streams(tmp_path: Path, closed: str) -> None:
    done = shell(tmp_path, closed, "formats")
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is (">&-" not in closed.split())


@pytest.mark.parametrize("closed", first(*SEVERAL))
def test_an_error_is_told_on_no_other_stream(tmp_path: Path, closed: str) -> None:
    done = shell(tmp_path, closed, "verify nowhere")
    assert (done.returncode, done.stdout) == (5, "")
    assert bool(done.stderr) is ("2>&-" not in closed.split())


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_store_is_whole_that_was_written_without_streams(tmp_path: Path, closed: str) -> None:
    assert shell(tmp_path, closed, f"convert lmdb png {SAMPLES}").returncode == 0
    for store in (tmp_path / "stores").glob("*/*"):
        assert storebench(tmp_path, "verify", store).returncode == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"converting " in path.read_bytes()]
