"""Snapshots go when they should and stay while they are needed."""

import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.errors import CorruptStoreError
from storebench.formats.registry import get_format
from storebench.formats.snapshot import Snapshot
from storebench.record.manifest import Manifest
from storebench.testing.stores import SmallStore, build_small_store, read_pixels


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty folder for temporary files. Its path is short: torch's workers put sockets into it."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "big.ldb").write_bytes(b"table")
    (folder / "CURRENT").write_bytes(b"which")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    folder = tmp_path / "store"
    folder.mkdir()
    return build_small_store(get_format("leveldb"), "raw", folder)


def is_big(path: Path) -> bool:
    return path.suffix == ".ldb"


def test_big_files_are_linked_and_small_ones_copied(source: Path, temporary: Path) -> None:
    snapshot = Snapshot("test", source, linked=is_big)
    assert (snapshot.folder / "big.ldb").samefile(source / "big.ldb")
    assert not (snapshot.folder / "CURRENT").samefile(source / "CURRENT")
    assert (snapshot.folder / "CURRENT").read_bytes() == b"which"
    assert snapshot.links == "hard links"
    snapshot.remove()
    snapshot.remove()
    assert list(temporary.iterdir()) == []


def test_leveldb_reads_through_symbolic_links(store: SmallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path, _target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with store.open() as reader:
        assert reader.notes() == {"snapshot": "symbolic links"}
        np.testing.assert_array_equal(read_pixels(reader, range(67)), store.pixels)


def test_a_failed_snapshot_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(CorruptStoreError, match="nowhere"):
        Snapshot("test", tmp_path / "nowhere", linked=is_big)
    assert list(temporary.iterdir()) == []


def _open_and_return(path: Path, kept: list[Any]) -> None:
    kept.append(get_format("leveldb").reader(path, Manifest.read(path)))


def test_a_worker_that_ends_removes_it(store: SmallStore, temporary: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_open_and_return, args=(store.path, []))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(temporary.iterdir()) == []
