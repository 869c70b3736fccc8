"""The names of samples, from image files and containers through real stores to `StoreDataset.names`."""

import os
import pickle
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storebench import StoreDataset
from storebench.datasets import DatasetSpec, open_dataset
from storebench.datasets.names import SampleNames
from storebench.errors import CorruptStoreError
from storebench.formats import parse_backend
from storebench.record.manifest import NAMES_NAME
from storebench.stores.convert import convert
from storebench.stores.verify import verify_store
from tests.support.container_files import example, record
from tests.support.dataset_files import image_file, tar, write_class_folders, write_mnist
from tests.support.foreign_files import write_lmdb

ODD = (
    "two\nlines.png",
    "back\\slash.png",
    "back\\new.png",
    "ümlaut.png",
    os.fsdecode(b"no-utf8-\xff.png"),
)


def stored(spec: DatasetSpec, backend: str, folder: Path, data_root: Path | None = None) -> StoreDataset:
    stores = folder / "stores"
    store = convert(open_dataset(spec, data_root), spec, parse_backend(backend), stores)
    verify_store(store.path)
    return StoreDataset(store.path)


def samples(dataset: StoreDataset) -> list[Any]:
    return dataset.__getitems__(range(len(dataset)))


@pytest.mark.parametrize("backend", ["files+png", "lmdb+raw", "hdf5+original"])
def test_of_image_files_are_their_paths(backend: str, tmp_path: Path) -> None:
    """Each name leads to the file of the sample, below the folder of its split."""
    photos = tmp_path / "photos"
    for folder in ("train/cat", "train/dog/young", "val/cat"):
        (photos / folder).mkdir(parents=True)
        for number, name in enumerate(ODD):
            (photos / folder / name).write_bytes(image_file(kind="PNG", seed=number + 9 * len(folder)))
    with stored(DatasetSpec(name=f"folder:{photos}"), backend, tmp_path) as dataset:
        names = dataset.names
        assert sorted(names) == sorted(f"{folder}/{name}" for folder in ("cat", "dog/young") for name in ODD)
        assert len(names) == len(dataset)
        assert [name.partition("/")[0] for name in names] == [
            dataset.classes[label] for _, label in samples(dataset)
        ]
        source = open_dataset(DatasetSpec(name=f"folder:{photos}"))
        assert [str(photos / "train" / name) for name in names] == [
            source.locate(i) for i in range(len(source))
        ]
        assert [names[-1], *names[1:3]] == [list(names)[-1], *list(names)[1:3]]
        with pytest.raises(IndexError):
            names[len(names)]
        assert list(pickle.loads(pickle.dumps(dataset)).names) == list(names)


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_of_tar_shards_are_their_keys(layout: int, tmp_path: Path) -> None:
    keys = [f"{'long' * 20}/{'er' * 20}/{number:04d}" for number in range(3)] + ["some/ü", "z"]
    for shard, part in enumerate((keys[:2], keys[2:])):
        members: dict[str, bytes] = {}
        for number, key in enumerate(part):
            label = b"" if key == "z" else b"7"
            members |= {f"{key}.cls": label, f"{key}.left.png": image_file(kind="PNG", seed=number + shard)}
        (tmp_path / f"{shard}.tar").write_bytes(tar(members, layout))
    spec = DatasetSpec(name=f"container:{tmp_path}/*.tar")
    for backend in ("lmdb", "container"):
        with stored(spec, backend, tmp_path) as dataset:
            assert list(dataset.names) == keys[:-1]  # the last one has no label
    with stored(DatasetSpec(name=spec.name, limit=3), "lmdb", tmp_path) as dataset:
        assert list(dataset.names) == keys[:3]


def test_of_lmdb_are_its_keys(tmp_path: Path) -> None:
    keys = ["class0/a.png", "class1/\0b.png", "class1/c\n.png"]
    records = [(key.encode(), image_file(kind="PNG", seed=number)) for number, key in enumerate(keys)]
    path = write_lmdb(tmp_path / "db", records)
    with stored(DatasetSpec(name=f"container:{path}"), "files+png", tmp_path) as dataset:
        assert list(dataset.names) == keys


