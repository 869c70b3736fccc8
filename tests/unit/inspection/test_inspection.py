"""What a random sample of a foreign file costs: through the command line, on files made by the formats' own libraries."""

import json
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest

from storebench.errors import CorruptDataError, CorruptStoreError, DataNotFoundError
from storebench.stores.inspection import inspect
from tests.support.quick_cli import storebench

FEW = 3
"""Samples to read where the time of a read does not matter."""


@pytest.fixture
def caffe(tmp_path: Path) -> Path:
    """Make a database as Caffe's tools do: long values, keys of eight digits."""
    folder = tmp_path / "caffe"
    with lmdb.open(str(folder), map_size=64 << 20) as env, env.begin(write=True) as transaction:
        for number in range(100):
            transaction.put(b"%08d" % number, bytes(12_300))
    return folder


def test_a_value_of_lmdb_is_read_in_whole_pages(caffe: Path) -> None:
    found = inspect(caffe, samples=FEW)
    (part,) = found.parts
    assert (found.kind, part.samples, part.sample_bytes) == ("LMDB", 100, (12_300, 12_300, 12_300))
    assert (
        part.touched_bytes == 4 * 4096
    )  # 16 bytes of header, 12,300 of value: the first bytes of a fourth page
    assert part.amplification == pytest.approx(16_384 / 12_300)
    assert found.notes["keys"].startswith("the first 100 of 100 ")
    assert sorted(path.name for path in caffe.iterdir()) == ["data.mdb", "lock.mdb"], "nothing is written"


def test_a_named_database_can_be_chosen(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=2, map_size=8 << 20) as env:
        one, two = env.open_db(b"one"), env.open_db(b"two")
        with env.begin(write=True) as transaction:
            transaction.put(b"a", bytes(10), db=one)
            transaction.put(b"a", bytes(10), db=two)
            transaction.put(b"b", bytes(30), db=two)
    assert {part.name: part.samples for part in inspect(tmp_path, samples=FEW).parts} == {"one": 1, "two": 2}
    (part,) = inspect(tmp_path, database="two", samples=FEW).parts
    assert (part.name, part.samples, part.sample_bytes) == ("two", 2, (10, 20, 30))


def test_an_empty_database_has_no_samples(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path), map_size=1 << 20).close()
    (part,) = inspect(tmp_path / "data.mdb", samples=FEW).parts
    assert (part.samples, part.touched_bytes) == (0, 0)


def test_chunks_are_read_whole_and_costly_ones_come_with_their_mending(tmp_path: Path) -> None:
    path = tmp_path / "foreign.h5"
    images = np.random.default_rng(0).integers(0, 256, (500, 64, 64, 3), dtype=np.uint8)
    with h5py.File(path, "w", userblock_size=1024) as file:
        file.create_dataset("train/images", data=images, chunks=(100, 32, 64, 3))
        file.create_dataset("train/packed", data=images, chunks=(1, 64, 64, 3), compression="gzip")
        file.create_dataset("split", data=images, chunks=(100, 32, 32, 3))
        file["flat"] = images
        file["note"] = "a word"
    found = {part.name: part for part in inspect(path, samples=FEW).parts}
    assert set(found) == {"train/images", "train/packed", "split", "flat"}
    costly = found["train/images"]
    assert found["split"].touched_bytes == pytest.approx(4 * 100 * 3_072, rel=0.02)
    assert costly.layout == "chunks of 100x32x64x3, not compressed"
    assert costly.touched_bytes == pytest.approx(2 * 100 * 6_144, rel=0.02)
    assert costly.advice is not None
    assert "h5repack -l train/images:CONTI" in costly.advice
    assert (found["train/packed"].advice, found["flat"].advice) == (None, None)
    assert found["train/packed"].layout.endswith("gzip")
    assert found["flat"].touched_bytes == pytest.approx(12_288, abs=4096)
    text = storebench(tmp_path, "inspect", path, "--samples", FEW)
    assert text.returncode == 0, text.stderr
    assert "h5repack -l train/images:CONTI" in text.stdout
    facts = json.loads(storebench(tmp_path, "inspect", path, "--samples", FEW, "--json").stdout)
    assert [one["name"] for one in facts["parts"]] == list(found)


def test_the_command_line_says_what_a_random_value_costs(caffe: Path) -> None:
    found = storebench(caffe.parent, "inspect", caffe, "--samples", FEW)
    assert found.returncode == 0, found.stderr
    assert "the unnamed database: 100 samples, 12,300 bytes each" in found.stdout
    assert "at least 16,384 bytes, 1.33 times the sample's own" in found.stdout


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    found = storebench(tmp_path, "inspect", tmp_path)
    assert found.returncode == DataNotFoundError.exit_code
    assert found.stderr.count("\n") == 1
    assert "no file to inspect" in found.stderr


@pytest.mark.parametrize("content", [b"", b"\x89HDF", b"PK\x03\x04" + bytes(8192), bytes(3 << 20)])
def test_what_is_neither_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match="neither"):
        inspect(path)


@pytest.mark.parametrize("kind", ["LMDB", "HDF5"])
def test_what_is_cut_short_is_refused(kind: str, caffe: Path, tmp_path: Path) -> None:
    path = caffe / "data.mdb"
    if kind == "HDF5":
        path = tmp_path / "cut.h5"
        with h5py.File(path, "w") as file:
            file["data"] = np.zeros((100, 1000), np.uint8)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises((CorruptDataError, CorruptStoreError)) as caught:
        inspect(path)
    assert "\n" not in str(caught.value)


def test_the_name_of_a_data_set_is_printed_plainly(tmp_path: Path) -> None:
    path = tmp_path / "foreign.h5"
    name = "x\n::error::pwn \x1b[31m\u202e;rm -rf ~"
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=np.zeros((500, 64, 64, 3), np.uint8), chunks=(100, 32, 64, 3))
    found = storebench(tmp_path, "inspect", path, "--samples", FEW)
    assert found.returncode == 0, found.stderr
    assert r"x : :error::pwn \x1b[31m\u202e;rm -rf ~: 500 samples" in found.stdout
    assert "h5repack -l 'x" in found.stdout  # quoted, as a shell wants it
    assert not [line for line in found.stdout.splitlines() if line.lstrip().startswith("::")]
    assert not {"\x1b", "\u202e"} & set(found.stdout)
    [part] = json.loads(storebench(tmp_path, "inspect", path, "--samples", FEW, "--json").stdout)["parts"]
    assert part["name"] == name
