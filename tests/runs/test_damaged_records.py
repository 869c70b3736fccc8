"""A run whose records.jsonl was damaged or saved by another program, through every command that reads it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storebench.analysis.runs import load_results
from storebench.errors import IntegrityError
from storebench.record.lines import RECORDS_NAME
from tests.support.harness_tools import SMALL_MATRIX, Bench, write_scenario

Change = Callable[[list[bytes]], bytes]
MATRIX = {**SMALL_MATRIX, "compute": "none", "backends": ["memory:python"]}

DAMAGED: dict[str, Change] = {
    "cut": lambda lines: lines[0] + lines[1][:300] + b"\n" + lines[2],
    "two records": lambda lines: lines[0] + lines[1].strip() + lines[2],
    "not UTF-8": lambda lines: lines[0] + lines[1].replace(b'"mnist"', b'"mn\xffst"', 1) + lines[2],
}
TORN: dict[str, Change] = {
    "cut": lambda lines: b"".join(lines)[:-400],
    "zeros": lambda lines: b"".join(lines)[:-400] + b"\0" * 400,
}


def benching(bench: Bench, run: Path, *options: str) -> tuple[str | Path, ...]:
    return ("bench", bench.root / "damaged.toml", "--stores", bench.stores, "--out", run, *options)


@pytest.fixture(scope="module")
def measured(bench: Bench) -> Path:
    write_scenario(bench.root / "damaged.toml", MATRIX, replicates=3)
    done = bench.cli(*benching(bench, bench.root / "damaged"))
    assert done.returncode == 0, done.stderr
    return bench.root / "damaged"


@pytest.fixture
def changed(measured: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def change(how: Change) -> Path:
        run = shutil.copytree(measured, tmp_path / "run")
        (run / RECORDS_NAME).write_bytes(how((run / RECORDS_NAME).read_bytes().splitlines(keepends=True)))
        return run

    return change


@pytest.mark.parametrize("how", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_before_the_last_ends_every_command_with_5(
    how: Change, bench: Bench, measured: Path, changed: Callable[[Change], Path], tmp_path: Path
) -> None:
    run = changed(how)
    content = (run / RECORDS_NAME).read_bytes()
    for command in (
        ("validate", run),
        ("report", run, "--out", tmp_path / "page"),
        ("export", run, "--csv", tmp_path / "t.csv"),
        ("check", measured, run),
        ("check", run, measured),
        ("trace", run, "--out", tmp_path / "trace.json"),
        benching(bench, run, "--resume"),
    ):
        done = bench.cli(*command)
        assert done.returncode == 5, (command, done)
        assert f"{RECORDS_NAME}:2: " in done.stdout + done.stderr, (command, done)
    with pytest.raises(IntegrityError, match=r"records\.jsonl:2: "):
        load_results(run)
    assert (run / RECORDS_NAME).read_bytes() == content


@pytest.mark.parametrize("how", TORN.values(), ids=TORN)
def test_a_finished_run_without_its_last_line_is_whole_once_resumed(
    how: Change, bench: Bench, measured: Path, changed: Callable[[Change], Path]
) -> None:
    run = changed(how)
    assert len(load_results(run)) == 2
    assert "INCOMPLETE: 2 of 3 replicates" in bench.cli("validate", run).stderr
    done = bench.cli(*benching(bench, run, "--resume"))
    assert done.returncode == 0, done.stderr
    assert bench.cli("validate", run).stdout == bench.cli("validate", measured).stdout
    assert sorted(load_results(run)["replicate"]) == [0, 1, 2]
    assert (run / RECORDS_NAME).read_bytes().count(b"\n") == 3
