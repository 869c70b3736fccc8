"""hdf5:direct on the layouts that the writer makes, and on files that are damaged or of another layout."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from storebench.errors import CorruptStoreError
from storebench.formats.registry import get_format
from storebench.testing.stores import COUNT, SHAPE, SmallStore, build_small_store, read_pixels


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    (tmp_path / "store").mkdir()
    return build_small_store(get_format("hdf5"), "raw", tmp_path / "store")


@pytest.mark.parametrize(
    "layout", [{"chunks": (7, *SHAPE)}, {"chunks": True, "compression": "gzip"}], ids=str
)
def test_a_store_that_was_repacked_is_refused(store: SmallStore, layout: dict[str, Any]) -> None:
    path = store.path / "data.h5"
    path.unlink()
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("data", data=store.pixels, **layout)
        file["label"] = store.labels
    with pytest.raises(CorruptStoreError, match="not in one piece"):
        store.open("direct")


def test_payloads_across_chunks_that_are_apart_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = build_small_store(get_format("hdf5"), "png", tmp_path / "store")
    path = store.path / "data.h5"
    with h5py.File(path, "a") as file:
        whole = file["payload"][...]
        del file["payload"]
        blob = file.create_dataset("payload", (0,), np.uint8, maxshape=(None,), chunks=(1000,))
        between = file.create_dataset("between", (0,), np.uint8, maxshape=(None,), chunks=(777,))
        for at in range(
            0, len(whole), 1000
        ):  # each grows by a chunk in turn, so that none follow one another
            blob.resize((min(at + 1000, len(whole)),))
            blob[at:] = whole[at : at + 1000]
            file.flush()
            between.resize((between.shape[0] + 777,))
            between[-777:] = 1
            file.flush()
    with store.open("direct") as reader:
        assert reader.fetch(np.arange(COUNT)) == store.payloads


def test_a_file_that_is_cut_short_is_an_error(store: SmallStore) -> None:
    path = store.path / "data.h5"
    path.write_bytes(path.read_bytes()[:-100_000])
    with pytest.raises(CorruptStoreError):
        store.open("direct")


@pytest.mark.parametrize("codec", ["raw", "png"])
def test_parts_that_are_written_one_by_one_follow_one_another(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storebench.formats.hdf5.get.BUFFER_BYTES", 10_000)
    (tmp_path / "store").mkdir()
    store = build_small_store(get_format("hdf5"), codec, tmp_path / "store")
    for name in ("get", "direct"):
        with store.open(name) as reader:
            assert np.array_equal(read_pixels(reader, range(COUNT)), store.pixels)
