"""Every storebench and make command that a document shows is one that the real command line takes."""

import re
import shlex
import subprocess

import pytest

from tests.docs.command_line import options_of, parse
from tests.docs.doc_files import DOCUMENTS, ROOT, Command, commands, spans

SHOWN = [command for document in DOCUMENTS for command in commands(document)]
MENTIONED = [command for document in DOCUMENTS for command in spans(document)]


def of(program: str, found: list[Command]) -> list[Command]:
    return [command for command in found if command.words[0] == program]


def recipe(*words: str) -> list[str]:
    """Return the lines that make would run, having run none."""
    command = ["make", "--dry-run", "--no-print-directory", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_shown_and_mentioned_commands_are_those_that_storebench_takes() -> None:
    for command in of("storebench", SHOWN):
        parse(command.words[1:])
    for command in of("storebench", MENTIONED):
        words = [word for word in command.words[1:] if word not in ("[OPTIONS]", "...")]
        if words[0] not in ("--help", "--version"):
            options = {word.split("=")[0] for word in words if word.startswith("-")}
            assert options <= options_of(words), command


@pytest.mark.parametrize(
    "words", sorted({command.words[1:] for command in of("make", [*SHOWN, *MENTIONED])}), ids=" ".join
)
def test_what_a_make_target_runs_is_there(words: tuple[str, ...]) -> None:
    for line in recipe(*words):
        for found in re.finditer(r"bin/storebench ([^;|&>\\]+)", line):
            parse(shlex.split(found[1].replace("$dataset", "mnist")))
        for module in re.findall(r"-m ((?:tests|benchmarks)\.[\w.]+)", line):
            path = ROOT / module.replace(".", "/")
            scenario = ROOT / "scenarios" / f"{path.name}.toml"  # 'make bench-NAME' runs either
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() or scenario.is_file()
        for name in re.findall(r"bench scenarios/([\w-]+)\.toml", line):
            script = ROOT / "benchmarks" / f"{name}.py"
            assert (ROOT / "scenarios" / f"{name}.toml").is_file() or script.is_file(), name
