"""The converter through its public face: what it writes, what it replaces, and who does the work."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storebench.errors import (
    CorruptDataError,
    CorruptStoreError,
    IntegrityError,
    OutputError,
    SchemaVersionError,
)
from storebench.formats import PAPER_BACKENDS, open_reader, parse_backend
from storebench.record.manifest import DIGESTS_NAME, MANIFEST_NAME, NAMES_NAME, Manifest
from storebench.stores.convert import BuildOptions, Replace, convert
from storebench.stores.find import Store, open_store
from storebench.system.progress import Advance
from tests.support.small_datasets import SPEC, Gradients, ProcessIds, Suicidal, Unreadable

FORCE = BuildOptions(replace=Replace.YES)


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    return tmp_path / "stores"


@pytest.fixture
def own_pid() -> int:
    return os.getpid()


def build(
    dataset: Gradients | ProcessIds, backend: str, stores: Path, options: BuildOptions | None = None
) -> Store:
    return convert(dataset, SPEC, parse_backend(backend), stores, options=options)


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_all_six_paper_backends_hold_the_samples_of_the_dataset(stores: Path) -> None:
    dataset = Gradients()
    digests = {build(dataset, name, stores).manifest.samples_digest for name in PAPER_BACKENDS}
    assert digests == {dataset.digest()}


def test_the_manifest_says_what_is_on_the_disk(stores: Path) -> None:
    dataset = Gradients(count=30)
    store = build(dataset, "files+raw", stores)
    assert store.built
    assert Manifest.read(store.path) == store.manifest
    assert store.manifest.dataset == dataset.info
    assert store.manifest.count == 30
    assert store.manifest.payload_bytes == 30 * 12 * 10 * 3
    assert store.manifest.lossless
    own = (MANIFEST_NAME, DIGESTS_NAME, NAMES_NAME)
    files = [path for path in store.path.rglob("*") if path.is_file() and path.name not in own]
    assert store.manifest.file_bytes == sum(path.stat().st_size for path in files)
    assert store.manifest.bytes_on_disk == sum(path.stat().st_blocks for path in files) * 512
    assert np.load(store.path / DIGESTS_NAME).shape == (30, 16)


def test_the_number_of_processes_changes_nothing_in_the_store(stores: Path) -> None:
    dataset = Gradients(count=1100)
    contents = []
    for processes in (1, 2, None):
        store = build(dataset, "png", stores, BuildOptions(processes=processes, replace=Replace.YES))
        files = sorted(path for path in store.path.rglob("*") if path.name != MANIFEST_NAME)
        contents.append({path.name: path.read_bytes() for path in files if path.is_file()})
    assert contents[0] == contents[1] == contents[2]


def test_progress_reaches_the_count_in_both_stages(stores: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    @contextlib.contextmanager
    def remember(title: str) -> Iterator[Advance]:
        steps = seen.setdefault(title, [])
        yield lambda done, total: steps.append((done, total))

    build(Gradients(count=2500), "hdf5", stores, BuildOptions(progress=remember))
    assert seen["converting hdf5+raw"] == [(1024, 2500), (2048, 2500), (2500, 2500)]
    assert seen["verifying hdf5+raw"][-1] == (2500, 2500)


@pytest.mark.parametrize("backend", PAPER_BACKENDS)
def test_a_store_that_is_there_is_not_built_twice(backend: str, stores: Path) -> None:
    first = build(Gradients(), backend, stores)
    with open_reader(first.path) as reader:  # using a store must not make it look damaged
        reader.fetch(np.arange(2))
    again = build(Gradients(), backend, stores)
    assert not again.built
    assert again.manifest == first.manifest


def test_a_store_of_other_samples_is_kept_unless_forced(stores: Path) -> None:
    old = build(Gradients(fingerprint="old"), "hdf5", stores)
    with pytest.raises(OutputError, match=r"other samples.*--force") as refusal:
        build(Gradients(fingerprint="new"), "hdf5", stores)
    assert refusal.value.exit_code == 2
    assert open_store(old.path).manifest == old.manifest
    said: list[str] = []  # a benchmark replaces it
    options = BuildOptions(replace=Replace.STALE, say=said.append)
    assert build(Gradients(fingerprint="new"), "hdf5", stores, options).built
    assert "other samples" in said[0]
    assert "old" in build(Gradients(fingerprint="old"), "hdf5", stores, FORCE).manifest.dataset.fingerprint


@pytest.mark.parametrize("replace", [Replace.NEVER, Replace.STALE])
def test_a_store_of_another_schema_version_is_kept_unless_forced(replace: Replace, stores: Path) -> None:
    store = build(Gradients(), "hdf5", stores)
    path = store.path / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(SchemaVersionError, match=r"schema version 99.*--force") as refusal:
        build(Gradients(), "hdf5", stores, BuildOptions(replace=replace))
    assert refusal.value.exit_code == 3
    assert build(Gradients(), "hdf5", stores, FORCE).built


def test_a_folder_that_is_no_store_is_kept_unless_forced(stores: Path) -> None:
    folder = stores / SPEC.store_id / "hdf5+raw"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(CorruptStoreError, match=r"not a store.*--force"):
        build(Gradients(), "hdf5", stores, BuildOptions(replace=Replace.STALE))
    assert everything_in(folder) == ["thesis.txt"]


def _truncate(store: Store) -> None:
    file = max(
        (path for path in store.path.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    file.write_bytes(file.read_bytes()[:-7])


def _lose_the_data(store: Store) -> None:
    for path in store.path.iterdir():
        if path.name not in (DIGESTS_NAME, MANIFEST_NAME, NAMES_NAME):
            path.unlink()


def _change_the_table(store: Store) -> None:
    np.save(store.path / DIGESTS_NAME, np.load(store.path / DIGESTS_NAME)[::-1])


@pytest.mark.parametrize(
    "damage",
    [_truncate, _lose_the_data, _change_the_table],
)
def test_a_damaged_store_is_noticed_and_built_anew(damage: Callable[[Store], None], stores: Path) -> None:
    store = build(Gradients(), "hdf5", stores)
    damage(store)
    with pytest.raises(CorruptStoreError):
        open_store(store.path)
    said: list[str] = []
    assert build(Gradients(), "hdf5", stores, BuildOptions(say=said.append)).built
    assert len(said) == 1
    assert open_store(store.path).manifest.samples_digest == store.manifest.samples_digest


IMAGE, LABEL = Gradients().sample(3)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Gradients(changed={7: (IMAGE[:-1], LABEL)}), "sample 7 .*not uint8"),
        (Gradients(changed={7: (IMAGE.astype(np.float32), LABEL)}), "sample 7 .*float32"),
        (Gradients(changed={7: (IMAGE, 10)}), "sample 7 .*label 10.*10 classes"),
        (Gradients(changed={7: (IMAGE, -1)}), "sample 7 .*label -1"),
        (Unreadable(), "/photos/seven.png: sample 7 .*Permission denied"),
        (Gradients(count=0), "no samples"),
    ],
)
@pytest.mark.thinned
@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_sample_is_named_and_nothing_is_left(
    dataset: Gradients, words: str, processes: int, stores: Path
) -> None:
    # Two pieces of work at least, or the second process has nothing to do.
    dataset = dataclasses.replace(dataset, count=dataset.count and 1500)
    with pytest.raises(CorruptDataError, match=words):
        build(dataset, "lmdb", stores, BuildOptions(processes=processes))
    assert not stores.exists()


def test_an_encoder_that_is_killed_ends_in_one_clear_line(stores: Path, own_pid: int) -> None:
    dataset = Suicidal(count=3000, parent=own_pid)
    with pytest.raises(IntegrityError, match=r"encoder process died.*--processes 1") as refusal:
        build(dataset, "leveldb", stores, BuildOptions(processes=2))
    assert refusal.value.exit_code == 5
    assert not stores.exists()
