"""Run the command line on files that it must refuse, and check how it did."""

import subprocess
import sys
from pathlib import Path


def storebench(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "storebench", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a command refused with exit code 5, in one line that holds these words."""
    assert done.returncode == 5, (done.returncode, done.stderr)
    [line] = done.stderr.splitlines()
    assert line.startswith("storebench: ")
    assert not [word for word in words if word not in line], line
