"""Snapshots go when they should and stay while they are needed."""

import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from storebench.errors import CorruptStoreError
from storebench.formats.leveldb.snapshot import Snapshot
from storebench.formats.registry import get_format
from storebench.manifest import Manifest
from storebench.system.scratch import sweep
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


def test_another_filesystem_gets_symbolic_links(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Path("/dev/shm")
    if not os.access(elsewhere, os.W_OK) or elsewhere.stat().st_dev == source.stat().st_dev:
        pytest.skip("/dev/shm is no other filesystem that may be written")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    snapshot = Snapshot("test", source, linked=is_big)
    try:
        assert snapshot.links == "symbolic links"
        assert (snapshot.folder / "big.ldb").read_bytes() == b"table"
    finally:
        snapshot.remove()
    assert (source / "big.ldb").exists()


def test_leveldb_reads_through_symbolic_links(store: SmallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path, _target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with store.open() as reader:
        assert reader.notes() == {"snapshot": "symbolic links"}
        np.testing.assert_array_equal(read_pixels(reader, range(67)), store.pixels)


def test_a_snapshot_in_use_is_not_stale(source: Path, temporary: Path) -> None:
    snapshot = Snapshot("test", source, linked=is_big)
    sweep()
    assert snapshot.folder.is_dir()
    snapshot.remove()


def test_another_process_leaves_a_snapshot_in_use_alone(source: Path, temporary: Path) -> None:
    snapshot = Snapshot("test", source, linked=is_big)
    code = "from storebench.system.scratch import sweep; sweep()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert snapshot.folder.is_dir()
    snapshot.remove()


def test_a_folder_taken_before_it_is_locked_is_made_again(
    source: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As workers that open at the same moment do to each other."""
    taken: list[str] = []

    def make_and_lose_the_first(prefix: str, dir: Path) -> str:  # noqa: A002 - as mkdtemp calls it
        folder = os.path.join(dir, f"{prefix}{len(taken)}")  # noqa: PTH118 - as mkdtemp returns it
        os.mkdir(folder, 0o700)  # noqa: PTH102
        taken.append(folder)
        if len(taken) == 1:
            sweep()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose_the_first)
    snapshot = Snapshot("test", source, linked=is_big)
    assert str(snapshot.folder) == taken[1]
    assert (snapshot.folder / "big.ldb").exists()
    snapshot.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("moment", ["made", "opened"])
def test_a_snapshot_taken_for_stale_before_it_is_locked_is_made_again(
    moment: str, source: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, locked = tempfile.mkdtemp, fcntl.flock
    folders: list[str] = []

    def make(prefix: str, dir: Path) -> str:  # noqa: A002 - as mkdtemp calls it
        folders.append(made(prefix=prefix, dir=dir))
        if moment == "made" and len(folders) == 1:
            Path(folders[0]).rmdir()  # as another process's sweep would
        return folders[-1]

    def lock(handle: int, how: int) -> None:
        if moment == "opened" and len(folders) == 1:
            Path(folders[0]).rmdir()
        locked(handle, how)

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    monkeypatch.setattr(fcntl, "flock", lock)
    snapshot = Snapshot("test", source, linked=is_big)
    assert [str(snapshot.folder)] == folders[1:]
    assert (snapshot.folder / "big.ldb").exists()
    snapshot.remove()
    assert list(temporary.iterdir()) == []


def test_a_folder_of_somebody_else_is_left_alone(source: Path, temporary: Path) -> None:
    (temporary / "storebench-other").mkdir()
    sweep()
    assert (temporary / "storebench-other").is_dir()


def test_a_failed_snapshot_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(CorruptStoreError, match="nowhere"):
        Snapshot("test", tmp_path / "nowhere", linked=is_big)
    assert list(temporary.iterdir()) == []


def test_leaving_without_closing_removes_it(store: SmallStore, temporary: Path) -> None:
    code = (
        "import sys; from storebench.formats.registry import open_reader; "
        "reader = open_reader(sys.argv[1]); print(len(reader.labels))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.path)], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "67"
    assert list(temporary.iterdir()) == []


def _open_and_return(path: Path, kept: list[Any]) -> None:
    kept.append(get_format("leveldb").reader(path, Manifest.read(path)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_ends_removes_it(store: SmallStore, method: str, temporary: Path) -> None:
    process = multiprocessing.get_context(method).Process(  # type: ignore[attr-defined]  # of every context
        target=_open_and_return, args=(store.path, [])
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(temporary.iterdir()) == []


def test_a_forked_child_leaves_the_parents_alone(store: SmallStore, temporary: Path) -> None:
    with store.open() as reader:
        process = multiprocessing.get_context("fork").Process(target=sweep)
        process.start()
        process.join()
        np.testing.assert_array_equal(read_pixels(reader, [66]), store.pixels[[66]])


class _Loader(Dataset[int]):
    """The indices as a data set whose samples come from a reader that is opened in the worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader: Any = None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if self.reader is None:
            self.reader = get_format("leveldb").reader(self.path, Manifest.read(self.path))
        return int(read_pixels(self.reader, [index]).sum())


@pytest.mark.quiet  # torch ends workers that a busy machine lets exit late
def test_torchs_loader_workers_leave_none(store: SmallStore, temporary: Path) -> None:
    sums = [
        int(one) for batch in DataLoader(_Loader(store.path), batch_size=8, num_workers=2) for one in batch
    ]
    assert sums == store.pixels[:64].sum(axis=(1, 2, 3)).tolist()
    assert list(temporary.glob("storebench-*")) == []


def test_those_of_killed_processes_go_at_the_next_opening(store: SmallStore, temporary: Path) -> None:
    code = (
        "import os, signal, sys; from storebench.formats.registry import open_reader; "
        "reader = open_reader(sys.argv[1]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(temporary.iterdir())) == 1
    with store.open() as reader:
        assert len(list(temporary.iterdir())) == 1
        np.testing.assert_array_equal(read_pixels(reader, [0]), store.pixels[[0]])
    assert list(temporary.iterdir()) == []


def test_the_store_survives_its_snapshot(store: SmallStore, temporary: Path) -> None:
    files = sorted(path.name for path in store.path.iterdir())
    with store.open() as reader:
        for folder in temporary.iterdir():
            shutil.rmtree(folder)
        reader.close()
    assert sorted(path.name for path in store.path.iterdir()) == files
