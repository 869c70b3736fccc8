"""The page index against py-lmdb as the judge, on databases of all shapes, whole and damaged."""

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.errors import CorruptStoreError, StorebenchError, UsageError
from storebench.formats.lmdb.index import (
    PageIndex,
    build_index,
    data_file,
    open_index,
)
from storebench.formats.lmdb.pages import PageFile, leaves
from tests.support.thinning import examples

Records = dict[bytes, bytes]
Changes = Mapping[bytes, bytes | None]
"""Key -> value; None deletes the key."""

MAP_BYTES = 64 << 20
FEW = examples(60)


def judged(folder: Path) -> Records:
    """Everything in a database, as py-lmdb reads it."""
    with lmdb.open(str(folder), readonly=True, lock=False) as env, env.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def served(folder: Path, index: PageIndex) -> list[bytes]:
    raw = (folder / "data.mdb").read_bytes()
    ends = zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
    return [raw[start : start + length] for start, length in ends]


def write(folder: Path, *transactions: Changes, **options: Any) -> Path:
    """Write transactions; a value of None deletes its key."""
    with lmdb.open(str(folder), map_size=MAP_BYTES, **{"sync": False, **options}) as env:
        for records in transactions:
            with env.begin(write=True) as txn:
                for key, value in records.items():
                    if value is None:
                        txn.delete(key)
                    else:
                        txn.put(key, value)
        env.sync(True)
    return folder


def numbered(count: int, size: int) -> Records:
    return {b"%08d" % i: i.to_bytes(4, "big") * (size // 4) for i in range(count)}


def read_keys(path: Path) -> list[bytes]:
    """Return every key in order; position i of an index belongs to key i."""
    with PageFile(data_file(path)) as file:
        pages = list(leaves(file, file.meta.main))
    places = (
        (nodes.data, *place) for nodes in pages for place in zip(nodes.keys, nodes.key_lengths, strict=True)
    )
    return [data[start : start + length].tobytes() for data, start, length in places]


def assert_as_lmdb(folder: Path) -> PageIndex:
    index = build_index(folder)
    expected = judged(folder)
    assert read_keys(folder) == list(expected)
    assert served(folder, index) == list(expected.values())
    return index


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "db"


keys = st.binary(min_size=1, max_size=511) | st.binary(min_size=1, max_size=12)
sizes = st.integers(0, 80) | st.integers(1900, 2100) | st.integers(4000, 4200) | st.integers(0, 20_000)
values = st.builds(lambda size, seed: bytes([seed]) * size, sizes, st.integers(0, 255))


@FEW
@given(st.lists(st.dictionaries(keys, values | st.none(), max_size=40), min_size=1, max_size=6))
def test_any_keys_and_values_are_found_where_lmdb_finds_them(
    transactions: list[Changes],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        assert_as_lmdb(write(Path(name) / "db", *transactions))


@pytest.mark.parametrize(("count", "key_bytes", "depth"), [(1, 8, 1), (300, 8, 2), (5000, 505, 5)])
def test_trees_of_one_to_five_levels(folder: Path, count: int, key_bytes: int, depth: int) -> None:
    write(folder, {b"%08d" % i + b"k" * (key_bytes - 8): b"v%d" % i for i in range(count)})
    with PageFile(folder / "data.mdb") as file:
        assert file.meta.main.depth >= depth
    assert_as_lmdb(folder)


def test_numbered_counts_the_keys_that_are_their_own_position(folder: Path) -> None:
    write(folder, numbered(500, 64), {b"label": b"x"})
    assert build_index(folder).numbered == 500
    write(folder, {b"%08d" % 321: None})
    assert build_index(folder).numbered == 321


@pytest.mark.parametrize(("broken", "at"), [(0, 10), (0, 40), (1, 0), (1, 16)])
def test_a_broken_meta_page_is_an_error_as_it_is_to_lmdb(folder: Path, broken: int, at: int) -> None:
    write(folder, {b"a": b"1"}, {b"b": b"2"}, {b"c": b"3"})
    path = folder / "data.mdb"
    raw = bytearray(path.read_bytes())
    raw[broken * 4096 + at] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(CorruptStoreError, match="no LMDB file"):
        build_index(folder)


def test_named_databases_are_refused(folder: Path) -> None:
    with lmdb.open(str(folder), map_size=MAP_BYTES, max_dbs=4) as env:
        for key in (b"train", b"test"):
            with env.begin(write=True, db=env.open_db(key)) as txn:
                txn.put(b"00000000", key)
    with pytest.raises(UsageError, match="named databases"):
        build_index(folder)


def test_another_page_size_is_read(folder: Path) -> None:
    """py-lmdb always takes the machine's page, so the judge here is a file that was laid out by hand."""
    folder.mkdir()
    size = 16384
    (folder / "data.mdb").write_bytes(_hand_made(size, {b"a": b"first", b"bc": b"second"}))
    index = build_index(folder)
    assert index.identity.page_bytes == size
    assert served(folder, index) == [b"first", b"second"]


def _hand_made(size: int, records: Records) -> bytes:
    def meta(number: int) -> bytes:
        page = bytearray(size)
        struct.pack_into("<QHHHH", page, 0, number, 0, 8, 0, 0)
        struct.pack_into("<IIQQ", page, 16, 0xBEEFC0DE, 1, 0, 1 << 20)
        struct.pack_into("<IHHQQQQQ", page, 40, size, 0, 0, 0, 0, 0, 0, (1 << 64) - 1)
        struct.pack_into("<IHHQQQQQ", page, 88, 0, 0, 1, 0, 1, 0, len(records), 2)
        struct.pack_into("<QQ", page, 136, 2, number)
        return bytes(page)

    leaf = bytearray(size)
    upper, pointers = size, []
    for key, value in records.items():
        node = struct.pack("<HHHH", len(value), 0, 0, len(key)) + key + value
        node += b"\0" * (len(node) % 2)
        upper -= len(node)
        leaf[upper : upper + len(node)] = node
        pointers.append(upper)
    struct.pack_into("<QHHHH", leaf, 0, 2, 0, 2, 16 + 2 * len(pointers), upper)
    struct.pack_into(f"<{len(pointers)}H", leaf, 16, *pointers)
    return meta(0) + meta(1) + bytes(leaf)


@pytest.fixture(scope="module")
def victim() -> Iterator[tuple[bytes, Records]]:
    """A database of small and large values and no free pages, in one transaction."""
    with tempfile.TemporaryDirectory() as name:
        records = {
            b"%08d" % i: os.urandom(30) if i % 3 else os.urandom(2500 + 40 * (i % 90)) for i in range(400)
        }
        write(Path(name) / "db", records)
        yield (Path(name) / "db" / "data.mdb").read_bytes(), records


@examples(200)
@given(st.data())
def test_damage_is_an_error_or_leads_to_no_place_outside_the_file(
    victim: tuple[bytes, Records], data: st.DataObject
) -> None:
    raw, _ = victim
    whole = bytearray(raw)
    tree = [at for at in range(0, len(raw), 4096) if at < 8192 or raw[at + 10] in (1, 2)]
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.sampled_from(tree)) + data.draw(st.integers(0, 4095))] = data.draw(
            st.integers(0, 255)
        )
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "data.mdb").write_bytes(whole)
        with contextlib.suppress(StorebenchError):
            index = build_index(name)
            assert (index.offsets >= 0).all()
            assert (index.offsets + index.lengths <= len(whole)).all()


