"""Fixtures that every test may use: where the real data is, and a command line in a subprocess."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CompletedText = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder with the real data; the test is skipped, saying so, where there is none."""
    root = os.environ.get("STOREBENCH_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("STOREBENCH_DATA names no folder: real images are needed")
    return Path(root).resolve()


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., CompletedText]:
    """Run the real command line in a subprocess, in a folder of its own."""

    def run(*arguments: str, env: dict[str, str] | None = None, timeout: float = 120) -> CompletedText:
        return subprocess.run(
            [sys.executable, "-m", "storebench", *arguments],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
