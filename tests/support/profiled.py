"""Scripts, run by Python and by `storebench profile`."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.quick_cli import SERVER


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def profile(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return SERVER.run("profile", *words, cwd=folder, env=environment())
