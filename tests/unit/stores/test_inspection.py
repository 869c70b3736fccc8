"""The samples of files of other programs, made with the formats' own libraries: layout, sizes, contents, advice."""

import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storebench.errors import CorruptDataError, DataNotFoundError, MissingDependencyError, StorebenchError
from storebench.stores.inspection import SampleSet, inspect
from tests.support.container_files import WRITERS, table
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
SAMPLES = [(image, number % 3) for number, image in enumerate(IMAGES)]
LENGTHS = sorted(map(len, IMAGES))
SIZES = (LENGTHS[0], int(np.median(LENGTHS)), LENGTHS[-1])
PIXELS = np.random.default_rng(0).integers(0, 256, (240, 12, 12, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
"""Squares of one colour, which compress."""


def part_of(path: Path | str, samples: int = FEW) -> SampleSet:
    part = inspect(path, samples=samples).part
    assert part is not None
    return part


def _in_file(path: Path, **arrays: Any) -> Path:
    """Write data sets, each an array or the arguments of `create_dataset`."""
    with h5py.File(path, "w") as file:
        for name, data in arrays.items():
            file.create_dataset(name, **(data if isinstance(data, dict) else {"data": data}))
    return path


def _groups(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(40):
            file[f"train/{number:04d}/image"] = PIXELS[number]
            file[f"train/{number:04d}/label"] = number
    return path


HEAP = "values of varying length, each in HDF5's heap behind a reference; the references contiguous"
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
        lambda path: _in_file(path, x=PIXELS, y=np.arange(240)),
        {"name": "x", "samples": 240, "layout": "contiguous", "content": "uint8 48x48x3", "advice": None},
    ),
    "rows of fractions": (
        lambda path: _in_file(path, x=PIXELS.astype(np.float32)),
        {"samples": 240, "content": "float32 48x48x3"},
    ),
    "rows in single chunks": (
        lambda path: _in_file(path, x={"data": PIXELS, "chunks": (1, 48, 48, 3), "compression": "gzip"}),
        {"samples": 240, "layout": "chunks of 1x48x48x3, gzip", "advice": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HDF5)
def test_the_samples_of_an_hdf5_file_are_found(tmp_path: Path, kind: str) -> None:
    write, expected = HDF5[kind]
    part = part_of(write(tmp_path / "a.h5"), samples=240)
    assert {name: getattr(part, name) for name in expected} == expected
    assert part.exact
    assert part.warm is not None
    assert part.warm.samples


def test_numbers_and_bytes_without_offsets_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "numbers.h5"
    columns = {f"column{number}": np.arange(500.0) for number in range(20)}
    _in_file(path, bytes=np.zeros(100_000, np.uint8), other=np.arange(1000), **columns)
    with h5py.File(path, "a") as file:
        file["null"] = h5py.Empty("f4")
        file.create_dataset("none", (0, 32, 32, 3), np.uint8)
    assert inspect(path, samples=FEW).part is None


def test_the_data_set_that_is_asked_for_is_inspected(tmp_path: Path) -> None:
    path = _in_file(tmp_path / "a.h5", x=PIXELS, small=PIXELS[:20])
    small = part_of(f"{path}#small")
    assert (small.name, small.samples) == ("small", 20)
    assert part_of(path).others == "small (20x48x48x3 uint8)"


def test_costly_chunks_come_with_their_mending(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 64, 64, 3), dtype=np.uint8)
    path = _in_file(
        tmp_path / "foreign.h5",
        images={"data": images, "chunks": (100, 32, 64, 3)},
        packed={"data": np.zeros_like(images), "chunks": (64, 64, 64, 3), "compression": "gzip"},
    )
    found = {name: part_of(f"{path}#{name}") for name in ("images", "packed")}
    assert found["images"].layout == "chunks of 100x32x64x3, not compressed"
    assert "h5repack -l images:CONTI" in str(found["images"].advice)
    assert "(12288 bytes) costs 768 KiB: it spans 1 chunk" in str(found["packed"].advice)
    assert "h5repack -l packed:CHUNK=1x64x64x3" in str(found["packed"].advice)


def test_a_chunk_larger_than_the_cache_is_read_in_parts(tmp_path: Path) -> None:
    rows = 3000
    pixels = {"data": np.zeros((rows, 64, 64, 3), np.uint8), "chunks": (rows, 64, 64, 3)}
    assert part_of(_in_file(tmp_path / "large.h5", x=pixels)).advice is None


RAW = bytes(3 * 8 * 8)
VALUES: dict[str, tuple[list[bytes], str]] = {
    "plain": (IMAGES, "JPEG"),
    "tuples": (pickled(IMAGES), "pickled JPEG"),
    "dictionaries": ([pickle.dumps({"label": 1}, 2)] * 20, "pickled"),
    "raw Datum": ([datum(data=RAW, label=number, shape=(3, 8, 8)) for number in range(30)], ""),
    "encoded Datum": ([datum(data=image, label=0) for image in IMAGES], "a record with JPEG"),
    "images and texts": ([*IMAGES, *[b"no image"] * 20], "JPEG or other bytes"),
    "half a pickle": ([pickle.dumps(b"x" * 500, 4)[:300]] * 20, ""),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_lmdb_are_named_by_their_first_bytes(tmp_path: Path, name: str) -> None:
    values, content = VALUES[name]
    part = part_of(write_lmdb(tmp_path / "db", numbered(values)), samples=len(values))
    lengths = [len(value) for value in values]
    assert (part.samples, part.exact, part.content) == (len(values), True, content)
    assert part.sample_bytes == (min(lengths), int(np.median(lengths)), max(lengths))
    assert part.warm is not None
    assert part.warm.samples == len(values)


def test_nothing_is_written_to_lmdb(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "db", numbered([bytes(12_300)] * 100))
    path.chmod(stat.S_IRUSR)
    before = path.stat()
    part = part_of(tmp_path / "db")
    assert (part.samples, part.sample_bytes) == (100, (12_300,) * 3)
    assert sorted(path.name for path in (tmp_path / "db").iterdir()) == ["data.mdb", "lock.mdb"]
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_records_beside_the_samples_of_lmdb_are_named(tmp_path: Path) -> None:
    labels = [b"text %d" % number for number in range(len(IMAGES))]
    images, texts = numbered(IMAGES, b"image-%09d"), numbered(labels, b"label-%09d")
    records = [*images, *texts, (b"num-samples", b"60")]
    part = part_of(write_lmdb(tmp_path / "db", records))
    assert (part.name, part.samples, part.others) == ("image-#", 60, "label-#, num-samples")


def test_a_sparse_database_is_as_large_as_its_blocks(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path / "db"), map_size=8 << 30, writemap=True)
    with environment, environment.begin(write=True) as transaction:
        for number in range(400):
            transaction.put(b"%08d" % number, bytes([number % 251]) * 3000)
    assert inspect(tmp_path / "db", samples=FEW).file_bytes < 8 << 20


# Writer -> file within its folder, kind, and samples.
WITHIN: dict[str, tuple[str, str, int]] = {
    "tar": ("000.tar", "tar shards", 30),
    "TFRecord": ("", "TFRecord", 30),
    "MDS": ("", "MDS", 30),
    "Hugging Face": ("data-00000-of-00001.arrow", "Arrow", 60),
    "Parquet": ("0.parquet", "Parquet", 30),
}


@pytest.mark.parametrize("kind", WITHIN)
def test_samples_of_containers_are_counted_and_read(kind: str, tmp_path: Path) -> None:
    name, words, count = WITHIN[kind]
    WRITERS[kind](tmp_path / "data", SAMPLES)
    found = inspect(tmp_path / "data" / name, samples=8)
    part = found.part
    assert part is not None
    assert (found.kind, part.samples) == (words, count)
    assert "JPEG" in part.content
    assert part.warm is not None
    assert part.warm.samples == 8
    assert part.sample_bytes is not None
    frame = 64 if kind == "TFRecord" else 0  # name, label and lengths around an image
    assert abs(part.sample_bytes[1] - SIZES[1]) < 300 + frame


@pytest.mark.parametrize(("rows", "advised"), [(400, True), (64, False)])
def test_a_row_needs_its_whole_row_group(rows: int, advised: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"row_group_size": rows, "compression": "none", "use_dictionary": False}
    pq.write_table(table(SAMPLES * 10), tmp_path / "a.parquet", **options)
    part = part_of(tmp_path / "a.parquet")
    assert part.layout == f"row groups of {rows} rows, uncompressed"
    assert (part.advice is not None) == advised


def test_a_row_group_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(3 << 20)
    pq.write_table(pa.table({"image": [noise] * 90}), tmp_path / "a.parquet", use_dictionary=False)
    part = part_of(tmp_path / "a.parquet")
    assert "a read needs it as a whole" in part.unread
    assert part.warm is None


def _cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:20_000])
    return path


