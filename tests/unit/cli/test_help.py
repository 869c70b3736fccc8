"""Help and the start of the command line: quick, complete, and no wider than a terminal."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.docs.generate import verbs

CompletedText = subprocess.CompletedProcess[str]
Cli = Callable[..., CompletedText]

HEAVY = (
    "torch",
    "numpy",
    "matplotlib",
    "pandas",
    "h5py",
    "lmdb",
    "plyvel",
    "plyvel_next",
    "pydantic",
    "pyarrow",
    "PIL",
    "rich",
)


def test_the_command_line_loads_no_heavy_library_to_start() -> None:
    code = "import sys, storebench.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & set(HEAVY)


def test_the_version_is_printed(cli: Cli) -> None:
    from storebench import __version__

    text = cli("--version").stdout
    assert re.fullmatch(rf"storebench {re.escape(__version__)}( [0-9a-f]{{12}}(\+changes)?)?\n", text)


@pytest.mark.parametrize("name", ["", "data", *(name for name, _ in verbs())])
def test_help_fits_80_columns_and_cuts_no_description(name: str, cli: Cli) -> None:
    for line in cli(*name.split(), "--help").stdout.splitlines():
        assert len(line) <= 80, line
        assert line.startswith("Usage:") or not line.rstrip().endswith("..."), line
