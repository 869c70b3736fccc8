"""Training on image files as they are: the same losses from every container, loader and number of workers."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.formats import open_reader
from storebench.loading.augment import Augment, prepare_files
from storebench.loading.proof import Kept, Truth
from storebench.record.schema import Record
from storebench.stores.find import read_digest_table
from tests.support.harness_tools import Bench, only_record, scenario, steps_of
from tests.support.photo_folders import write_photos

CELLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("original", {"workers": [0, 2]}),
    ("lmdb+original", {"workers": [2], "loader": ["ring"]}),
    ("lmdb+original:direct", {}),
    ("hdf5+original", {"workers": [1], "loader": ["threads"]}),
    ("hdf5+original:direct", {}),
    ("leveldb+original", {}),
    ("memory+original:shared", {}),
)
SIDE = 40


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_photos(root / "train", each=7)
    write_photos(root / "val", each=2)
    return root


@pytest.fixture(scope="module")
def matrix(photos: Path) -> dict[str, Any]:
    return {"dataset": f"folder:{photos}", "model": "tiny", "batch_size": 4, "image_size": SIDE, "seed": 3}


def trained(bench: Bench, run: Path, **asked: Any) -> list[Record]:
    return [only_record(cell, bench.stores, run) for cell in scenario(**asked).cells()]


def test_losses_are_bit_identical_from_every_container(
    bench: Bench, matrix: dict[str, Any], run_folder: Path
) -> None:
    records = [
        record
        for backend, axes in CELLS
        for record in trained(bench, run_folder, backends=[backend], **matrix, **axes)
    ]
    first, *others = records
    assert first.digests is not None
    assert None not in dataclasses.astuple(first.digests)
    assert first.coverage is not None
    assert (first.coverage.timed_checked, first.coverage.timed_wrong) == (14, 0)
    losses = steps_of(first, run_folder)["loss"].tobytes()
    assert len(set(np.frombuffer(losses, np.float32).tolist())) == 4
    for record in others:
        name = f"{record.cell.backend} {record.cell.loader} {record.cell.workers}"
        assert record.digests == first.digests, name
        assert record.coverage is not None
        assert record.coverage.complete, name
        assert record.coverage.timed_checked == 14, name
        assert steps_of(record, run_folder)["loss"].tobytes() == losses, name


def test_without_a_size_the_network_or_the_other_stores_choose(
    bench: Bench, matrix: dict[str, Any], run_folder: Path
) -> None:
    asked = matrix | {"image_size": None, "backends": ["lmdb+original"], "max_steps": 1, "model": "none"}
    [record] = trained(bench, run_folder, **asked, compute="none")
    assert record.store is not None
    assert record.store.image_shape == (256, 256, 3)
    assert record.decode_s > 0
    assert record.prep_s > 0
    assert record.status == "ok"


def test_a_reduced_scale_is_another_cell_with_its_own_pixels(
    bench: Bench, matrix: dict[str, Any], run_folder: Path
) -> None:
    backends = ["lmdb+original", "lmdb+original?scale=dct"]
    whole, scaled = trained(bench, run_folder, **(matrix | {"image_size": 16}), backends=backends)
    assert whole.cell.cell_id != scaled.cell.cell_id
    assert scaled.cell.fields()["codec_options"] == (("scale", "dct"),)
    assert whole.digests is not None
    assert scaled.digests is not None
    assert whole.digests.order == scaled.digests.order
    assert whole.digests.loss != scaled.digests.loss
    assert scaled.coverage is not None
    assert scaled.coverage.complete


def test_a_sample_that_is_not_the_right_part_of_its_image_is_found(
    bench: Bench, matrix: dict[str, Any], run_folder: Path
) -> None:
    [record] = trained(bench, run_folder, **matrix, backends=["lmdb+original"])
    built = bench.stores.glob("folder-*-train/lmdb+original")
    store = max(built, key=lambda path: path.stat().st_mtime_ns)
    augment = Augment(mirror=True, resized=SIDE)
    with open_reader(store) as reader:
        table = read_digest_table(store, reader.manifest)
        truth = Truth(
            store=store, backend=record.cell.backend, table=table, augment=augment, seed=record.cell.seed
        )
        indices = np.arange(6)
        pixels = np.empty((6, SIDE, SIDE, 3), np.uint8)
        views = augment.views(indices, seed=3, epoch=0)
        prepare_files(reader, reader.fetch(indices), indices, pixels, views)
        labels = reader.labels[indices]
    kept = Kept(pixels=pixels, labels=labels, indices=indices, absent=0)
    assert (truth.check(kept, 0).checked, truth.check(kept, 0).wrong) == (6, 0)
    assert truth.check(kept, 1).wrong == 6  # the parts of another epoch
    pixels[2, 0, 0, 0] ^= 1
    assert (truth.check(kept, 0).wrong, truth.check(kept, 0).first_wrong) == (1, 2)
    assert truth.check(dataclasses.replace(kept, labels=labels + 1), 0).wrong == 6
