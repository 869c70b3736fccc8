"""Help and the start of the command line: quick, complete, and no wider than a terminal."""

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.command_line import parse
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


def best_of(times: int, command: list[str]) -> float:
    """Return the least processor time of a command in seconds: the clock shows who else computes as well."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(times))


def test_help_answers_in_under_400_milliseconds() -> None:
    assert best_of(5, [sys.executable, "-m", "storebench", "--help"]) < 0.4


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


GROUPS = [
    "What is measured",
    "How it is loaded",
    "Page cache and place",
    "Jobs of several ranks",
    "Output and limits",
]


@pytest.mark.parametrize(("verb", "groups"), [("run", GROUPS), ("bench", [GROUPS[0], *GROUPS[2:]])])
def test_options_stand_in_groups_below_three_examples(verb: str, groups: list[str], cli: Cli) -> None:
    lines = cli(verb, "--help").stdout.splitlines()
    assert [line[:-1] for line in lines if line.endswith(":") and line[0] != " "] == ["Arguments", *groups]
    examples = [line.split()[1:] for line in lines if line.startswith("    storebench ")]
    assert len(examples) == 3
    for words in examples:
        parse(words)


def test_a_bare_command_says_where_to_begin(cli: Cli, tmp_path: Path) -> None:
    done = cli()
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) <= 17
    assert max(map(len, lines)) <= 80
    shown = [line.split()[1:] for line in lines if line.startswith("  storebench ")]
    assert {words[0] for words in shown} == {"run", "bench", "report", "inspect"}
    for words in shown:
        parse(words)
    assert list(tmp_path.iterdir()) == []
