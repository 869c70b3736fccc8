"""hdf5:direct on every layout that a file can have, and the diagnosis of chunking that costs megabytes."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from storebench.errors import CorruptStoreError
from storebench.formats.hdf5.chunks import diagnose_chunking, row_offsets
from storebench.formats.registry import get_format
from storebench.testing.stores import COUNT, SHAPE, SmallStore, build_small_store

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "one image a chunk": {"chunks": (1, *SHAPE)},
    "some images a chunk": {"chunks": (7, *SHAPE)},
    "parts of images": {"chunks": (7, 16, 16, 3)},
    "chosen by h5py": {"chunks": True},
    "compressed": {"chunks": (5, *SHAPE), "compression": "gzip"},
    "shuffled and checked": {"chunks": (5, *SHAPE), "shuffle": True, "fletcher32": True},
}
THROUGH_LIBRARY = ("parts of images", "chosen by h5py", "compressed", "shuffled and checked")


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    (tmp_path / "store").mkdir()
    return build_small_store(get_format("hdf5"), "raw", tmp_path / "store")


def rewrite(store: SmallStore, **layout: Any) -> Path:
    """Write the images anew in another layout, as h5repack does."""
    path = store.path / "data.h5"
    path.unlink()
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("data", data=store.pixels, **layout)
        file["label"] = store.labels
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_serves_the_same_samples_and_says_how(store: SmallStore, name: str) -> None:
    rewrite(store, **LAYOUTS[name])
    order = np.random.default_rng(0).permutation(COUNT)
    out = np.zeros((COUNT, *SHAPE), np.uint8)
    with store.open("direct") as reader:
        reader.plan([order[:40], order[40:]])
        reader.fetch_into(order[:40], out)
        reader.fetch_into(order[40:], out[40:])
        assert np.array_equal(out, store.pixels[order])
        assert [bytes(one) for one in reader.fetch(order[:3])] == [store.payloads[i] for i in order[:3]]
        assert ("through the library" in reader.notes()) == (name in THROUGH_LIBRARY)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in THROUGH_LIBRARY])
def test_row_offsets_of_anybodys_data_set_are_where_the_bytes_lie(store: SmallStore, name: str) -> None:
    path = rewrite(store, **LAYOUTS[name])
    with h5py.File(path) as file:
        offsets = row_offsets(file["data"])
    raw = path.read_bytes()
    size = store.pixels[0].nbytes
    assert [raw[at : at + size] for at in offsets.tolist()] == store.payloads


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
        assert "through the library" not in reader.notes()


def test_a_chunk_that_was_never_written_is_an_error(store: SmallStore) -> None:
    path = store.path / "data.h5"
    path.unlink()
    with h5py.File(path, "w") as file:
        file.create_dataset("data", store.pixels.shape, np.uint8, chunks=(7, *SHAPE))[:30] = 1
        file["label"] = store.labels
    with pytest.raises(CorruptStoreError, match="never written"):
        store.open("direct")


def test_a_file_that_is_cut_short_is_an_error(store: SmallStore) -> None:
    path = store.path / "data.h5"
    path.write_bytes(path.read_bytes()[:-100_000])
    with pytest.raises(CorruptStoreError):
        store.open("direct")


def test_costly_chunks_are_diagnosed_with_the_line_that_mends_them(tmp_path: Path) -> None:
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", (500, 64, 64, 3), np.uint8, chunks=(500, 64, 64, 3))
    found = diagnose_chunking(path)
    assert found is not None
    assert "(12288 bytes) costs 5.9 MiB: it spans 1 chunk of" in found
    assert f"h5repack -l images:CONTI {path} {tmp_path / 'foreign-repacked.h5'}" in found


def test_parts_of_images_are_counted_and_compressed_data_keeps_its_chunks(tmp_path: Path) -> None:
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (500, 256, 256, 3), np.uint8, chunks=(64, 64, 64, 1), compression="gzip")
    found = diagnose_chunking(path)
    assert found is not None
    assert "48 chunks" in found
    assert "costs 12.0 MiB" in found
    assert "h5repack -l x:CHUNK=1x256x256x3 " in found


def test_good_chunks_and_contiguous_data_have_no_diagnosis(tmp_path: Path, store: SmallStore) -> None:
    path = tmp_path / "good.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (50, 64, 64, 3), np.uint8, chunks=(1, 64, 64, 3))
        file["y"] = np.zeros((50, 64, 64, 3), np.uint8)
        file["label"] = np.zeros(50)
    assert diagnose_chunking(path) is None
    assert diagnose_chunking(store.path / "data.h5") is None
