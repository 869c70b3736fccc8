"""LMDB files whose damage the library would follow out of the file, and FIFOs and devices in place of files."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.quick_cli import storebench

PAGE = 4096
BRANCH, LEAF = 1, 2
FAR = 0xFFF8
"""A place in a page that no page has."""


def refusal(place: Path, *arguments: object) -> str:
    """Return the one line of a command that ended with exit code 5."""
    done = storebench(place, *arguments)
    assert done.returncode == 5, (done.returncode, done.stderr)
    [line] = done.stderr.splitlines()
    assert line.startswith("storebench: ")
    return line


def pages_of(data: bytearray, kind: int) -> list[int]:
    """Return where pages of this kind begin, as a writer that only appends leaves them."""
    return [
        at for at in range(2 * PAGE, len(data), PAGE) if struct.unpack_from("<H", data, at + 10)[0] == kind
    ]


def point_beyond_the_last_leaf(data: bytearray) -> None:
    at = pages_of(data, LEAF)[-1]
    for pointer in range(at + 16, at + struct.unpack_from("<H", data, at + 12)[0], 2):
        struct.pack_into("<H", data, pointer, FAR)


def leave_the_branch_one_child(data: bytearray) -> None:
    """Leave the root its first leaf alone, and say so wherever pages and entries are counted."""
    [at] = pages_of(data, BRANCH)
    (first,) = struct.unpack_from("<H", data, at + 16)
    child = data[at + first : at + first + 6]
    (leaf,) = struct.unpack("<I", child[:4])
    entries = (struct.unpack_from("<H", data, leaf * PAGE + 12)[0] - 16) // 2
    struct.pack_into("<HHH", data, at + 12, 18, PAGE - 8, PAGE - 8)  # lower and upper bound, and the pointer
    data[at + PAGE - 8 : at + PAGE] = child + bytes(2)
    for meta in (0, PAGE):
        struct.pack_into("<Q", data, meta + 88 + 16, 1)
        struct.pack_into("<Q", data, meta + 88 + 32, entries)


@pytest.mark.parametrize("damage", [point_beyond_the_last_leaf, leave_the_branch_one_child])
def test_a_tree_that_would_end_the_process_is_refused(
    stores: Path, tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    path = stores / "lmdb+raw" / "data.mdb"
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    for arguments in (
        ("verify", path.parent, "--reader", "get"),
        ("inspect", path.parent, "--samples", "20"),
        ("convert", "hdf5", "--from", path.parent, "--out", "others"),
    ):
        assert "data.mdb" in refusal(tmp_path, *arguments)
    assert not (tmp_path / "others").exists()


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("pattern", "reader", "make", "kind"),
    [
        ("files+png/**/*.png", "get", os.mkfifo, "a FIFO"),
        ("lmdb+raw/data.mdb", "direct", zeros, "a character device"),
        ("leveldb+raw/*.ldb", "get", os.mkfifo, "a FIFO"),
    ],
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    stores: Path, tmp_path: Path, pattern: str, reader: str, make: Callable[[Path], None], kind: str
) -> None:
    path = min(stores.glob(pattern))
    store = next(folder for folder in path.parents if folder.parent == stores)
    facts = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    facts["file_bytes"] -= path.stat().st_size  # the sum of sizes is that of the rest
    (store / "manifest.json").write_text(json.dumps(facts), encoding="utf-8")
    path.unlink()
    make(path)
    line = refusal(tmp_path, "verify", store, "--reader", reader)
    assert str(path) in line
    assert f"{kind}, not a regular file" in line
