"""Every storebench and make command that a document shows is one that the real command line takes."""

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.docs.command_line import options_of, parse
from tests.docs.doc_files import DOCUMENTS, ROOT, Command, commands, spans

SHOWN = [one for document in DOCUMENTS for one in commands(document)]
MENTIONED = [span for document in DOCUMENTS for span in spans(document)]


def _of(program: str, found: list[Command]) -> list[Command]:
    return [one for one in found if one.words[0] == program]


@cache
def make_targets() -> dict[str, str]:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return dict(line.split(maxsplit=1) for line in listed.splitlines() if line.startswith("  "))


def recipe(*words: str) -> list[str]:
    """Return the lines that make would run, having run none."""
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", _of("storebench", SHOWN), ids=str)
def test_a_shown_command_is_one_that_storebench_takes(command: Command) -> None:
    parse(command.words[1:])


@pytest.mark.parametrize("command", _of("storebench", MENTIONED), ids=str)
def test_a_mentioned_command_has_these_options(command: Command) -> None:
    words = [word for word in command.words[1:] if word not in ("[OPTIONS]", "...")]
    if words[0] == "--help" or words[0] == "--version":
        return
    known = options_of(words)
    assert {word.split("=")[0] for word in words if word.startswith("-")} <= known, known


@pytest.mark.parametrize("command", _of("make", [*SHOWN, *MENTIONED]), ids=str)
def test_a_make_target_is_listed_by_make_help(command: Command) -> None:
    targets = [word for word in command.words[1:] if "=" not in word and not word.startswith("-")]
    for target in targets:
        name = target.removeprefix("bench-")
        places = (ROOT / "scenarios" / f"{name}.toml", ROOT / "benchmarks" / f"{name}.py")
        made = target.startswith("bench-") and any(place.is_file() for place in places)
        assert made or target in make_targets(), make_targets()
    if targets != ["help"]:
        recipe(*command.words[1:])


@pytest.mark.parametrize("target", sorted(make_targets()))
def test_what_a_make_target_runs_is_there(target: str, tmp_path: Path) -> None:
    for line in recipe(target, f"RUNS={tmp_path}"):
        for found in re.finditer(r"bin/storebench ([^;|&>\\]+)", line):
            parse(shlex.split(found[1].replace("$dataset", "mnist")))
        for module in re.findall(r"-m ((?:tests|benchmarks)\.[\w.]+)", line):
            path = ROOT / module.replace(".", "/")
            assert any(place.is_file() for place in (path.with_suffix(".py"), path / "__main__.py")), (
                f"make {target}: no {module}"
            )
        for scenario in re.findall(r"scenarios/[\w-]+\.toml", line):
            assert (ROOT / scenario).is_file(), f"make {target}: no {scenario}"
