"""What each format puts on disk, read with the plain library, as another tool would."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from PIL import Image as PilImage

from storebench.errors import PLYVEL, CorruptStoreError, UsageError
from storebench.formats.files.format import class_folders
from storebench.formats.lmdb import get as lmdb_write
from storebench.formats.registry import get_format
from storebench.testing.stores import COUNT, SHAPE, SmallStore, build_small_store, read_pixels

plyvel = pytest.importorskip(PLYVEL)

Build = Callable[..., SmallStore]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def build(name: str, codec: str, **options: Any) -> SmallStore:
        folder = tmp_path / f"{name}-{codec}"
        folder.mkdir()
        return build_small_store(get_format(name), codec, folder, **options)

    return build


def test_hdf5_pixels_are_one_contiguous_array(build: Build) -> None:
    small = build("hdf5", "raw")
    with h5py.File(small.path / "data.h5") as file:
        assert file["data"].chunks is None
        np.testing.assert_array_equal(file["data"][()], small.pixels)
        np.testing.assert_array_equal(file["label"][()], small.labels)
        assert file.attrs["codec"] == "raw"
        assert list(file.attrs["class_names"]) == list(small.manifest.dataset.class_names)


def test_hdf5_payloads_lie_between_offsets(build: Build) -> None:
    small = build("hdf5", "png")
    with h5py.File(small.path / "data.h5") as file:
        blob, offsets = file["payload"][()], file["offset"][()]
        assert file.attrs["codec"] == "png"
    found = [blob[start:end].tobytes() for start, end in itertools.pairwise(offsets)]
    assert found == small.payloads


def test_hdf5_offsets_that_lie_are_refused(build: Build) -> None:
    small = build("hdf5", "png")
    with h5py.File(small.path / "data.h5", "r+") as file:
        file["offset"][3] = 10**9
    with small.open() as reader, pytest.raises(CorruptStoreError, match="sample 2"):
        reader.fetch(np.array([2]))


def test_lmdb_holds_caffes_keys(build: Build) -> None:
    small = build("lmdb", "jpeg")
    assert [path.name for path in small.format.data_files(small.path)] == ["data.mdb"]
    with lmdb.open(str(small.path), readonly=True, lock=False) as env, env.begin() as txn:
        records = list(txn.cursor())
    assert [key for key, _ in records] == [b"%08d" % index for index in range(COUNT)] + [b"label"]
    assert [value for _, value in records[:-1]] == small.payloads
    np.testing.assert_array_equal(np.frombuffer(records[-1][1], "<i8"), small.labels)


def test_lmdbs_map_grows_as_it_needs_to(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    first = 16 << 10
    monkeypatch.setattr(lmdb_write, "FIRST_MAP_BYTES", first)
    small = build("lmdb", "raw", count=400)
    assert (small.path / "data.mdb").stat().st_size > 20 * first
    with small.open() as reader:
        np.testing.assert_array_equal(read_pixels(reader, range(400)), small.pixels)


@pytest.mark.parametrize("value", ["on", "off"])
def test_lmdbs_readahead_reaches_the_kernel(value: str, build: Build) -> None:
    small = build("lmdb", "raw")
    with small.format.reader(small.path, small.manifest, "get", {"readahead": value}):
        mapping = Path("/proc/self/smaps").read_text().partition(str(small.path / "data.mdb"))[2]
    flags = mapping.partition("VmFlags:")[2].splitlines()[0].split()
    assert ("rr" in flags) == (value == "off")  # rr: advised that it will be read at random


def test_two_readaheads_of_one_lmdb_in_one_process_are_refused(build: Build) -> None:
    small = build("lmdb", "raw")
    with small.open(), pytest.raises(UsageError, match="another readahead"):
        small.format.reader(small.path, small.manifest, "get", {"readahead": "off"})
    with small.format.reader(small.path, small.manifest, "get", {"readahead": "off"}) as reader:
        np.testing.assert_array_equal(read_pixels(reader, [3]), small.pixels[[3]])


def test_an_lmdb_that_was_rebuilt_is_not_read_through_the_old_one(build: Build, tmp_path: Path) -> None:
    small = build("lmdb", "raw")
    other = tmp_path / "other"
    other.mkdir()
    shorter = build_small_store(get_format("lmdb"), "raw", other, count=5, shape=(2, 2, 1))
    with small.open() as old:
        (small.path / "data.mdb").unlink()
        (other / "data.mdb").rename(small.path / "data.mdb")
        with shorter.open(store=small.path) as new:
            np.testing.assert_array_equal(read_pixels(new, range(5)), shorter.pixels)
        np.testing.assert_array_equal(read_pixels(old, [66]), small.pixels[[66]])


@pytest.mark.parametrize("value", [None, b"short"])
@pytest.mark.parametrize("name", ["lmdb", "leveldb"])
def test_a_record_that_is_missing_or_of_the_wrong_size_is_named(
    name: str, value: bytes | None, build: Build
) -> None:
    small, key = build(name, "raw"), b"00000007"
    says = "sample 7 is missing" if value is None else "sample 7 has 5 bytes"
    if name == "lmdb":
        with lmdb.open(str(small.path), lock=False) as env, env.begin(write=True) as txn:
            assert txn.delete(key) if value is None else txn.put(key, value)
    else:
        with plyvel.DB(str(small.path)) as database:
            database.delete(key) if value is None else database.put(key, value)
    with small.open("get") as reader:
        with pytest.raises(CorruptStoreError, match=says):
            reader.fetch_into(np.array([6, 7]), np.empty((2, *SHAPE), np.uint8))
        if value is None:
            with pytest.raises(CorruptStoreError, match=says):
                reader.fetch(np.array([6, 7, 8]))


def test_leveldb_leaves_nothing_to_replay(build: Build) -> None:
    small = build("leveldb", "raw")
    logs = list(small.path.glob("*.log"))
    assert sum(log.stat().st_size for log in logs) == 0
    tables = list(small.path.glob("*.ldb"))
    # Uncompressed: the payloads lie in the tables as they are.
    assert small.payloads[0] in b"".join(table.read_bytes() for table in tables)
    with plyvel.DB(str(small.path)) as database:
        assert next(iter(database)) == (b"00000000", small.payloads[0])


def test_image_files_lie_in_class_folders(build: Build) -> None:
    small = build("files", "png")
    names = class_folders(small.manifest.dataset.class_names)
    assert len(set(names)) == len(names)
    for index in range(COUNT):
        path = small.path / "images" / names[small.labels[index]] / f"{index:08d}.png"
        np.testing.assert_array_equal(np.asarray(PilImage.open(path)), small.pixels[index])


@pytest.mark.parametrize("names", [("a/b", "a b", "a_b"), ("..", ".", ""), ("x", "x", "x-1")])
def test_class_folders_are_safe_and_distinct(names: tuple[str, ...]) -> None:
    folders = class_folders(names)
    assert len(set(folders)) == len(names)
    assert not [folder for folder in folders if "/" in folder or folder.startswith(".") or not folder]


def test_a_file_that_is_too_long_is_refused(build: Build) -> None:
    small = build("files", "raw")
    path = small.format.locate(small.path, small.manifest, 4)
    path.write_bytes(path.read_bytes() + b"!")
    with small.open() as reader, pytest.raises(CorruptStoreError, match=path.name):
        reader.fetch_into(np.array([4]), np.empty((1, *SHAPE), np.uint8))


def test_memory_refuses_what_does_not_fit(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    small = build("memory", "raw")
    available = small.pixels.nbytes - 1
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=available))
    with pytest.raises(UsageError, match="GiB of memory"):
        small.open()