def _text(folder: Path) -> Path:
    (folder / "some.bin").write_bytes(b"PATH 1\n" * 1000)
    return folder / "some.bin"


def _damaged_chunk(folder: Path) -> Path:
    path = folder / "damaged.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", data=PIXELS[:1], chunks=(1, 48, 48, 3), compression="gzip")
        at = data.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[at + 2 : at + 60] = bytes(58)
    path.write_bytes(content)
    return path


def _filtered(folder: Path) -> Path:
    path = folder / "filtered.h5"
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk((1, 100))
    created.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (2, 2, 1, 100))
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((50, 100))
        h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space, dcpl=created)
    return path


def _virtual(folder: Path) -> Path:
    layout = h5py.VirtualLayout((50, 100), np.uint8)
    layout[:] = h5py.VirtualSource("other.h5", "data", (50, 100))
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("rows", layout)
    return folder / "virtual.h5"


REFUSED: dict[str, tuple[Callable[[Path], Path], type[StorebenchError], str]] = {
    "nothing": (lambda folder: folder / "gone", DataNotFoundError, "No such file"),
    "text": (_text, DataNotFoundError, "by its content"),
    "cut LMDB": (
        lambda folder: _cut(write_lmdb(folder, numbered([bytes(12_300)] * 100))), CorruptDataError, "its pages need",
    ),
    "named databases": (
        lambda folder: write_lmdb(folder, numbered(IMAGES), name="train"), CorruptDataError, "named databases",
    ),
    "damaged chunk": (_damaged_chunk, CorruptDataError, "HDF5 cannot read it"),
    "a virtual data set": (_virtual, CorruptDataError, "rows is a virtual data set, which is not read. Copy its values"),
    "a filter that is not there": (_filtered, MissingDependencyError, "32001"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    write, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words) as caught:
        inspect(write(tmp_path))
    assert "\n" not in str(caught.value)


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
