"""Check how the command line refused a file."""

import subprocess


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a command refused with exit code 5, in one line that holds these words."""
    assert done.returncode == 5, (done.returncode, done.stderr)
    [line] = done.stderr.splitlines()
    assert line.startswith("storebench: ")
    assert not [word for word in words if word not in line], line
