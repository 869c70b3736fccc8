"""LevelDB folders of other programs: what a random value costs, with nothing written to them."""

import os
from pathlib import Path

import pytest

from storebench.errors import CorruptDataError, UsageError
from storebench.stores.inspection import Inspection, SampleSet, inspect
from tests.support.foreign_files import datum, jpegs, numbered, write_leveldb
from tests.support.quick_cli import storebench

plyvel = pytest.importorskip("plyvel")

FEW = 6
IMAGES = jpegs(60)


def main_of(found: Inspection) -> SampleSet:
    assert found.main is not None
    return found.main


def state_of(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    found = {}
    for entry in folder.iterdir():
        status = entry.stat()
        found[entry.name] = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink
    return found


@pytest.mark.parametrize("compact", [True, False])
def test_the_values_of_a_leveldb_are_inspected(tmp_path: Path, compact: bool) -> None:
    values = [datum(data=image, label=number) for number, image in enumerate(IMAGES)]
    folder = write_leveldb(tmp_path / "db", numbered(values), compact=compact)
    before = state_of(folder)
    found = inspect(folder, samples=FEW)
    part = main_of(found)
    assert (found.kind, part.samples, part.exact, part.content) == (
        "LevelDB",
        60,
        True,
        "Caffe Datum of JPEG",
    )
    assert part.sample_bytes is not None
    assert part.sample_bytes[2] == max(map(len, values))
    assert part.warm is not None
    assert part.warm.samples == FEW
    assert state_of(folder) == before, "nothing is written, not even a count of links"


def test_a_large_leveldb_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.leveldb_folder.MOST_SCANNED", 300)
    values = [os.urandom(1000 + number % 400) for number in range(3000)]
    folder = write_leveldb(tmp_path / "db", numbered(values, b"%08d_n0144/n0144.JPEG"))
    part = main_of(inspect(folder, samples=50))
    assert not part.exact
    assert 2400 < part.samples < 3600
    assert part.warm is not None
    assert part.warm.samples > 30, "samples from all parts of the key space"


def test_an_empty_leveldb_has_no_samples(tmp_path: Path) -> None:
    assert main_of(inspect(write_leveldb(tmp_path / "db", []), samples=FEW)).samples == 0


def test_a_leveldb_in_use_is_inspected(tmp_path: Path) -> None:
    folder = write_leveldb(tmp_path / "db", numbered(IMAGES))
    database = plyvel.DB(str(folder))
    try:
        assert main_of(inspect(folder / "CURRENT", samples=FEW)).samples == len(IMAGES)
        assert database.get(b"%08d" % 5) == IMAGES[5]
    finally:
        database.close()


def test_a_damaged_leveldb_is_one_line(tmp_path: Path) -> None:
    folder = write_leveldb(tmp_path / "db", numbered(IMAGES))
    [manifest] = folder.glob("MANIFEST-*")
    manifest.write_bytes(os.urandom(200))
    done = storebench(tmp_path, "inspect", folder)
    assert done.returncode == 5
    [line] = done.stderr.splitlines()
    assert "LevelDB cannot open it" in line


def test_a_rocksdb_is_named(tmp_path: Path) -> None:
    folder = write_leveldb(tmp_path / "db", numbered(IMAGES))
    (folder / "IDENTITY").write_text("x")
    with pytest.raises(CorruptDataError, match="RocksDB"):
        inspect(folder)


def test_a_leveldb_has_no_named_databases(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no named databases"):
        inspect(write_leveldb(tmp_path / "db", numbered(IMAGES)), database="train")


@pytest.mark.parametrize("current", [b"", b"MANIFEST-000002\r\n"])
def test_a_damaged_current_is_damage_and_names_no_folder_of_ours(current: bytes, tmp_path: Path) -> None:
    folder = write_leveldb(tmp_path / "db", numbered(jpegs(20)))
    (folder / "CURRENT").write_bytes(current)
    with pytest.raises(CorruptDataError, match="LevelDB cannot open it") as caught:
        inspect(folder)
    assert "storebench-" not in str(caught.value)
    assert "b'" not in str(caught.value)