@pytest.mark.parametrize("kind", ["parquet", "arrow", "tfrecord"])
@pytest.mark.parametrize("lacks", [False, True], ids=["all have one", "one has none"])
def test_of_tables_and_records_are_the_files_of_their_images(kind: str, lacks: bool, tmp_path: Path) -> None:
    names = [f"cat/{number}.png" for number in range(5)]
    images = [image_file(kind="PNG", seed=number) for number in range(5)]
    kept: list[Any] = [*names[:4], None if lacks else names[4]]
    path = tmp_path / f"data.{kind}"
    if kind == "tfrecord":
        pairs = [{"image/filename": name.encode()} if name else {} for name in kept]
        features = [
            {"image/encoded": image, "image/class/label": 1, **pair}
            for image, pair in zip(images, pairs, strict=True)
        ]
        path.write_bytes(b"".join(record(example(feature)) for feature in features))
    else:
        cells = [{"bytes": image, "path": name} for image, name in zip(images, kept, strict=True)]
        table = pa.table({"image": cells, "label": [1] * 5})
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=2)
        else:
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
    with stored(DatasetSpec(name=f"container:{path}"), "lmdb", tmp_path) as dataset:
        assert list(dataset.names) == (list("01234") if lacks else names)


def test_of_imagenets_archive_are_those_of_its_folders(tmp_path: Path) -> None:
    root, unpacked = tmp_path / "tar" / "imagenet", tmp_path / "unpacked" / "imagenet"
    classes = {"n01440764": 3, "n01443537": 2}
    write_class_folders(unpacked / "train", classes)
    inner = {
        f"{name}.tar": tar({path.name: path.read_bytes() for path in (unpacked / "train" / name).iterdir()})
        for name in classes
    }
    root.mkdir(parents=True)
    (root / "ILSVRC2012_img_train.tar").write_bytes(tar(inner))
    names = []
    for place in (root.parent, unpacked.parent):
        with stored(DatasetSpec(name="imagenet"), "lmdb", place, place) as dataset:
            names.append(list(dataset.names))
    assert (
        names[0]
        == names[1]
        == [f"{name}/{name}_{at}.JPEG" for name in classes for at in range(classes[name])]
    )


def test_else_are_numbers_in_the_dataset(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=7)
    with stored(DatasetSpec(name="mnist"), "lmdb", tmp_path, tmp_path) as dataset:
        whole = {
            image.numpy().tobytes(): name
            for (image, _), name in zip(samples(dataset), dataset.names, strict=True)
        }
        assert list(whole.values()) == list("0123456")
    with stored(DatasetSpec(name="mnist", size=3), "lmdb", tmp_path, tmp_path) as dataset:
        assert [whole[image.numpy().tobytes()] for image, _ in samples(dataset)] == list(dataset.names)
    with stored(DatasetSpec(name="mnist", size=9), "lmdb", tmp_path, tmp_path) as dataset:
        assert list(dataset.names) == list("012345601")


def test_of_an_old_or_damaged_store_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    with stored(DatasetSpec(name="mnist"), "files+png", tmp_path, tmp_path) as dataset:
        path = dataset.store / NAMES_NAME
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(CorruptStoreError, match="6 names for 7 samples"):
            dataset.names  # noqa: B018 - it reads them
        path.unlink()
        with pytest.raises(CorruptStoreError, match="no names of its samples") as caught:
            dataset.names  # noqa: B018
        assert "\n" not in caught.value.what
        assert caught.value.hint == "Convert the dataset again, with --force."
        verify_store(dataset.store)


def test_take_little_memory() -> None:
    tracemalloc.start()
    try:
        names = SampleNames()
        for number in range(100_000):
            names.append(f"n01440764/n01440764_{number}.JPEG")
        assert tracemalloc.get_traced_memory()[1] < 100_000 * 100
    finally:
        tracemalloc.stop()
    assert names[99_999] == "n01440764/n01440764_99999.JPEG"
