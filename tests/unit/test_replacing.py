"""Whatever happens while a store is replaced, the old or the new one is whole, under its name or put back there."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storebench.errors import (
    CorruptDataError,
    CorruptStoreError,
    DiskFullError,
    OutputError,
    StorebenchError,
)
from storebench.formats import parse_backend
from storebench.manifest import MANIFEST_NAME
from storebench.stores.convert import BuildOptions, Replace, convert
from storebench.stores.devices import ensure_image
from storebench.stores.find import Store, StoreSamples, open_store
from storebench.stores.verify import verify_store
from tests.support.small_datasets import SPEC, Gradients

CompletedText = subprocess.CompletedProcess[str]
Cli = Callable[..., CompletedText]

OLD, NEW = Gradients(fingerprint="old"), Gradients(fingerprint="new")
FORCE = BuildOptions(replace=Replace.YES)
HDF5 = parse_backend("hdf5")


def build(dataset: Gradients, stores: Path, options: BuildOptions | None = None) -> Store:
    return convert(dataset, SPEC, HDF5, stores, options=options)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the store that is there before."""
    return build(OLD, tmp_path / "stores").path


def replace(store: Path) -> Store:
    return build(NEW, store.parents[1], FORCE)


def hide(store: Path, number: int) -> Path:
    """Rename a store as a process that was killed might leave it."""
    return store.rename(store.with_name(f".{store.name}.tmp-{number}-0a1b2c3d"))


def age(store: Path) -> str:
    """Return "old" or "new" of a store that lies under its name and whose samples all read back."""
    open_store(store)  # which puts nothing back
    return verify_store(store).manifest.dataset.fingerprint.partition("-")[0]


def beside(store: Path) -> list[str]:
    return sorted(path.name for path in store.parent.iterdir() if path != store)


class Fault:
    """Fail at the n-th renaming of two names, before it is done or after."""

    def __init__(self, real: Callable[..., None], nth: int, failure: BaseException, *, done: bool) -> None:
        self.real, self.nth, self.failure, self.done = real, nth, failure, done
        self.calls = 0

    def __call__(self, one: Path, other: Path) -> None:
        self.calls += 1
        if self.calls != self.nth or self.done:
            self.real(one, other)
        if self.calls == self.nth:
            raise self.failure


