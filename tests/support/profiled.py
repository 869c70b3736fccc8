"""Scripts, run by Python and by `storebench profile`."""

import os
import subprocess
import sys
from pathlib import Path


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def profile(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "storebench", "profile", *words, folder=folder)
