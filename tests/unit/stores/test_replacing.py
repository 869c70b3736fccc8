"""When replacing a store fails, the old or the new one is whole under its name, and no file is left beside it."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storebench.errors import DiskFullError
from storebench.formats import parse_backend
from storebench.stores.convert import BuildOptions, Replace, convert
from storebench.stores.find import Store, open_store
from storebench.stores.verify import verify_store
from storebench.system.scratch import NODE, sweep
from tests.support.small_datasets import SPEC, Gradients

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


def age(store: Path) -> str:
    """Return "old" or "new" of a store whose samples all read back."""
    open_store(store)
    return verify_store(store).manifest.dataset.fingerprint.partition("-")[0]


def beside(store: Path) -> list[str]:
    return sorted(path.name for path in store.parent.iterdir() if path != store)


@pytest.mark.parametrize("there", ["store", "link", "dangling"])
def test_what_has_the_name_is_replaced_and_a_link_is_not_followed(
    there: str, old: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if there != "store":
        shutil.move(old, elsewhere)
        old.symlink_to(elsewhere if there == "link" else tmp_path / "nowhere")
    replace(old)
    assert not old.is_symlink()
    assert (age(old), beside(old)) == ("new", [])
    assert there == "store" or age(elsewhere) == "old"


FAILURES: dict[str, tuple[BaseException, type[BaseException]]] = {
    "full": (OSError(errno.ENOSPC, "No space left on device"), DiskFullError),
    "interrupt": (KeyboardInterrupt(), KeyboardInterrupt),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_error_between_two_renamings_leaves_one_whole_store(
    nth: int, done: bool, failure: str, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised, told = FAILURES[failure]
    real: Callable[..., None] = os.rename
    calls: list[Path] = []

    def rename(one: Path, other: Path) -> None:
        calls.append(one)
        if len(calls) != nth or done:
            real(one, other)
        if len(calls) == nth:
            raise raised

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(told):
        replace(old)
    assert len(calls) >= nth
    assert (age(old), beside(old)) == ("new" if nth == 2 and done else "old", [])


def test_a_kill_between_two_renamings_is_made_good_by_the_next_sweep(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., None] = os.rename
    child = os.fork()
    if not child:
        monkeypatch.setattr(os, "rename", lambda *names: real(*names) if old.exists() else os._exit(9))
        try:
            replace(old)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not old.exists()
    sweep(old.parent)
    assert (age(old), beside(old)) == ("old", [])


def test_what_another_machine_builds_is_left_alone(old: Path) -> None:
    own, other = (f".storebench-unfinished-{node}_abcd1234" for node in (NODE, "elsewhere"))
    for name in (own, other):
        (old.parent / name).mkdir(mode=0o700)
    replace(old)
    assert beside(old) == [other]
