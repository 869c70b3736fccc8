"""Files of JSON lines: what was there before a failed write stays, and lines move as a whole."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from storebench.errors import DiskFullError, OutputError
from storebench.fileio import json_lines
from storebench.fileio.json_lines import append_lines, replace_lines, rows_of

Rows = list[dict[str, Any]]


def rows(path: Path) -> Rows:
    return list(rows_of(path))


def numbered(*numbers: int) -> Rows:
    return [{"n": number} for number in numbers]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines.jsonl"


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    return tmp_path / "aside.jsonl"


def is_odd(row: dict[str, Any]) -> bool:
    return bool(row["n"] % 2)


def test_blocks_follow_each_other(path: Path) -> None:
    append_lines(path, numbered(1, 2))
    append_lines(path, [])
    append_lines(path, numbered(3))
    assert rows(path) == numbered(1, 2, 3)
    assert path.read_bytes() == b'{"n": 1}\n{"n": 2}\n{"n": 3}\n'


def test_no_rows_make_no_file(path: Path) -> None:
    append_lines(path, [])
    assert not path.exists()
    assert rows(path) == []


def test_an_incomplete_line_costs_only_itself(path: Path) -> None:
    path.write_bytes(b'{"n": 1}\n{"n": 2')
    append_lines(path, numbered(3))
    assert rows(path) == numbered(1, 3)


def test_lines_that_are_no_objects_are_passed_over(path: Path) -> None:
    path.write_bytes(b'[1]\n\nnull\n{"n": 1}\n{"n": NaN}\n\xff\xfe\n{"n": 2}\n')
    assert [row["n"] for row in rows(path) if row["n"] in (1, 2)] == [1, 2]
    assert all(isinstance(row, dict) for row in rows(path))


def test_a_disk_that_fills_leaves_the_old_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_lines(path, numbered(1))
    before, write = path.read_bytes(), os.write

    def half(handle: int, content: memoryview) -> int:
        if len(content) > 4:
            return write(handle, content[:4])
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(DiskFullError, match=r"lines\.jsonl"):
        append_lines(path, numbered(2))
    assert path.read_bytes() == before


def test_a_file_that_could_not_be_begun_is_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(handle: int) -> None:
        raise OSError(errno.EIO, "no device")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputError):
        append_lines(path, numbered(1))
    assert not path.exists()


def test_a_write_in_parts_is_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:3]))
    append_lines(path, numbered(1, 22, 333))
    assert rows(path) == numbered(1, 22, 333)


def test_an_interrupt_leaves_the_old_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_lines(path, numbered(1))

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append_lines(path, numbered(2))
    assert rows(path) == numbered(1)


def test_replaced_lines_move_aside(path: Path, aside: Path) -> None:
    append_lines(path, numbered(1, 2, 3))
    replace_lines(path, aside, is_odd, numbered(4))
    assert rows(path) == numbered(2, 4)
    assert rows(aside) == numbered(1, 3)


def test_rows_are_appended_where_nothing_is_old(path: Path, aside: Path) -> None:
    append_lines(path, numbered(2))
    replace_lines(path, aside, is_odd, numbered(4))
    assert rows(path) == numbered(2, 4)
    assert not aside.exists()
    replace_lines(aside, path, is_odd, numbered(6))
    assert rows(aside) == numbered(6)


def test_lines_that_are_no_objects_stay(path: Path, aside: Path) -> None:
    path.write_bytes(b'broken\n{"n": 1}\n{"n": 3')
    replace_lines(path, aside, is_odd, numbered(5))
    assert path.read_bytes() == b'broken\n{"n": 3\n{"n": 5}\n'
    assert rows(aside) == numbered(1)


def test_a_kill_between_the_two_files_loses_and_doubles_nothing(
    path: Path, aside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_lines(path, numbered(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(
            json_lines, "write_whole", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "gone"))
        )
        with pytest.raises(OutputError, match=r"lines\.jsonl"):
            replace_lines(path, aside, is_odd, numbered(4))
    assert (rows(path), rows(aside)) == (numbered(1, 2), numbered(1))
    replace_lines(path, aside, is_odd, numbered(4))
    assert (rows(path), rows(aside)) == (numbered(2, 4), numbered(1))
