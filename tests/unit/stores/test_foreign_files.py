"""The samples of files of other programs, made with the formats' own libraries: layout, sizes, contents, advice."""

import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

from storebench.errors import (
    CorruptDataError,
    DataNotFoundError,
    StorebenchError,
    UnknownNameError,
    UsageError,
)
from storebench.stores.inspection import Inspection, SampleSet, inspect
from tests.support.foreign_files import (
    datum,
    jpegs,
    numbered,
    pickled,
    write_blob,
    write_lmdb,
    write_per_image,
    write_vlen,
)
from tests.support.quick_cli import storebench

FEW = 6
IMAGES = jpegs(60)
LENGTHS = sorted(map(len, IMAGES))
SIZES = (LENGTHS[0], int(np.median(LENGTHS)), LENGTHS[-1])
PIXELS = np.random.default_rng(0).integers(0, 256, (240, 12, 12, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
"""Squares of one colour, which compress."""


def main_of(found: Inspection) -> SampleSet:
    assert found.main is not None
    return found.main


def _in_file(path: Path, **arrays: Any) -> Path:
    """Write data sets, each an array or the arguments of `create_dataset`."""
    with h5py.File(path, "w") as file:
        for name, data in arrays.items():
            file.create_dataset(name, **data) if isinstance(data, dict) else file.create_dataset(
                name, data=data
            )
    return path


def _groups(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(40):
            file[f"train/{number:04d}/image"] = PIXELS[number]
            file[f"train/{number:04d}/label"] = number
    return path


def _virtual(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["train/part"] = PIXELS
        layout = h5py.VirtualLayout((480, *PIXELS.shape[1:]), np.uint8)
        layout[:240] = layout[240:] = h5py.VirtualSource(file["train/part"])
        file.create_virtual_dataset("x", layout)
    return path


def _opaque(path: Path) -> Path:
    return _in_file(path, **{f"{number}": np.void(image) for number, image in enumerate(IMAGES)})


HEAP = "variable-length uint8, each in HDF5's heap behind a reference; the references contiguous"
EACH = "one data set per sample, contiguous"

HDF5: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "variable length": (
        lambda path: write_vlen(path, IMAGES),
        {"name": "images", "samples": 60, "content": "JPEG", "sample_bytes": SIZES, "layout": HEAP},
    ),
    "a data set per image": (
        lambda path: write_per_image(path, IMAGES),
        {"name": "*/*", "samples": 60, "content": "JPEG", "sample_bytes": SIZES, "layout": EACH},
    ),
    "opaque scalars": (_opaque, {"name": "*", "samples": 60, "content": "JPEG", "layout": EACH}),
    "a group per sample": (
        _groups,
        {"name": "train/*/image", "samples": 40, "content": "uint8 48x48x3", "sample_bytes": (6912,) * 3},
    ),
    "byte ranges": (
        lambda path: write_blob(path, IMAGES),
        {
            "name": "train/bytes", "samples": 60, "content": "JPEG", "sample_bytes": SIZES,
            "layout": "one sample after another, divided by train/begin; contiguous",
        },
    ),
    "rows": (
        lambda path: _in_file(path, x=PIXELS),
        {"name": "x", "samples": 240, "layout": "contiguous", "content": "uint8 48x48x3", "advice": None},
    ),
    "rows in single chunks": (
        lambda path: _in_file(path, x={"data": PIXELS, "chunks": (1, 48, 48, 3), "compression": "gzip"}),
        {"samples": 240, "layout": "chunks of 1x48x48x3, gzip", "advice": None},
    ),
    "a virtual data set of the file itself": (
        _virtual,
        {"name": "x", "samples": 480, "content": "uint8 48x48x3", "unread": ""},
    ),
    "data in other files": (
        lambda path: _in_file(
            path,
            x={"shape": (100, 100), "dtype": np.uint8, "external": [("/dev/zero", 0, h5py.h5f.UNLIMITED)]},
        ),
        {"name": "x", "unread": "its data is in other files", "warm": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HDF5)
def test_the_samples_of_an_hdf5_file_are_found(tmp_path: Path, kind: str) -> None:
    write, expected = HDF5[kind]
    part = main_of(inspect(write(tmp_path / "a.h5"), samples=240))
    assert {name: getattr(part, name) for name in expected} == expected
    assert part.exact
    assert part.unread or (part.warm is not None and part.warm.samples)


def test_numbers_and_bytes_without_offsets_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "numbers.h5"
    columns = {f"column{number}": np.arange(500.0) for number in range(20)}
    _in_file(path, bytes=np.zeros(100_000, np.uint8), other=np.arange(1000), **columns)
    with h5py.File(path, "a") as file:
        file["null"] = h5py.Empty("f4")
        file.create_dataset("none", (0, 32, 32, 3), np.uint8)
        file.create_group("inner")["outer"] = file["/"]
    found = inspect(path, samples=FEW)
    assert (found.parts, found.main) == ((), None)
    assert "bytes (100000 uint8)" in found.notes["other data sets"]


def test_compressed_references_are_named(tmp_path: Path) -> None:
    path = write_vlen(tmp_path / "a.h5", IMAGES, chunks=(16,), compression="gzip")
    part = main_of(inspect(path, samples=FEW))
    assert part.touched_bytes is not None
    assert part.touched_bytes > 4096, "a collection of the heap, and the reference to the value"
    assert part.advice is not None
    assert part.advice.startswith("HDF5 compresses the references only")


def test_records_have_the_sizes_of_their_values(tmp_path: Path) -> None:
    path = tmp_path / "records.h5"
    with h5py.File(path, "w") as file:
        rows = file.create_dataset(
            "rows", (60,), np.dtype([("label", "i4"), ("b", h5py.vlen_dtype(np.uint8))])
        )
        for number, image in enumerate(IMAGES):
            rows[number] = (number, np.frombuffer(image, np.uint8))
        file["names"] = ["one", "three"] * 40
    found = inspect(path, samples=60)
    part = main_of(found)
    assert (part.name, part.samples, part.content) == ("rows", 60, "JPEG")
    assert part.sample_bytes == tuple(size + 4 for size in SIZES), "with a label of 4 bytes"
    assert part.layout.startswith("variable-length records (label, b), each in HDF5's heap")
    assert "<class" not in str(found)


def test_costly_chunks_come_with_their_mending(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 64, 64, 3), dtype=np.uint8)
    path = _in_file(
        tmp_path / "foreign.h5",
        images={"data": images, "chunks": (100, 32, 64, 3)},
        split={"data": images, "chunks": (100, 32, 32, 3)},
        packed={"data": np.zeros_like(images), "chunks": (64, 64, 64, 3), "compression": "gzip"},
    )
    found = {part.name: part for part in inspect(path, samples=FEW).parts}
    assert found["images"].touched_bytes == pytest.approx(2 * 100 * 6_144, rel=0.02)
    assert found["split"].touched_bytes == pytest.approx(4 * 100 * 3_072, rel=0.02)
    assert found["images"].layout == "chunks of 100x32x64x3, not compressed"
    assert "h5repack -l images:CONTI" in str(found["images"].advice)
    assert "(12288 bytes) costs 768 KiB: it spans 1 chunk" in str(found["packed"].advice)
    assert "h5repack -l packed:CHUNK=1x64x64x3" in str(found["packed"].advice)
    said = storebench(tmp_path, "inspect", path, "--samples", FEW)
    assert said.returncode == 0, said.stderr
    assert "h5repack -l images:CONTI" in said.stdout


def test_a_chunk_larger_than_the_cache_is_read_in_parts(tmp_path: Path) -> None:
    rows = 3000
    pixels = {"data": np.zeros((rows, 64, 64, 3), np.uint8), "chunks": (rows, 64, 64, 3)}
    part = main_of(inspect(_in_file(tmp_path / "large.h5", x=pixels), samples=FEW))
    assert part.touched_bytes == pytest.approx(64 * 64 * 3, abs=4096)
    assert part.advice is None


def test_a_filter_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "filtered.h5"
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk((1, 100))
    created.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (2, 2, 1, 100))
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((50, 100))
        h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space, dcpl=created)
    part = main_of(inspect(path, samples=FEW))
    assert "32001" in part.unread
    assert "HDF5_PLUGIN_PATH" in part.unread


def test_of_many_data_sets_the_first_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.hdf5_files.MOST_OBJECTS", 300)
    found = inspect(write_per_image(tmp_path / "many.h5", jpegs(1200), classes=10), samples=FEW)
    part = main_of(found)
    assert 280 < part.samples <= 300
    assert f"only the first {part.samples}" in found.notes["data sets"]


RAW = bytes(3 * 8 * 8)

VALUES: dict[str, tuple[list[bytes], str]] = {
    "plain": (IMAGES, "JPEG"),
    "tuples": (pickled(IMAGES), "pickled JPEG"),
    "old tuples": (pickled(IMAGES, 3), "pickled JPEG"),
    "dictionaries": ([pickle.dumps({"label": 1}, 2)] * 20, "pickled"),
    "raw Datum": ([datum(data=RAW, label=number, shape=(3, 8, 8)) for number in range(30)], ""),
    "encoded Datum": ([datum(data=image, label=0) for image in IMAGES], "a record with JPEG"),
    "pixels": ([bytes(range(192))] * 20, ""),
    "empty values": ([b""] * 20, ""),
    "images and texts": ([*IMAGES, *[b"no image"] * 20], "JPEG or other bytes"),
    "half a pickle": ([pickle.dumps(b"x" * 500, 4)[:300]] * 20, ""),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_lmdb_are_named_by_their_first_bytes(tmp_path: Path, name: str) -> None:
    values, content = VALUES[name]
    part = main_of(inspect(write_lmdb(tmp_path / "db", numbered(values)), samples=len(values)))
    lengths = [len(value) for value in values]
    assert (part.samples, part.exact, part.content) == (len(values), True, content)
    assert part.sample_bytes == (min(lengths), int(np.median(lengths)), max(lengths))
    assert part.warm is not None
    assert part.warm.samples == len(values)


def test_a_value_of_lmdb_is_read_in_whole_pages(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "db", numbered([bytes(12_300)] * 100))
    path.chmod(stat.S_IRUSR)
    before = path.stat()
    [part] = inspect(tmp_path / "db", samples=FEW).parts
    # 16 bytes of header, 12,300 of value: the first bytes of a fourth page.
    assert (part.samples, part.sample_bytes, part.touched_bytes) == (100, (12_300,) * 3, 4 * 4096)
    assert part.amplification == pytest.approx(16_384 / 12_300)
    assert sorted(path.name for path in (tmp_path / "db").iterdir()) == ["data.mdb", "lock.mdb"]
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    said = storebench(tmp_path, "inspect", "db", "--samples", FEW).stdout
    assert "the unnamed database: 100 samples, 12,300 bytes each" in said
    assert "at least 16,384 bytes, 1.33 times the sample's own" in said


def test_keys_of_two_patterns_are_two_parts(tmp_path: Path) -> None:
    labels = [b"text %d" % number for number in range(len(IMAGES))]
    records = [
        *numbered(IMAGES, b"image-%09d"),
        *numbered(labels, b"label-%09d"),
        (b"num-samples", b"60"),
    ]
    found = inspect(write_lmdb(tmp_path / "db", records), samples=FEW)
    assert [(part.name, part.samples) for part in found.parts] == [("image-#", 60), ("label-#", 60)]
    assert found.notes["other records"] == "num-samples"


def test_named_databases_are_inspected_each_or_one(tmp_path: Path) -> None:
    write_lmdb(tmp_path, numbered(IMAGES[:30]), name="train")
    write_lmdb(tmp_path, numbered(IMAGES[30:40]), name="val")
    assert [(part.name, part.samples) for part in inspect(tmp_path, samples=FEW).parts] == [
        ("train", 30),
        ("val", 10),
    ]
    [only] = inspect(tmp_path, database="val", samples=FEW).parts
    assert (only.name, only.samples, only.content) == ("val", 10, "JPEG")
    with pytest.raises(UnknownNameError, match="Did you mean 'train'"):
        inspect(tmp_path, database="trian")


def test_other_orders_of_keys_are_read_or_counted(tmp_path: Path) -> None:
    integers = [(number.to_bytes(8, "little"), image) for number, image in enumerate(IMAGES)]
    part = main_of(inspect(write_lmdb(tmp_path / "a", integers, name="images", integerkey=True), samples=FEW))
    assert (part.name, part.samples, part.content) == ("images", 60, "JPEG")
    same = [(b"key", b"%d" % number) for number in range(30)]
    [part] = inspect(write_lmdb(tmp_path / "b", same, name="many", dupsort=True), samples=FEW).parts
    assert (part.samples, part.sample_bytes, part.warm) == (30, None, None)
    assert part.unread == "databases with several values per key are not read"


def test_a_sparse_database_is_as_large_as_its_blocks(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path / "db"), map_size=8 << 30, writemap=True)
    with environment, environment.begin(write=True) as transaction:
        for number in range(400):
            transaction.put(b"%08d" % number, bytes([number % 251]) * 3000)
    assert inspect(tmp_path / "db", samples=FEW).file_bytes < 8 << 20


def _cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:20_000])
    return path


