"""Datasets that other programs packed: the samples are those of the files, and damage is one line."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.datasets.containers import is_container
from storebench.datasets.listing import Listings
from storebench.errors import (
    CorruptDataError,
    DataNotFoundError,
)
from storebench.settings.words import Split
from tests.support import container_files
from tests.support.container_files import WRITERS, Sample, example, field, record, write_tar
from tests.support.dataset_files import digests
from tests.support.foreign_files import numbered, pickled, varint, write_lmdb
from tests.support.photo_folders import photo_file, write_photos
from tests.support.quick_cli import storebench

Cli = Callable[..., Any]
Write = Callable[[Path], str]  # write a container; return what `--dataset` calls it


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def samples(photos: Path) -> list[Sample]:
    folder = opened(f"folder:{photos}")
    return [folder.original(index) for index in range(len(folder))]


@pytest.fixture(scope="module")
def folder_digests(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return store_digests(str(photos), tmp_path_factory.mktemp("folder"))


def store_digests(dataset: str, folder: Path) -> list[str]:
    """Convert a dataset into two stores, and return their digests."""
    done = storebench(folder, "convert", "lmdb", "hdf5+original", "--json", "--dataset", dataset)
    assert done.returncode == 0, done.stderr
    return [store["samples_digest"] for store in json.loads(done.stdout)]


def opened(text: str, **options: Any) -> Dataset:
    name = text if text.startswith(("folder:", "hf:")) else f"container:{text}"
    return open_dataset(DatasetSpec(name=name, **options))


# The samples.


@pytest.mark.parametrize("kind", WRITERS)
def test_a_container_becomes_the_same_stores_as_the_folder(
    kind: str, samples: list[Sample], folder_digests: list[str], tmp_path: Path
) -> None:
    assert store_digests(WRITERS[kind](tmp_path / "data", samples), tmp_path) == folder_digests


@pytest.mark.parametrize("kind", WRITERS)
def test_samples_are_read_from_any_place_and_in_any_thread(
    kind: str, samples: list[Sample], tmp_path: Path
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    dataset = opened(WRITERS[kind](tmp_path / "data", samples))
    order = [7, 3, 11, 0, 5, 4, 10, 3]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(dataset.original, order)) == [samples[index] for index in order]
    assert len({dataset.locate(index) for index in range(len(dataset))}) == len(samples)


@pytest.mark.parametrize("kind", ["tar", "Parquet", "LMDB"])
def test_a_container_is_cut_grown_and_known_again_like_a_folder(
    kind: str, photos: Path, samples: list[Sample], tmp_path: Path
) -> None:
    text = WRITERS[kind](tmp_path / "data", samples)
    for options in ({"size": 7}, {"size": 16, "seed": 3}, {"image_size": 40}):
        assert digests(opened(text, **options)) == digests(opened(f"folder:{photos}", **options))
    part = opened(text, limit=5)  # the first ones: the rest of the files need not be read
    assert [part.original(index) for index in range(len(part))] == samples[:5]
    first = opened(text).info
    assert opened(text).info == first
    shutil.rmtree(tmp_path / "data")
    other = opened(WRITERS[kind](tmp_path / "data", [*samples[1:], (samples[0][0], 1)])).info
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize("kind", WRITERS)
def test_a_container_is_scanned_once(
    kind: str, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WRITERS[kind](tmp_path / "data", samples)
    (tmp_path / "stores").mkdir()
    spec = DatasetSpec(name=text if text.startswith("hf:") else f"container:{text}")
    first = open_dataset(spec, listings=Listings(tmp_path / "stores"))
    with monkeypatch.context() as patch:
        patch.setattr("storebench.datasets.containers.dataset.run_isolated", None)
        again = open_dataset(spec, listings=Listings(tmp_path / "stores"))
    assert again.info == first.info
    assert [again.original(index) for index in range(len(again))] == samples


class _Command:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch called",)


def test_a_kept_scan_calls_nothing_and_is_not_used_for_other_files(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DatasetSpec(name=f"container:{WRITERS['tar'](tmp_path / 'data', samples)}")
    listings = Listings(tmp_path)
    first = open_dataset(spec, listings=listings)
    [kept] = (tmp_path / ".listings").iterdir()
    listings.keep(kept.name, _Command())
    monkeypatch.chdir(tmp_path)
    assert open_dataset(spec, listings=listings).info == first.info
    assert not (tmp_path / "called").exists()
    moved = (tmp_path / "data").rename(tmp_path / "moved")
    there = open_dataset(DatasetSpec(name=f"container:{moved}/*.tar"), listings=listings)
    assert [there.original(index) for index in range(len(there))] == samples
    WRITERS["tar"](tmp_path / "data", samples[:-1])
    assert len(open_dataset(spec, listings=listings)) == len(samples) - 1


# Fields and labels.

JPEG = photo_file(0, (40, 30))


def _tar(members: dict[str, bytes], fields: str = "") -> Write:
    return lambda path: f"{write_tar(path, members)}{fields}"


def _parquet(columns: dict[str, Any], fields: str = "", classes: Sequence[str] = ()) -> Write:
    def write(path: Path) -> str:
        rows = pa.table(columns)
        if classes:
            about = {"info": {"features": {"label": {"names": classes}}}}
            rows = rows.replace_schema_metadata({"huggingface": json.dumps(about)})
        pq.write_table(rows, path)
        return f"{path}{fields}"

    return write


def _examples(*features: dict[str, bytes | int], fields: str = "") -> Write:
    return _bytes(b"".join(record(example(one)) for one in features), fields=fields)


def _bytes(content: bytes, suffix: str = "", fields: str = "") -> Write:
    def write(path: Path) -> str:
        path = path.with_suffix(suffix)
        path.write_bytes(content)
        return f"{path}{fields}"

    return write


TEXTS: list[dict[str, bytes | int]] = [
    {"image/encoded": JPEG, "label": b"b"},
    {"image/encoded": JPEG, "label": b"a"},
]
LABELS: dict[str, tuple[Write, list[int], Sequence[str]]] = {
    "json": (
        _tar({"a.jpg": JPEG, "a.json": b'{"label": 2}', "b.jpg": JPEG, "b.json": b'{"label": 0}'}),
        [2, 0],
        "012",
    ),
    "text": (
        _tar({"a.jpg": JPEG, "a.cls": b"dog\n", "b.jpg": JPEG, "b.cls": b"cat"}),
        [1, 0],
        ("cat", "dog"),
    ),
    "classes with names": (
        _parquet({"image": [JPEG, JPEG], "label": [1, 0]}, classes=["cat", "dog", "eel"]),
        [1, 0],
        ("cat", "dog", "eel"),
    ),
    "other columns": (_parquet({"a": [JPEG], "b": [7], "label": [1]}, "#a,b"), [7], "01234567"),
    "only column with bytes": (_parquet({"photo": [JPEG], "label": [1]}), [1], "01"),
    "other features": (_examples({"i": JPEG, "l": 1, "label": 0}, fields="#i,l"), [1], "01"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_are_found_by_their_usual_names_or_as_asked(case: str, tmp_path: Path) -> None:
    write, labels, names = LABELS[case]
    dataset = opened(write(tmp_path / "a"))
    assert [dataset.original(index) for index in range(len(dataset))] == [(JPEG, label) for label in labels]
    assert dataset.info.class_names == tuple(names)
    assert ("every label is 0" in dataset.layout_note) == (len(names) == 1)


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (("a-train-0.parquet", "a-train-1.parquet", "a-val-0.parquet"), 4, 2),
        (("train.parquet", "test.parquet", "validation.parquet", "trainer.parquet"), 2, 2),
        (("train/0.parquet", "val/0.parquet", "val/1.parquet"), 2, 4),
        (("0.parquet", "trainer.parquet"), 4, None),
    ],
)
def test_splits_are_told_by_names(
    names: tuple[str, ...], train: int, test: int | None, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"image": [JPEG, JPEG]}), tmp_path / name)
    assert is_container(str(tmp_path))
    assert len(opened(str(tmp_path))) == train
    if test is None:
        with pytest.raises(DataNotFoundError, match="no test split"):
            opened(str(tmp_path), split=Split.TEST)
    else:
        assert len(opened(str(tmp_path), split=Split.TEST)) == test


def test_a_test_split_has_the_classes_of_the_train_split(tmp_path: Path) -> None:
    splits = {"train": ["cat", "dog", "eel"], "val": ["eel", "dog"]}
    for split, labels in splits.items():
        rows = pa.table({"image": [JPEG] * len(labels), "label": labels})
        pq.write_table(rows, tmp_path / f"{split}.parquet")
    served = opened(str(tmp_path), split=Split.TEST)
    assert served.info.class_names == ("cat", "dog", "eel")
    assert [served.original(index)[1] for index in range(2)] == [2, 1]
    pq.write_table(pa.table({"image": [JPEG], "label": ["fox"]}), tmp_path / "val.parquet")
    with pytest.raises(DataNotFoundError, match="a class 'fox', which the train split lacks"):
        opened(str(tmp_path), split=Split.TEST)


@pytest.mark.parametrize("kind", [name for name in WRITERS if name != "LMDB, paired"])
def test_a_file_is_known_by_its_content(kind: str, samples: list[Sample], cli: Cli, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "data", samples)
    largest = max((tmp_path / "data").iterdir(), key=lambda path: path.stat().st_size)
    if kind == "MDS":
        largest = tmp_path / "data" / "index.json"
    else:
        largest.rename(tmp_path / "data" / "x.bin")
        largest = tmp_path / "data" / "x.bin"
    done = cli("convert", "lmdb", "--dataset", str(largest))
    assert done.returncode == 0, done.stderr


# What cannot be read.


def _cut(kind: str, name: str, share: float) -> Write:
    def write(folder: Path) -> str:
        text = WRITERS[kind](folder, [(photo_file(at, (90, 80)), at) for at in range(8)])
        path = folder / name
        with path.open("r+b") as file:
            file.truncate(int(share * path.stat().st_size))
        return text

    return write


def _lmdb(values: Sequence[bytes], fields: str = "") -> Write:
    return lambda folder: f"{write_lmdb(folder, numbered(values))}{fields}"


def _damaged_record(path: Path) -> str:
    content = bytearray(record(example({"image": JPEG, "label": 1})))
    content[200] ^= 1
    path.write_bytes(content)
    return str(path)


def _index(old: str, new: str) -> Write:
    """Return a writer of MDS whose index has another text in the last shard that has the old one."""

    def write(path: Path) -> str:
        container_files.mds(path, [(JPEG, at % 2) for at in range(8)])
        before, _, after = (path / "index.json").read_text().rpartition(old)
        (path / "index.json").write_text(before + new + after)
        return str(path)

    return write


def _large(shape: tuple[int, ...], dtype: type = np.uint8) -> Write:
    """Return a writer of an array of which nothing is stored."""

    def write(path: Path) -> str:
        with h5py.File(path, "w") as file:
            file.create_dataset("images", shape, dtype, chunks=(1, 4, 4, 3))
        return str(path)

    return write


SEVERAL = field(1, field(1, field(1, b"image") + field(2, field(1, field(1, JPEG))))) + field(
    1, field(1, field(1, b"label") + field(2, field(3, field(1, varint(1) + varint(2)))))
)
PATHS = pa.array([{"path": "a.jpg"}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
REFUSED: dict[str, tuple[Write, str]] = {
    "cut tar": (_cut("tar", "001.tar", 0.4), "001.tar: truncated"),
    "cut Parquet": (_cut("Parquet", "1.parquet", 0.5), "1.parquet: cannot be read"),
    "cut MDS": (_cut("MDS", "shard.00001.mds", 0.5), "shard.00001.mds: cut short"),
    "a packed shard": (
        _index("shard.00001", "shard.00002"),
        "compressed ones are not read. Unpack the shards",
    ),
    "cut LMDB": (_cut("Caffe", "data.mdb", 0.5), "data.mdb: cut short"),
    "cut HDF5": (_cut("HDF5", "a.h5", 0.5), "a.h5: HDF5 cannot read it"),
    "a damaged record": (_damaged_record, "checksum is wrong"),
    "another folder": (_index("shard.00001", "../shard.00001"), "outside of its folder"),
    "large pixels": (_large((3, 10**6, 10**6, 3)), "an image of 1,000,000 x 1,000,000 x 3, not of"),
    "labels apart": (_tar({"a.jpg": JPEG, "b.jpg": JPEG, "a.cls": b"0", "b.cls": b"1"}), "labels are apart"),
    "a field twice": (_tar({"a.jpg": JPEG, "./a.jpg": JPEG}), "several members of one name in the sample a"),
    "a path only": (_parquet({"image": PATHS}), "Write the images into the table"),
    "a column of pickles": (_parquet({"image": pickled([JPEG])}), "could run any code"),
    "no image": (_parquet({"image": [b"text"]}), "4 bytes that are no image file"),
    "an image that does not decode": (_parquet({"image": [JPEG[:400]]}), "row 0: a JPEG that is cut short"),
}
WHOLE: dict[str, tuple[Write, str]] = {
    "no container": (_bytes(b"PATH 1\n" * 100), "by its content"),
    "gzip": (_bytes(b"\x1f\x8b" + bytes(600), ".gz"), "Unpack it first"),
    "fields of LMDB": (_lmdb([JPEG], "#a"), "LMDB has no fields"),
    "a pickle": (_lmdb(pickled([JPEG, JPEG])), "key 00000000: its value is no image file, and pickled"),
    "a named database": (
        lambda folder: str(write_lmdb(folder, numbered([JPEG]), name="train")),
        "named databases are not read",
    ),
    "no field": (_tar({"a.jpg": JPEG}, "#png"), "its fields are jpg"),
    "a label without end": (_tar({"a.jpg": JPEG, "a.cls": b"1" * 5000}), "is 5,000 characters long"),
    "several labels": (
        _parquet({"image": [JPEG], "label": [[1, 2]]}),
        "a list, not one whole number or text",
    ),
    "fractions": (_large((6, 20, 30, 3), np.float32), "images holds float32 6 x 20 x 30 x 3"),
}


@pytest.mark.parametrize("case", [*REFUSED, *WHOLE])
def test_what_cannot_be_read_is_refused_in_one_line(case: str, cli: Cli, tmp_path: Path) -> None:
    write, says = (REFUSED | WHOLE)[case]
    text = write(tmp_path / "data")
    name = text if text.startswith("hf:") else f"container:{text}"
    done = cli("convert", "lmdb", "--dataset", name, "--out", "stores")
    lines = [line for line in done.stderr.splitlines() if line.startswith("storebench: ")]
    assert (done.returncode, len(lines)) == (5 if case in REFUSED else 2, 1), done.stderr
    assert says in lines[0]
    assert not list(tmp_path.glob("stores/*/*"))


def test_damaged_images_are_left_out_as_asked(samples: list[Sample], tmp_path: Path) -> None:
    damaged = [*samples[:3], (samples[0][0][:300], 0), *samples[3:]]
    text = container_files.shards(tmp_path / "data", damaged)
    with pytest.raises(CorruptDataError, match=r"000003\.jpg at byte"):
        digests(opened(text))
    kept = opened(text, skip_unreadable=True)
    assert [kept.original(index) for index in range(len(kept))] == samples
    assert kept.info.provenance.skipped_files == 1