@pytest.mark.parametrize("keep", [0, 4096, 0.5, 0.99])
def test_a_truncated_file_is_an_error(victim: tuple[bytes, Records], tmp_path: Path, keep: float) -> None:
    raw, _ = victim
    path = tmp_path / "data.mdb"
    path.write_bytes(raw[: int(keep if isinstance(keep, int) else keep * len(raw))])
    with pytest.raises(CorruptStoreError):
        build_index(path)


def test_a_branch_that_points_to_itself_is_an_error(folder: Path) -> None:
    write(folder, {b"%0100d" % i: b"v" * 50 for i in range(3000)})
    path = folder / "data.mdb"
    raw = bytearray(path.read_bytes())
    with PageFile(path) as file:
        root = file.meta.main.root
        assert file.meta.main.depth == 3
    pointer = struct.unpack_from("<H", raw, root * 4096 + 16)[0]
    struct.pack_into("<HHH", raw, root * 4096 + pointer, root & 0xFFFF, root >> 16, 0)
    path.write_bytes(raw)
    with pytest.raises(CorruptStoreError):
        build_index(path)


def test_the_index_is_kept_beside_the_store_and_used(folder: Path) -> None:
    write(folder, numbered(100, 3000))
    first = open_index(folder)
    assert [path.name for path in folder.parent.iterdir() if path != folder] == [".db.pages"]
    assert sorted(path.name for path in folder.iterdir()) == ["data.mdb", "lock.mdb"]
    again = open_index(folder)
    assert np.array_equal(first.offsets, again.offsets)
    assert np.array_equal(first.lengths, again.lengths)
    assert again.numbered == 100


def test_a_kept_index_of_another_state_is_not_used(folder: Path) -> None:
    write(folder, numbered(100, 3000))
    open_index(folder)
    write(folder, {b"00000005": b"new", b"00000200": b"more"})
    assert served(folder, open_index(folder)) == list(judged(folder).values())


def test_a_kept_index_that_is_cut_or_damaged_or_no_index_is_built_anew(folder: Path) -> None:
    write(folder, numbered(100, 3000))
    open_index(folder)
    kept = folder.parent / ".db.pages"
    whole = kept.read_bytes()
    for damaged in (whole[:-5], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], os.urandom(5000)):
        kept.write_bytes(damaged)
        assert served(folder, open_index(folder)) == list(judged(folder).values())
