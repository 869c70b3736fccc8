"""The suite's quick command line does what a fresh interpreter does."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.quick_cli import CommandServer

CompletedText = subprocess.CompletedProcess[str]
Cli = Callable[..., CompletedText]
MNIST = ("-d", "mnist", "--synthetic", "--limit", "8")


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("formats", "--json"),
        ("convert", "lmbd", *MNIST),
        ("verify", "nowhere"),
        ("bench", "nowhere.toml", "--dry-run"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_output_and_exit_code_are_those_of_a_fresh_process(
    words: tuple[str, ...], cli: Cli, fresh_cli: Cli
) -> None:
    fresh, quick = fresh_cli(*words), cli(*words)
    assert (quick.returncode, quick.stdout, quick.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


@pytest.mark.full
def test_a_cell_that_is_a_copy_gives_the_same_record(cli: Cli, fresh_cli: Cli) -> None:
    loop = ("--model", "tiny", "--batch-size", "4", "--threads", "1")
    words = ("run", "lmdb", *MNIST, *loop, "--json", "--out")
    [fresh], [quick] = json.loads(fresh_cli(*words, "a").stdout), json.loads(cli(*words, "b").stdout)
    for name in ("status", "cell", "samples", "steps", "payload_bytes", "digests", "loss", "store", "code"):
        assert quick[name] == fresh[name], name
    assert quick["environment"]["match"] == fresh["environment"]["match"]
    for name in ("missing", "duplicates", "timed_checked", "timed_wrong"):
        assert quick["coverage"][name] == fresh["coverage"][name], name
    assert quick.keys() == fresh.keys()


def test_a_file_can_be_limited(commands: CommandServer, tmp_path: Path) -> None:
    words = ("convert", "memory", *MNIST)
    assert commands.run(*words, cwd=tmp_path, env=os.environ, largest_file=1000).returncode == 5
    assert commands.run(*words, cwd=tmp_path, env=os.environ, largest_file=1 << 20).returncode == 0


def test_each_command_has_its_own_folder_and_environment(commands: CommandServer, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        env = {**os.environ, "STOREBENCH_STORES": f"stores-{name}"}
        done = commands.run("convert", "memory", *MNIST, cwd=tmp_path / name, env=env)
        assert done.returncode == 0, done.stderr
        assert [path.name for path in (tmp_path / name).iterdir()] == [f"stores-{name}"]


def test_memory_can_be_limited(commands: CommandServer, tmp_path: Path) -> None:
    words = ("convert", "memory", "-d", "mnist", "--synthetic", "--limit", "64", "--processes", "1")
    assert commands.run(*words, cwd=tmp_path, env=os.environ, more_memory=1 << 20).returncode not in (0, 2)
    assert commands.run(*words, cwd=tmp_path, env=os.environ, more_memory=1 << 30).returncode == 0


def test_a_command_that_takes_too_long_is_killed_and_the_next_one_runs(
    commands: CommandServer, tmp_path: Path
) -> None:
    words = ("convert", "png", "-d", "mnist", "--synthetic", "--size", "60000", "--processes", "1")
    with pytest.raises(subprocess.TimeoutExpired):
        commands.run(*words, cwd=tmp_path, env=os.environ, timeout=0.5)
    assert commands.run("--version", cwd=tmp_path, env=os.environ).returncode == 0