FAILURES = {
    "full": (OSError(errno.ENOSPC, "No space left on device"), DiskFullError),
    "io": (OSError(errno.EIO, "Input/output error"), OutputError),
    "interrupt": (KeyboardInterrupt(), KeyboardInterrupt),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_error_between_two_renamings_leaves_one_whole_store(
    nth: int, failure: str, done: bool, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised, told = FAILURES[failure]
    fault = Fault(os.rename, nth, raised, done=done)
    monkeypatch.setattr(os, "rename", fault)
    with pytest.raises(told):
        replace(old)
    assert fault.calls >= nth
    assert age(old) == ("new" if (nth, done) >= (2, True) else "old")
    assert beside(old) == []


def test_a_store_that_cannot_be_put_back_is_there_for_the_next(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.rename, itertools.count(1)

    def only_the_first(one: Path, other: Path) -> None:
        if next(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(one, other)

    with monkeypatch.context() as planted:
        planted.setattr(os, "rename", only_the_first)
        with pytest.raises(DiskFullError):
            replace(old)
    assert not old.exists()
    said: list[str] = []
    assert not build(OLD, old.parents[1], BuildOptions(say=said.append)).built
    assert age(old) == "old"
    assert [line.startswith(f"put {old} back: ") for line in said] == [True]


@pytest.mark.parametrize("there", [True, False], ids=["whole", "dangling"])
def test_a_link_is_replaced_and_what_it_points_to_stays(there: bool, old: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(old, elsewhere)
    old.symlink_to(elsewhere if there else tmp_path / "nowhere")
    replace(old)
    assert not old.is_symlink()
    assert age(old) == "new"
    assert age(elsewhere) == "old"
    assert beside(old) == []


# What processes that were killed left behind, and who finds it.


def test_a_store_without_its_name_is_put_back_and_used(old: Path) -> None:
    hidden = hide(old, 1)
    said: list[str] = []
    store = build(OLD, old.parents[1], BuildOptions(say=said.append))
    assert not store.built
    assert age(old) == "old"
    assert said == [f"put {old} back: a process that was killed left it as {hidden.name}"]
    assert beside(old) == []


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_stores_without_their_name_the_newer_is_put_back(
    first: int, old: Path, tmp_path: Path
) -> None:
    newer = build(NEW, tmp_path / "others").path
    hide(old, first)
    newer.rename(old)
    hide(old, 3 - first)
    assert not build(NEW, old.parents[1]).built
    assert age(old) == "new"
    assert beside(old) == []


def test_half_a_store_is_removed_and_the_whole_one_put_back(old: Path) -> None:
    half = shutil.copytree(old, old.with_name(f".{old.name}.tmp-9-ffffffff"))
    (half / MANIFEST_NAME).unlink()
    hide(old, 1)
    said: list[str] = []
    assert not build(OLD, old.parents[1], BuildOptions(say=said.append)).built
    assert [line.split()[0] for line in said] == ["removed", "put"]
    assert beside(old) == []


def test_the_only_whole_copy_is_kept_until_there_is_another(old: Path) -> None:
    copy = shutil.copytree(old, old.with_name(f".{old.name}.tmp-1-0a1b2c3d"))
    (old / "data.h5").write_bytes(b"damaged")
    bad = Gradients(fingerprint="old", changed={7: (OLD.sample(7)[0], 10)})
    with pytest.raises(CorruptDataError):
        build(bad, old.parents[1])
    assert age(copy) == "old"
    with pytest.raises(CorruptStoreError):
        open_store(old)
    assert build(OLD, old.parents[1]).built
    assert beside(old) == []


@contextlib.contextmanager
def held(store: Path) -> Iterator[None]:
    """Hold a store as a converting process does."""
    with store.with_name(f".{store.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_what_a_living_process_has_in_hand_is_left_alone(old: Path) -> None:
    hidden = hide(old, 1)
    with held(old):
        with pytest.raises(CorruptStoreError, match="not a store"):
            verify_store(old)
        convert(OLD, SPEC, parse_backend("memory"), old.parents[1])
        assert hidden.is_dir()
        assert not old.exists()
    verify_store(old)


def test_convert_from_finds_a_store_without_its_name(old: Path, cli: Cli) -> None:
    hide(old, 1)
    done = cli("convert", "memory", "--from", str(old))
    assert done.returncode == 0, done.stderr
    assert f"put {old} back" in done.stderr
    assert age(old.with_name("memory+raw")) == "old"


def test_a_copy_of_a_lossy_store_is_no_store_of_its_dataset(tmp_path: Path) -> None:
    lossy = convert(OLD, SPEC, parse_backend("lmdb+jpeg"), tmp_path / "lossy")
    convert(StoreSamples(lossy.path), SPEC, HDF5, tmp_path / "stores")
    with pytest.raises(OutputError, match="the existing store has other samples"):
        convert(OLD, SPEC, HDF5, tmp_path / "stores", options=BuildOptions(replace=Replace.NEVER))


@pytest.mark.parametrize("change", [{"schema_version": 99}, {"format": "fancy"}], ids=["newer", "unknown"])
def test_what_cannot_be_judged_is_put_back(change: dict[str, object], old: Path) -> None:
    manifest = old / MANIFEST_NAME
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    hide(old, 1)
    with pytest.raises(StorebenchError):
        verify_store(old)
    assert json.loads(manifest.read_text()).items() >= change.items()


def test_an_image_without_its_name_is_put_back(old: Path) -> None:
    image = old.parent / ".devices" / old.name
    (image / "store").mkdir(parents=True)
    (image / "store.img").write_bytes(b"an image")
    shutil.copy(old / MANIFEST_NAME, image)
    hide(image, 1)
    said: list[str] = []
    assert ensure_image(old, said.append).image.read_bytes() == b"an image"
    assert [line.split()[0] for line in said] == ["put"]
    assert beside(image) == []
