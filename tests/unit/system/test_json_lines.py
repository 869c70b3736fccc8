"""Files of JSON lines: what was there before a failed write stays, and lines move as a whole."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.errors import CorruptDataError, DiskFullError, OutputError
from storebench.system import json_lines
from storebench.system.json_lines import append_lines, damaged_end, replace_lines, rows_of

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


@pytest.mark.parametrize("add", [append_lines, lambda path, added: replace_lines(path, path, is_odd, added)])
@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (b'{"n": 4', ()),
        (b'{"n": 4\n', ()),
        (b'{"n": ' + b"\0" * 70_000, ()),
        (b'{"n": "\xff"}\n', ()),
        (b'{"n": "' + b"4" * 200_000, ()),
        (b'{"n": 4}', (4,)),
        (b'{"n": 4}\r\n', (4,)),
        (b'\r\n \n{"n": 4}\n\n', (4,)),
        (b'\xef\xbb\xbf{"n": 4}\n', (4,)),
    ],
)
@pytest.mark.parametrize("before", [(), (2,)])
def test_only_a_damaged_last_line_is_lost_and_then_cut_off(
    path: Path, end: bytes, kept: tuple[int, ...], before: tuple[int, ...], add: Callable[[Path, Rows], None]
) -> None:
    append_lines(path, numbered(*before))
    path.write_bytes((path.read_bytes() if before else b"") + end)
    assert rows(path) == numbered(*before, *kept)
    assert bool(damaged_end(path)) is (not kept and bool(end.strip(b"\0\n")))
    add(path, numbered(6))
    add(path, numbered(8))
    assert rows(path) == numbered(*before, *kept, 6, 8)
    assert path.read_bytes().endswith(b'{"n": 6}\n{"n": 8}\n')


@pytest.mark.parametrize(
    "line",
    [
        b'{"n": 4',
        b"[1]",
        b'{"n": "\xff"}',
        b'{"n": 1}{"n": 2}',
    ],
)
def test_a_damaged_line_before_the_last_is_an_error_with_its_number(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"n": 2}\n\n' + line + b'\n{"n": 4}\n')
    content = path.read_bytes()
    with pytest.raises(CorruptDataError, match=r"lines\.jsonl:3: "):
        rows(path)
    with pytest.raises(CorruptDataError, match=r"lines\.jsonl:3: "):
        replace_lines(path, path, is_odd, numbered(6))
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"[1]\n", b"null", b'{"n": 1}{"n": 2}\n'])
def test_a_last_line_that_no_kill_leaves_is_an_error(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"n": 2}\n' + line)
    for touch in (rows, damaged_end, lambda path: append_lines(path, numbered(6))):
        with pytest.raises(CorruptDataError, match=r"lines\.jsonl"):
            touch(path)
    assert path.read_bytes() == b'{"n": 2}\n' + line


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
