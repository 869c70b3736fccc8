"""A full disk: a report, a trace and what goes to standard output are whole or absent, and one line says where."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from tests.support.planted import make_record, write_run
from tests.support.quick_cli import SERVER

LargestFile = Callable[[int], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("whole") / "run", [make_record("lmdb", cache="warm")])


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("stepped") / "run"
    return write_run(run, [make_record("lmdb", cache="warm")], with_steps=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def storebench(*arguments: object) -> tuple[int, list[str]]:
    """Return the exit code of the command line and the lines on standard error."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    return done.exit_code, done.stderr.splitlines()


def told(lines: list[str], place: Path) -> None:
    """Check that one line names the place, and says that nothing half-written was kept."""
    [line] = lines
    assert line.startswith(f"storebench: {place}")
    assert "nothing half-written was kept" in line


@pytest.mark.parametrize(
    ("most", "name"), [(0, "old"), (2_000, "new/report"), (20_000, "old"), (45_000, "new/report")]
)
def test_a_report_without_room_is_absent_or_as_it_was(
    most: int, name: str, run: Path, tmp_path: Path, largest_file: LargestFile
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for there in ("report.html", "report.md", "notes of somebody else"):
        (old / there).write_text("before")
    before = contents(tmp_path)
    with largest_file(most):
        code, lines = storebench("report", run, "--out", tmp_path / name)
    assert code == 5
    told(lines, tmp_path / name)
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


@contextlib.contextmanager
def mounted_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.parametrize(("size", "name"), [("16k", "."), ("100k", "report")])
def test_a_report_on_a_full_disk_is_absent(size: str, name: str, run: Path, tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path / "small", size) as small:
        code, lines = storebench("report", run, "--out", small / name)
        assert code == 5
        told(lines, small / name)
        assert "the disk is full" in lines[0]
        assert not list(small.iterdir())


@pytest.mark.parametrize("most", [0, 100, 20_000])
def test_a_trace_without_room_is_absent_or_as_it_was(
    most: int, stepped: Path, tmp_path: Path, largest_file: LargestFile
) -> None:
    (tmp_path / "old.json").write_text("before")
    for name in ("old.json", "new.json"):
        with largest_file(most):
            code, lines = storebench("trace", stepped, "--out", tmp_path / name)
        assert code == 5
        told(lines, tmp_path / name)
    assert contents(tmp_path) == {"old.json": b"before"}


def test_a_trace_and_a_report_with_room_are_whole(run: Path, stepped: Path, tmp_path: Path) -> None:
    assert storebench("trace", stepped, "--out", tmp_path / "trace.json")[0] == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for _ in range(2):  # over itself, too
        assert storebench("report", run, "--out", tmp_path / "report")[0] == 0
    names = set(contents(tmp_path / "report"))
    assert {"report.html", "report.md", "table-imagenet-4000.csv", "throughput-imagenet-4000.png"} <= names
    assert not [name for name in names if name.startswith(".")]


def printed(target: Path, most: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line with its standard output in a file that may not grow beyond `most` bytes."""
    words = [*map(str, arguments)]
    errors, theirs = os.pipe()
    with target.open("ab") as file, os.fdopen(errors, encoding="utf-8") as read:
        streams, limits = (file.fileno(), theirs), {"largest_file": most}
        command = SERVER.start(*words, cwd=target.parent, env=os.environ, streams=streams, limits=limits)
        os.close(theirs)
        return subprocess.CompletedProcess(words, command.wait(120), None, read.read())


@pytest.mark.parametrize("most", [10, 5_000])
def test_json_on_standard_output_is_whole_or_absent(most: int, tmp_path: Path) -> None:
    target = tmp_path / "formats.json"
    target.write_bytes(b"before\n")
    done = printed(target, most, "formats", "--json")
    assert done.returncode == 5
    told(done.stderr.splitlines(), target)
    assert target.read_bytes() == b"before\n"
    target.unlink()
    assert printed(target, 1 << 20, "formats", "--json").returncode == 0
    assert json.loads(target.read_text())


@pytest.mark.parametrize("arguments", [("formats",), ("validate", "RUN", "--json")])
def test_a_full_standard_output_is_told_in_one_line(arguments: tuple[str, ...], run: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    words = [str(run) if word == "RUN" else word for word in arguments]
    done = printed(Path("/dev/full"), 1 << 20, *words)
    assert done.returncode == 5
    [line] = done.stderr.splitlines()
    assert "the disk is full" in line
