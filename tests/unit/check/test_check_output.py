"""What a check writes: a table, Markdown and JSON, whole or not at all, and names of cells that command nothing."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from storebench.record.lines import PAIRING_NAME
from tests.support.planted_sides import failed, record, run_of, slower, write_run

LargestFile = Callable[[int], AbstractContextManager[None]]

PWN = "lost\n::error::pwn ##[error]x \x1b[31m\u202e<script>alert(1)</script> | [x](http://e)"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")


def run(*arguments: Any) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["check", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Return two sides of which LMDB is slower, HDF5 is only in the baseline and LevelDB only in the contender."""
    shared = {"lmdb": 1e-6, "png": 3e-6}
    first = run_of(tmp_path / "a", {**shared, "hdf5": 2e-6})
    second = run_of(tmp_path / "b", {**shared, "leveldb": 2e-6}, seed=1, change=slower(1.5))
    for folder in (first, second):
        (folder / PAIRING_NAME).write_text('{"pairing": "same"}')
    return first, second


def test_json_holds_everything_and_markdown_the_same_table(sides: tuple[Path, Path], tmp_path: Path) -> None:
    comment = tmp_path / "check.md"
    code, out, _ = run(*sides, "--json", "--markdown", comment)
    raw = json.loads(out)
    assert raw["outcome"]["exit_code"] == code == 5
    cells = {cell["label"].split("/")[1]: cell for cell in raw["cells"]}
    states = {name: cell["state"] for name, cell in cells.items()}
    assert states == {"lmdb": "worse", "png": "within noise", "hdf5": "missing", "leveldb": "new"}
    ratio = cells["lmdb"]["ratio"]
    assert 1.4 < ratio["low"] < ratio["mid"] < ratio["high"] < 1.6
    text = comment.read_text()
    assert text.startswith("### storebench check\n\n**LMDB 1.5")
    told, folded = text.split("<details>")
    rows = [
        [row.split("|")[1].strip() for row in part.splitlines() if " | " in row] for part in (told, folded)
    ]
    assert [names[2:] for names in rows] == [["LMDB", "HDF5", "LevelDB"], ["PNG files"]]


def test_two_sides_of_the_same_code_have_an_outcome_as_well(tmp_path: Path) -> None:
    sides, comment = (tmp_path / "a", tmp_path / "b"), tmp_path / "check.md"
    for folder in sides:
        folder.mkdir()
        (folder / PAIRING_NAME).write_text('{"pairing": "equal", "same": true}')
    code, out, _ = run(*sides, "--markdown", comment)
    assert (code, out.count("\n"), "the same code" in out) == (0, 1, True)
    assert out.strip() in comment.read_text()
    code, out, _ = run(*sides, "--json")
    assert (json.loads(out)["outcome"]["exit_code"], json.loads(out)["cells"]) == (0, [])


def test_the_first_line_is_the_outcome_and_cells_without_a_change_have_no_row(
    sides: tuple[Path, Path],
) -> None:
    code, out, err = run(*sides)
    assert (code, err) == (5, "")
    assert out.startswith("LMDB 1.5")
    assert ("times slower [" in out, "; HDF5: the baseline has it" in out, "PNG" in out) == (
        True,
        True,
        False,
    )


def test_a_comment_is_whole_or_as_it_was(
    sides: tuple[Path, Path], largest_file: LargestFile, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("before")
    for target in ("old", "new"):
        with largest_file(50):
            code, out, err = run(*sides, "--markdown", tmp_path / "out" / target)
        assert (code, out) == (5, "")
        assert "nothing half-written was kept" in err
    assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [("old", "before")]
    assert run(*sides, "--markdown", tmp_path / "absent" / "x.txt")[0] == 2


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_a_record_says_of_its_failure_commands_nothing(options: tuple[str, ...], tmp_path: Path) -> None:
    sound = run_of(tmp_path / "a", {"lmdb": 1e-6})
    broken = write_run(tmp_path / "b", [failed(record("lmdb", 0, 1e-6), PWN)])
    comment = tmp_path / "check.md"
    code, out, err = run(sound, broken, *options, "--markdown", comment)
    assert (code, "pwn" in out) == (5, True)
    written = out + err + comment.read_text()
    assert not CONTROL.search(written)
    assert not [line for line in written.splitlines() if line.lstrip().startswith("::")]
    assert "<script" not in comment.read_text()
    rows = [row for row in comment.read_text().splitlines() if row.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}
