"""A check of files that somebody else wrote: their names command nothing; what it writes is whole or absent."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from tests.support.planted_sides import CELLS, failed, record, run_of, write_run, write_sessions

LargestFile = Callable[[int], AbstractContextManager[None]]

PWN = "lost\n::error::pwn ##[error]x \x1b[31m\u202e<script>alert(1)</script> | [x](http://e)"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")


def check(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["check", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """A baseline with a cell whose name is a trap, which the contender lacks."""
    first = write_sessions(tmp_path / "a", seed=1, cells=(*CELLS[:2], PWN))
    return first, write_sessions(tmp_path / "b", seed=2, slower={CELLS[0]: 1.5}, cells=CELLS[:2])


def harmless(text: str) -> None:
    assert not CONTROL.search(text)
    assert not [line for line in text.split("\n") if line.lstrip().startswith("::")]
    assert "##[" not in text


@pytest.mark.parametrize("name", ["text", "markdown", "junit", "json"])
def test_a_cell_that_is_called_like_a_command_commands_nothing(name: str, sides: tuple[Path, Path]) -> None:
    code, out, err = check(*sides, "--format", name)
    assert code == 5
    assert "pwn" in out
    harmless(out)
    harmless(err)
    if name == "junit":
        assert len(ET.fromstring(out).findall("testcase")) == 3
    if name == "markdown":
        assert "<script" not in out
        assert "](" not in out
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in out.splitlines() if row.startswith("|")} == {7}


def test_annotations_are_ours_alone(sides: tuple[Path, Path]) -> None:
    code, out, err = check(*sides, "--format", "github")
    assert code == 5
    lines = out.splitlines()
    assert len(lines) == 3  # the missing cell, the slower one, the outcome
    assert all(re.match(r"::(error|warning) title=[^:,\x00-\x1f]+::[^\x00-\x1f]*$", line) for line in lines)
    assert any("%3A %3Aerror" in line for line in lines)
    harmless(err)


def test_what_a_record_says_of_its_failure_is_plain(tmp_path: Path) -> None:
    sound = run_of(tmp_path / "a", {"lmdb": 1e-6})
    broken = write_run(tmp_path / "b", [failed(record("lmdb", 0, 1e-6), PWN)])
    for name in ("text", "markdown"):
        code, out, err = check(sound, broken, "--format", name)
        assert code == 5
        assert "pwn" in out
        harmless(out + err)


def test_an_update_that_is_refused_names_cells_plainly(
    sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check("results/baselines/ci", sides[0], "--update")[0] == 0
    code, _, err = check("results/baselines/ci", sides[1], "--update")
    assert code == 1
    assert "pwn" in err
    harmless(err)


@pytest.mark.parametrize("most", [0, 50])
@pytest.mark.parametrize("name", ["text", "markdown", "github", "junit", "json"])
def test_what_a_check_writes_is_whole_or_as_it_was(
    name: str, most: int, sides: tuple[Path, Path], largest_file: LargestFile, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("before")
    for target in ("old", "new"):
        with largest_file(most):
            code, out, err = check(*sides, "--format", name, "--out", tmp_path / "out" / target)
        assert (code, out) == (5, "")
        assert err.startswith(f"storebench: {tmp_path / 'out' / target}: ")
        assert "nothing half-written was kept" in err
    assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [("old", "before")]


@pytest.mark.parametrize("most", [0, 300, 3_000])
def test_a_baseline_without_room_is_as_it_was(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest_file: LargestFile
) -> None:
    monkeypatch.chdir(tmp_path)
    small = write_sessions(tmp_path / "small", count=1, cells=CELLS[:1])
    large = write_sessions(tmp_path / "large", cells=CELLS)
    target = Path("results/baselines/ci")
    with largest_file(most):
        assert check(target, large, "--update", "--reason", "more cells")[0] == 5
    assert not Path("results").exists()
    assert check(target, small, "--update")[0] == 0
    before = (target / "baseline.json").read_bytes()
    with largest_file(most or len(before)):  # room for the copy in the history, and not for the new one
        code, _, err = check(target, large, "--update", "--reason", "more cells")
    assert code == 5
    assert str(target) in err
    assert (target / "baseline.json").read_bytes() == before
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["baseline.json"]


def test_a_baseline_cannot_choose_where_its_copy_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = write_sessions(tmp_path / "a", seed=1)
    target = Path("results/baselines/ci")
    check(target, first, "--update")
    path = target / "baseline.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created_utc": "../../../pwned" + "x" * 300}))
    assert check(target, first, "--update", "--reason", "again")[0] == 0
    [kept] = (target / "history").iterdir()
    assert kept.name.endswith(".json")
    assert not list(tmp_path.glob("*pwned*"))
