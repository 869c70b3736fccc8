"""Runs in folders that hold links, FIFOs and other things under a run's names: refused before anything is touched."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storebench.errors import CorruptDataError
from storebench.runs.folder import Run
from storebench.runs.records import (
    LOGS_DIR,
    RECORDS_NAME,
    RUN_NAME,
    STEPS_DIR,
    STEPS_NAME,
    SUPERSEDED_NAME,
)
from tests.support.harness_tools import SMALL_MATRIX, Bench, scenario, write_scenario

MATRIX = {**SMALL_MATRIX, "backends": ["lmdb"]}
TABLE = "0123456789ab-r0-e0.parquet"
"""A name of a step table, which a run removes from its own folder where no record names it."""

Made = Callable[[Path], None]


def link(path: Path) -> None:
    """Make a link to a folder of somebody else's beside the run."""
    path.symlink_to(theirs(path.parent), target_is_directory=True)


def theirs(run: Path) -> Path:
    """Return a folder of somebody else's that holds what looks like a step table."""
    folder = run.parent / "theirs"
    folder.mkdir(exist_ok=True)
    (folder / TABLE).touch()
    return folder


def dangling(path: Path) -> None:
    path.symlink_to(path.parent.parent / "nowhere")


def made(folder: Path) -> Run:
    """Make a run without a record."""
    of = scenario(**MATRIX)
    return Run.create(of, folder, of.cells())


def tree(root: Path) -> set[Path]:
    return set(root.rglob("*"))


KINDS = [
    pytest.param(STEPS_DIR, link, "a symbolic link", id="steps is a link"),
    pytest.param(STEPS_DIR, dangling, "a symbolic link", id="steps is a dangling link"),
    pytest.param(STEPS_DIR, Path.touch, "a file", id="steps is a file"),
    pytest.param(LOGS_DIR, link, "a symbolic link", id="logs is a link"),
    pytest.param(LOGS_DIR, os.mkfifo, "a FIFO", id="logs is a FIFO"),
    pytest.param(RECORDS_NAME, os.mkfifo, "a FIFO", id="records is a FIFO"),
    pytest.param(RECORDS_NAME, Path.mkdir, "a folder", id="records is a folder"),
    pytest.param(SUPERSEDED_NAME, os.mkfifo, "a FIFO", id="superseded is a FIFO"),
    pytest.param(STEPS_NAME, os.mkfifo, "a FIFO", id="steps.parquet is a FIFO"),
    pytest.param(STEPS_NAME, link, "a symbolic link", id="steps.parquet is a link"),
]


@pytest.mark.parametrize("verb", ["create", "resume", "repair"])
@pytest.mark.parametrize(("name", "make", "kind"), KINDS)
def test_what_a_run_would_not_have_is_refused(
    name: str, make: Made, kind: str, verb: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run = made(folder)
    if verb == "create":
        (folder / RUN_NAME).unlink()
    if name in (STEPS_DIR, LOGS_DIR):
        (folder / name).rmdir()
    make(folder / name)
    before = tree(tmp_path)
    with pytest.raises(CorruptDataError, match=f"{folder / name}: {kind}, .* Replace it with"):
        {"create": lambda: made(folder), "resume": lambda: Run.resume(folder), "repair": run.repair}[verb]()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("words", [(), ("--resume",)])
def test_a_run_removes_nothing_from_a_folder_that_its_steps_link_to(
    words: tuple[str, ...], bench: Bench, tmp_path: Path
) -> None:
    path, folder = tmp_path / "test.toml", tmp_path / "run"
    write_scenario(path, MATRIX)
    made(folder)
    if not words:
        (folder / RUN_NAME).unlink()
    (folder / STEPS_DIR).rmdir()
    link(folder / STEPS_DIR)
    before = tree(tmp_path)
    done = bench.cli("bench", path, *words, "--out", folder, "--stores", tmp_path / "stores")
    assert done.returncode == 5
    [line] = done.stderr.splitlines()
    assert f"{folder / STEPS_DIR}: a symbolic link, but a run needs its own folder here" in line
    assert tree(tmp_path) == before


def test_a_runs_folder_and_its_records_may_be_links(tmp_path: Path) -> None:
    made(tmp_path / "elsewhere")
    (tmp_path / "records").touch()
    (tmp_path / "elsewhere" / RECORDS_NAME).symlink_to(tmp_path / "records")
    (tmp_path / "run").symlink_to("elsewhere", target_is_directory=True)
    run = Run.resume(tmp_path / "run")
    run.repair()
    assert len(run.left()) == 1
