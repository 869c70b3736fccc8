"""LMDB files whose damage the library would follow out of the file: one line and exit code 5, never a signal."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.refusals import refused
from tests.support.quick_cli import storebench

PAGE = 4096
BRANCH, LEAF = 1, 2
FAR = 0xFFF8
"""A place in a page that no page has."""


def pages_of(data: bytearray, kind: int) -> list[int]:
    """Return where pages of this kind begin, as a writer that only appends leaves them."""
    return [
        at for at in range(2 * PAGE, len(data), PAGE) if struct.unpack_from("<H", data, at + 10)[0] == kind
    ]


def point_beyond_the_last_leaf(data: bytearray) -> None:
    at = pages_of(data, LEAF)[-1]
    for pointer in range(at + 16, at + struct.unpack_from("<H", data, at + 12)[0], 2):
        struct.pack_into("<H", data, pointer, FAR)


def point_beyond_every_leaf(data: bytearray) -> None:
    for at in pages_of(data, LEAF):
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


DAMAGE: dict[str, Callable[[bytearray], None]] = {
    "a pointer out of the last leaf": point_beyond_the_last_leaf,
    "pointers out of every leaf": point_beyond_every_leaf,
    "a branch with one child": leave_the_branch_one_child,
}


def damage(store: Path, name: str) -> None:
    path = store / "data.mdb"
    data = bytearray(path.read_bytes())
    DAMAGE[name](data)
    assert data != path.read_bytes()
    path.write_bytes(data)


@pytest.mark.parametrize("name", DAMAGE)
def test_verify_refuses_a_tree_that_would_end_the_process(stores: Path, tmp_path: Path, name: str) -> None:
    store = stores / "lmdb+raw"
    damage(store, name)
    refused(
        storebench(tmp_path, "verify", store, "--reader", "get"), "data.mdb", "Convert the dataset again."
    )


@pytest.mark.parametrize("name", DAMAGE)
def test_inspect_refuses_a_tree_that_would_end_the_process(stores: Path, tmp_path: Path, name: str) -> None:
    store = stores / "lmdb+raw"
    damage(store, name)
    refused(
        storebench(tmp_path, "inspect", store, "--samples", "20"), "data.mdb", "Write the database again."
    )


def test_convert_refuses_a_source_that_would_end_the_process(stores: Path, tmp_path: Path) -> None:
    damage(stores / "lmdb+raw", "a pointer out of the last leaf")
    done = storebench(tmp_path, "convert", "hdf5", "--from", stores / "lmdb+raw", "--out", "others")
    refused(done, "data.mdb")
    assert not (tmp_path / "others").exists()
