"""What a check writes: four formats, whole or not at all, and names of cells that command nothing."""

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
from tests.support.checked import check
from tests.support.planted_sides import failed, paired, record, run_of, slower, write_run

LargestFile = Callable[[int], AbstractContextManager[None]]

FORMATS = ("text", "markdown", "github", "json")
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


LOST = ("--allow-missing", "*/hdf5/*")


def test_json_holds_everything(sides: tuple[Path, Path]) -> None:
    code, out, err = run(*sides, *LOST, "--format", "json")
    raw = json.loads(out)
    assert raw["outcome"]["exit_code"] == code == 1
    cells = {one["label"].split("/")[1]: one for one in raw["cells"]}
    states = {name: one["state"] for name, one in cells.items()}
    assert states == {"lmdb": "worse", "png": "within noise", "hdf5": "missing", "leveldb": "new"}
    assert 1.4 < cells["lmdb"]["low"] < cells["lmdb"]["ratio"] < cells["lmdb"]["high"] < 1.6
    assert err.startswith("storebench check: regression, 1 of 4 cells: cifar10/lmdb/")


def test_the_last_line_is_printed_once(sides: tuple[Path, Path]) -> None:
    _, out, err = run(*sides)
    assert "exit code 5" in out.splitlines()[-1]
    assert not err
    _, out, err = run(*sides, "--format", "json")
    assert err.startswith("storebench check: missing")


def test_github_annotates_what_somebody_should_see(sides: tuple[Path, Path]) -> None:
    _, out, _ = run(*sides, "--format", "github")
    lines = out.splitlines()
    label = check(*sides)["lmdb"].label
    assert [line.split("::")[1].split()[0] for line in lines] == ["error", "error", "warning", "error"]
    assert any(line.startswith(f"::error title={label}::worse") and "%25" in line for line in lines)


def test_an_undecided_check_is_a_warning(tmp_path: Path) -> None:
    sides = paired(tmp_path, replicates=3)
    code, out, _ = run(*sides, "--format", "github")
    assert (code, "::error" in out) == (4, False)
    assert out.splitlines()[-1].startswith("::warning title=storebench check::inconclusive, 3 of 3 cells:")


def test_several_formats_go_to_several_files(sides: tuple[Path, Path], tmp_path: Path) -> None:
    raw, markdown = tmp_path / "check.json", tmp_path / "check.md"
    out = ["--format", "json", "--out", raw, "--format", "markdown", "--out", markdown, "--format", "text"]
    code, printed, _ = run(*sides, *LOST, *out)
    assert code == 1
    assert json.loads(raw.read_text())["outcome"]["exit_code"] == 1
    assert markdown.read_text().startswith("### storebench check")
    assert printed.startswith("cell")
    assert run(*sides, "--format", "text", "--out", tmp_path / "a.txt", "--out", tmp_path / "b.txt")[0] == 2
    assert run(*sides, "--out", tmp_path / "absent" / "x.txt")[0] == 2


@pytest.mark.parametrize("most", [0, 50])
@pytest.mark.parametrize("name", FORMATS)
def test_what_a_check_writes_is_whole_or_as_it_was(
    name: str, most: int, sides: tuple[Path, Path], largest_file: LargestFile, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("before")
    for target in ("old", "new"):
        with largest_file(most):
            code, out, err = run(*sides, "--format", name, "--out", tmp_path / "out" / target)
        assert (code, out) == (5, "")
        assert err.startswith(f"storebench: {tmp_path / 'out' / target}: ")
        assert "nothing half-written was kept" in err
    assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [("old", "before")]


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_record_says_of_its_failure_commands_nothing(name: str, tmp_path: Path) -> None:
    sound = run_of(tmp_path / "a", {"lmdb": 1e-6})
    broken = write_run(tmp_path / "b", [failed(record("lmdb", 0, 1e-6), PWN)])
    code, out, err = run(sound, broken, "--format", name)
    assert (code, "pwn" in out) == (5, True)
    assert not CONTROL.search(out + err)
    if name == "github":
        assert len(out.splitlines()) == 2
        assert all(
            re.match(r"::error title=[^:,\x00-\x1f]+::[^\x00-\x1f]*$", line) for line in out.splitlines()
        )
        return
    assert not [line for line in (out + err).splitlines() if line.lstrip().startswith("::")]
    if name == "markdown":
        assert "<script" not in out
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in out.splitlines() if row.startswith("|")} == {7}
