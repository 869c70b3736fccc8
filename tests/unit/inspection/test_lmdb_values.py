"""What is in the values of other programs' LMDB databases, and what a random one costs."""

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from storebench.errors import UnknownNameError
from storebench.stores.inspection import Inspection, SampleSet, inspect
from tests.support.foreign_files import datum, jpegs, numbered, pickled, write_lmdb

FEW = 6
IMAGES = jpegs(60)


def main_of(found: Inspection) -> SampleSet:
    assert found.main is not None
    return found.main


class Trap:
    """A pickle of it makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


RAW = bytes(3 * 8 * 8)

VALUES: dict[str, tuple[list[bytes], str]] = {
    "plain": (IMAGES, "JPEG"),
    "tuples": (pickled(IMAGES), "pickled JPEG, protocol 4"),
    "old tuples": (pickled(IMAGES, 3), "pickled JPEG, protocol 3"),
    "arrays": ([pickle.dumps(np.zeros((8, 8, 3), np.uint8), 5)] * 20, "pickled numpy array, protocol 5"),
    "dictionaries": ([pickle.dumps({"label": 1}, 2)] * 20, "pickled, protocol 2"),
    "raw Datum": (
        [datum(data=RAW, label=number, shape=(3, 8, 8)) for number in range(300)],
        "Caffe Datum of raw pixels, 3x8x8",
    ),
    "encoded Datum": (
        [datum(data=image, label=number) for number, image in enumerate(IMAGES)],
        "Caffe Datum of JPEG",
    ),
    "pixels": ([bytes(range(192))] * 20, ""),
    "empty values": ([b""] * 20, ""),
    "images and texts": ([*IMAGES, *[b"no image"] * 20], "JPEG or other bytes"),
    "half a pickle": ([pickle.dumps(b"x" * 500, 4)[:300] + b"."] * 20, ""),
    "half a Datum": ([datum(data=RAW, label=1, shape=(3, 8, 8))[:-50]] * 20, ""),
    "a Datum of another shape": ([datum(data=RAW, label=1, shape=(3, 8, 9))] * 20, ""),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_named_by_their_first_bytes(tmp_path: Path, name: str) -> None:
    values, content = VALUES[name]
    path = write_lmdb(tmp_path / "db", numbered(values))
    part = main_of(inspect(path, samples=len(values)))
    lengths = [len(value) for value in values]
    assert (part.samples, part.exact, part.content) == (len(values), True, content)
    assert part.sample_bytes == (min(lengths), int(np.median(lengths)), max(lengths))
    assert part.warm is not None
    assert part.warm.samples == len(values)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    trap = tmp_path / "loaded"
    path = write_lmdb(tmp_path / "db", numbered([pickle.dumps(Trap(trap), 4)] * 20))
    assert main_of(inspect(path, samples=20)).content == "pickled, protocol 4"
    assert not trap.exists()


def test_keys_of_two_patterns_are_two_parts(tmp_path: Path) -> None:
    labels = [b"text %d" % number for number in range(len(IMAGES))]
    records = [
        *numbered(IMAGES, b"image-%09d"),
        *numbered(labels, b"label-%09d"),
        (b"num-samples", b"60"),
    ]
    found = inspect(write_lmdb(tmp_path / "db", records), samples=FEW)
    assert [(part.name, part.samples) for part in found.parts] == [("image-#", 60), ("label-#", 60)]
    assert main_of(found).content == "JPEG"
    assert found.notes["other records"] == "num-samples"


def test_keys_of_any_pattern_are_one_part(tmp_path: Path) -> None:
    keys = [bytes([97 + number % 26, 97 + number // 26]) for number in range(len(IMAGES))]
    found = inspect(write_lmdb(tmp_path / "db", zip(keys, IMAGES, strict=True)), samples=FEW)
    assert [(part.name, part.samples) for part in found.parts] == [("", 60)]


def test_all_named_databases_are_inspected(tmp_path: Path) -> None:
    write_lmdb(tmp_path, numbered(IMAGES[:30]), name="train")
    write_lmdb(tmp_path, numbered(IMAGES[30:40]), name="val")
    found = inspect(tmp_path, samples=FEW)
    assert {(part.name, part.samples, part.content) for part in found.parts} == {
        ("train", 30, "JPEG"),
        ("val", 10, "JPEG"),
    }
    assert main_of(found).name == "train"
    [only] = inspect(tmp_path, database="val", samples=FEW).parts
    assert (only.name, only.samples) == ("val", 10)
    with pytest.raises(UnknownNameError, match="Did you mean 'train'"):
        inspect(tmp_path, database="trian")


def test_integer_keys_are_read(tmp_path: Path) -> None:
    records = [(number.to_bytes(8, "little"), image) for number, image in enumerate(IMAGES)]
    path = write_lmdb(tmp_path / "db", records, name="images", integerkey=True)
    part = main_of(inspect(path, samples=FEW))
    assert (part.name, part.samples, part.content) == ("images", 60, "JPEG")


def test_several_values_per_key_are_counted_only(tmp_path: Path) -> None:
    records = [(b"key", b"%d" % number) for number in range(30)]
    path = write_lmdb(tmp_path / "db", records, name="many", dupsort=True)
    [part] = inspect(path, samples=FEW).parts
    assert (part.samples, part.sample_bytes, part.warm) == (30, None, None)
    assert part.unread == "databases with several values per key are not read"


def test_a_large_tree_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.lmdb_file.MOST_LEAVES", 8)
    values = [bytes(1200 + number % 600) for number in range(1500)]
    path = write_lmdb(tmp_path / "db", numbered(values))
    found = inspect(path, samples=FEW)
    part = main_of(found)
    assert (part.samples, part.exact) == (1500, True)
    assert part.sample_bytes is not None
    assert 1200 <= part.sample_bytes[0] < 1250
    assert part.sample_bytes[1] == pytest.approx(np.median(list(map(len, values))), rel=0.03)
    assert "page index" not in found.notes


def test_a_file_with_any_name_is_inspected_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "train.lmdb"
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=8 << 20) as env,
        env.begin(write=True) as transaction,
    ):
        for key, value in numbered(IMAGES):
            transaction.put(key, value)
    path.chmod(stat.S_IRUSR)
    before = path.stat()
    assert main_of(inspect(path, samples=FEW)).samples == len(IMAGES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.lmdb"], "no lock file, no page index"
    after = path.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns, after.st_nlink) == (
        before.st_mtime_ns,
        before.st_ctime_ns,
        1,
    )


HOLD = """
import lmdb, sys
with lmdb.open(sys.argv[1]) as env, env.begin() as transaction:
    print(len(transaction.get(b"00000003")), flush=True)
    sys.stdin.read()
    print(len(transaction.get(b"00000003")))
"""


def test_a_database_in_use_is_inspected(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path, numbered(IMAGES))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        assert int(user.stdout.readline()) == len(IMAGES[3])
        part = main_of(inspect(path, samples=FEW))
        out, _ = user.communicate("")
    assert part.warm is not None
    assert part.warm.samples == FEW
    assert part.cold is not None
    assert part.cold.samples == 0 or part.cold.verified
    assert int(out) == len(IMAGES[3])


def test_a_sparse_database_is_as_large_as_its_blocks(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path / "db"), map_size=8 << 30, writemap=True)
    with environment, environment.begin(write=True) as transaction:
        for number in range(400):
            transaction.put(b"%08d" % number, bytes([number % 251]) * 3000)
    assert (tmp_path / "db" / "data.mdb").stat().st_size == 8 << 30
    found = inspect(tmp_path / "db")
    assert found.file_bytes < 8 << 20