def _other(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "some.bin").write_bytes(content)
        return folder / "some.bin"

    return write


def _damaged_chunk(folder: Path) -> Path:
    path = folder / "damaged.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", data=PIXELS[:1], chunks=(1, 48, 48, 3), compression="gzip")
        at = data.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[at + 2 : at + 60] = bytes(58)
    path.write_bytes(content)
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], type[StorebenchError], str]] = {
    "nothing": (lambda folder: folder, DataNotFoundError, "no file to inspect"),
    "empty": (_other(b""), CorruptDataError, "by its content"),
    "text": (_other(b"PATH 1\n" * 1000), CorruptDataError, "by its content"),
    "zip": (_other(b"PK\x03\x04" + bytes(8192)), CorruptDataError, "compressed by zip"),
    "cut LMDB": (
        lambda folder: _cut(write_lmdb(folder, numbered([bytes(12_300)] * 100))),
        CorruptDataError,
        "its pages need",
    ),
    "cut HDF5": (
        lambda folder: _cut(_in_file(folder / "a.h5", data=np.zeros((100, 1000), np.uint8))),
        CorruptDataError,
        "HDF5 cannot read it",
    ),
    "damaged chunk": (_damaged_chunk, CorruptDataError, "HDF5 cannot read it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    write, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words) as caught:
        inspect(write(tmp_path))
    assert "\n" not in str(caught.value)
    assert "b'" not in str(caught.value)
    assert "storebench-" not in str(caught.value), "no folder of ours is named"


def test_only_lmdb_has_named_databases(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="HDF5 has no named databases"):
        inspect(write_vlen(tmp_path / "a.h5", IMAGES), database="train")


def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.MEMORY_BYTES", 16 << 20)
    path = _in_file(tmp_path / "large.h5", rows={"shape": (4, 50_000_000), "dtype": np.uint8})
    with pytest.raises(CorruptDataError, match="HDF5 cannot read it"):
        inspect(path)


def test_the_name_of_a_data_set_is_printed_plainly(tmp_path: Path) -> None:
    name = "x\n::error::pwn \x1b[31m\u202e;rm -rf ~"
    pixels = {"data": np.zeros((500, 64, 64, 3), np.uint8), "chunks": (100, 32, 64, 3)}
    found = storebench(tmp_path, "inspect", _in_file(tmp_path / "a.h5", **{name: pixels}), "--samples", FEW)
    assert found.returncode == 0, found.stderr
    assert "h5repack -l 'x" in found.stdout  # quoted, as a shell wants it
    assert not [line for line in found.stdout.splitlines() if line.lstrip().startswith("::")]
    assert not {"\x1b", "\u202e"} & set(found.stdout)
