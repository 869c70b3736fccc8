"""Image files as they are: threads read and check them, in the order of the dataset, and no process is started."""

import dataclasses
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from storebench.datasets import DatasetSpec
from storebench.errors import CorruptDataError
from storebench.formats import parse_backend
from storebench.stores.convert import BuildOptions, ensure_store
from storebench.stores.encode import CHUNK_FILES
from storebench.stores.find import Store
from storebench.system.progress import Advance
from tests.support.photo_folders import write_photos

LMDB = parse_backend("lmdb+original")
EACH = 3 * CHUNK_FILES


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> DatasetSpec:
    return DatasetSpec(name=f"folder:{write_photos(tmp_path_factory.mktemp('photos'), each=EACH)}")


def build(spec: DatasetSpec, stores: Path, options: BuildOptions) -> Store:
    return ensure_store(spec, LMDB, stores, options=options)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("size", [None, 2 * EACH - CHUNK_FILES])
def test_threads_write_the_store_that_one_thread_writes(
    size: int | None, photos: DatasetSpec, tmp_path: Path
) -> None:
    """Also where only a part of the dataset is converted."""
    photos = dataclasses.replace(photos, size=size)
    seen: set[int] = set()

    @contextmanager
    def watching(_title: str) -> Iterator[Advance]:
        yield lambda _done, _total: seen.update(children())

    before = children()
    alone = build(photos, tmp_path / "one", BuildOptions(processes=1))
    shared = build(photos, tmp_path / "three", BuildOptions(processes=3, progress=watching))
    assert shared.manifest.samples_digest == alone.manifest.samples_digest
    assert seen <= before


def test_a_damaged_file_is_named_whichever_thread_met_it(photos: DatasetSpec, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos.name.removeprefix("folder:"), folder)
    last = sorted((folder / "class1").iterdir())[-2]
    last.write_bytes(last.read_bytes()[:-200])
    with pytest.raises(CorruptDataError, match=rf"{last.name}: .*the only unreadable file among {2 * EACH}"):
        build(DatasetSpec(name=f"folder:{folder}"), tmp_path / "stores", BuildOptions(processes=3))
    assert not list((tmp_path / "stores").rglob("manifest.json"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encoder")]
