"""`storebench inspect`: layouts and contents of files of other programs, cold and warm reads, and other settings."""

import json
import re
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

from storebench.errors import (
    CorruptDataError,
    DataNotFoundError,
    MissingDependencyError,
    StorebenchError,
    UsageError,
)
from storebench.probes.machine import IN_MEMORY, mount_of
from storebench.probes.page_cache import warm
from storebench.probes.page_count import resident
from storebench.stores.inspection import Trial, inspect
from tests.support.container_files import WRITERS, table
from tests.support.foreign_files import jpegs, numbered, pickled, write_lmdb, write_vlen
from tests.support.quick_cli import storebench

pytestmark = pytest.mark.still_pages

FEW = 6
IMAGES = jpegs(400)
SAMPLES = [(image, number % 3) for number, image in enumerate(IMAGES)]
LENGTHS = sorted(map(len, IMAGES))
PIXELS = np.random.default_rng(0).integers(0, 256, (240, 12, 12, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
"""Squares of one colour, which compress."""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    mount = mount_of(tmp_path)
    if mount.fstype in IN_MEMORY or mount.device is None:
        pytest.skip(f"the temporary folder is on {mount.fstype}: a disk is needed (pytest --basetemp)")
    return tmp_path


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.BUDGET_S", 0.3)


def _in_file(path: Path, **arrays: Any) -> Path:
    """Write data sets, each an array or the arguments of `create_dataset`."""
    with h5py.File(path, "w") as file:
        for name, data in arrays.items():
            file.create_dataset(name, **(data if isinstance(data, dict) else {"data": data}))
    return path


HEAP = "images: values of varying length, each in HDF5's heap behind a reference; the references contiguous"
SINGLE = {"data": PIXELS, "chunks": (1, 48, 48, 3), "compression": "gzip"}
HDF5: dict[str, tuple[Callable[[Path], Path], int, str, str]] = {
    "variable length": (lambda path: write_vlen(path, IMAGES), 400, HEAP, "JPEG"),
    "rows": (lambda path: _in_file(path, x=PIXELS, y=np.arange(240)), 240, "x: contiguous", "uint8 48x48x3"),
    "single chunks": (
        lambda path: _in_file(path, x=SINGLE),
        240,
        "x: chunks of 1x48x48x3, gzip",
        "uint8 48x48x3",
    ),
}


@pytest.mark.parametrize("kind", HDF5)
def test_the_samples_of_an_hdf5_file_are_found(tmp_path: Path, kind: str) -> None:
    write, count, layout, content = HDF5[kind]
    found = inspect(write(tmp_path / "a.h5"), samples=FEW)
    assert (found.samples, found.exact, found.layout, found.content) == (count, True, layout, content)
    assert (found.advice is not None) == (layout == HEAP)
    assert found.warm is not None
    assert 0 < found.warm.samples <= FEW, "as many as a busy machine has time for"


def test_the_data_set_that_is_asked_for_is_inspected(tmp_path: Path) -> None:
    path = _in_file(tmp_path / "a.h5", x=PIXELS, small=PIXELS[:20])
    assert inspect(f"{path}#small", samples=FEW).samples == 20


def test_costly_chunks_come_with_their_mending(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 64, 64, 3), dtype=np.uint8)
    path = _in_file(
        tmp_path / "foreign.h5",
        images={"data": images, "chunks": (100, 32, 64, 3)},
        packed={"data": np.zeros_like(images), "chunks": (64, 64, 64, 3), "compression": "gzip"},
    )
    found = {name: inspect(f"{path}#{name}", samples=FEW) for name in ("images", "packed")}
    assert found["images"].layout == "images: chunks of 100x32x64x3, not compressed"
    assert "h5repack -l images:CONTI" in str(found["images"].advice)
    assert "of 12,288 bytes costs 0.8 MiB: it spans 1 chunk" in str(found["packed"].advice)
    assert "h5repack -l packed:CHUNK=1x64x64x3" in str(found["packed"].advice)


def test_chunks_are_mended_along_the_axis_of_the_samples(tmp_path: Path) -> None:
    images = np.zeros((64, 48, 3, 200), np.uint8)
    path = _in_file(
        tmp_path / "a.h5", images={"data": images, "chunks": (64, 48, 3, 100)}, labels=np.arange(200)
    )
    assert "of 9,216 bytes costs 0.9 MiB" in str(inspect(path, samples=FEW).advice)
    assert "h5repack -l images:CHUNK=64x48x3x1" in str(inspect(path, samples=FEW).advice)


def test_nothing_is_written_to_lmdb_and_other_records_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storebench.stores.inspection.BUDGET_S", 60.0)  # for all samples
    texts = numbered([b"text %d" % number for number in range(len(IMAGES))], b"text-%09d")
    path = write_lmdb(tmp_path / "db", [*numbered(IMAGES, b"image-%09d"), *texts, (b"num-samples", b"60")])
    path.chmod(stat.S_IRUSR)
    before = path.stat()
    found = inspect(tmp_path / "db", samples=len(IMAGES))
    assert (found.samples, found.content) == (400, "JPEG")
    assert found.sample_bytes == (LENGTHS[0], int(np.median(LENGTHS)), LENGTHS[-1])
    assert found.notes == ("2 kinds of other records left out: num-samples, text-000000000",)
    assert sorted(path.name for path in (tmp_path / "db").iterdir()) == ["data.mdb", "lock.mdb"]
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_a_sparse_database_is_as_large_as_its_blocks(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path / "db"), map_size=8 << 30, writemap=True)
    with environment, environment.begin(write=True) as transaction:
        for key, value in numbered(IMAGES):
            transaction.put(key, value)
    assert inspect(tmp_path / "db", samples=FEW).file_bytes < 8 << 20


# Writer -> file within its folder, kind, samples, and the settings that are tried.
WITHIN: dict[str, tuple[str, str, int, set[str]]] = {
    "tar": ("000.tar", "tar shards", 200, set()),
    "TFRecord": ("", "TFRecord", 200, set()),
    "MDS": ("", "MDS", 400, set()),
    "Hugging Face": ("data-00000-of-00001.arrow", "Arrow", 400, set()),
    "Parquet": ("0.parquet", "Parquet", 200, {"samples per call"}),
    "Caffe": ("", "LMDB", 400, {"readahead"}),
}


@pytest.mark.parametrize("kind", WITHIN)
def test_samples_of_containers_are_counted_and_read(kind: str, tmp_path: Path) -> None:
    name, words, count, settings = WITHIN[kind]
    WRITERS[kind](tmp_path / "data", SAMPLES)
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*.[!m]*") if path.is_file()}
    found = inspect(tmp_path / "data" / name, samples=80)
    assert (found.kind, found.samples) == (words, count)
    assert found.warm is not None
    assert 0 < found.warm.samples <= 80
    assert found.content in ("JPEG", "uint8 32x48x3")
    assert {trial.setting for trial in found.trials} == settings
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("rows", "advised"), [(400, True), (64, False)])
def test_a_row_needs_its_whole_row_group(rows: int, advised: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"row_group_size": rows, "compression": "none", "use_dictionary": False}
    pq.write_table(table(SAMPLES), tmp_path / "a.parquet", **options)
    found = inspect(tmp_path / "a.parquet", samples=FEW)
    assert found.layout == f"image: row groups of {rows} rows, uncompressed"
    assert (found.advice is not None) == advised


def test_a_row_group_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.MOST_READ_BYTES", 25 << 20)
    noise = np.random.default_rng(0).bytes(3 << 20)
    pq.write_table(pa.table({"image": [noise] * 9}), tmp_path / "a.parquet", use_dictionary=False)
    found = inspect(tmp_path / "a.parquet")
    assert "a read needs 28 MB as a whole" in found.unread
    assert found.warm is None


def test_a_long_scan_ends_early_and_says_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.SCAN_S", 0.0)
    for kind, name in (("tar", "000.tar"), ("TFRecord", "0.tfrecord"), ("LMDB", "data.mdb")):
        WRITERS[kind](tmp_path / kind, SAMPLES)
        found = inspect(tmp_path / kind / name, samples=8)
        assert found.warm is not None
        assert (found.warm.samples, found.exact) == (1, False)
        assert 100 < found.samples <= 400
    for kind, name in (("MDS", "index.json"), ("Parquet", "0.parquet"), ("HDF5", "a.h5")):
        WRITERS[kind](tmp_path / kind, SAMPLES)
        found = inspect(tmp_path / kind / name, samples=8)
        assert found.exact, kind
        assert found.samples in (200, 400)


def test_cold_reads_bring_their_bytes_into_the_page_cache(disk: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (400, 64, 64, 3), dtype=np.uint8)
    found = inspect(_in_file(disk / "images.h5", images=images), samples=20)
    assert found.cold is not None
    assert found.warm is not None
    assert not found.cold.reason + found.warm.reason
    assert found.cold.samples > 0
    assert (found.cold.read_bytes or 0) >= 64 * 64 * 3
    assert (found.cold.median_s or 0) > (found.warm.median_s or 1)


def test_a_mapped_file_is_evicted_before_each_cold_read(disk: Path) -> None:
    path = write_lmdb(disk / "db", numbered([image * 8 for image in IMAGES]))
    found = inspect(path, samples=80)
    assert found.cold is not None
    assert found.cold.read_bytes is not None, found.cold.reason
    # The kernel reads ahead of each value. Without an eviction, no page could come in a second time.
    assert found.cold.read_bytes * found.cold.samples > 1.2 * path.stat().st_size
    [trial] = found.trials
    assert (trial.setting, trial.now, trial.tried) == ("readahead", "on", "off")
    assert trial.cold is not None


@pytest.fixture
def longer_reads(short_reads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a busy machine the time for some reads of each trial."""
    monkeypatch.setattr("storebench.stores.inspection.BUDGET_S", 3.0)


def trials_of(path: Path) -> dict[str, Trial]:
    return {trial.setting: trial for trial in inspect(path, samples=100).trials}


def test_a_smaller_row_group_is_found_better(longer_reads: None, tmp_path: Path) -> None:
    pq.write_table(table(SAMPLES * 5), tmp_path / "a.parquet", row_group_size=2000, use_dictionary=False)
    trial = trials_of(tmp_path / "a.parquet")["row_group_size of the writer"]
    assert (trial.now, trial.tried) == ("2,000", "64")
    assert (trial.warm or 0) > 1


def test_chunks_of_one_sample_and_no_filter_are_found_better(longer_reads: None, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 64, (200, 64, 64, 3), np.uint8)
    images = {"data": noise, "chunks": (50, 64, 64, 3), "compression": "gzip"}
    found = trials_of(_in_file(tmp_path / "a.h5", images=images))
    chunks, plain = found["chunks of the writer"], found["filter of the writer"]
    assert (chunks.now, chunks.tried, plain.now) == ("50x64x64x3", "1x64x64x3", "gzip")
    assert (chunks.warm or 0) > 1


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
    created.set_chunk((1, 10, 10))
    created.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (2, 2, 1, 100))
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((50, 10, 10))
        h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space, dcpl=created)
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], type[StorebenchError], str]] = {
    "nothing": (lambda folder: folder / "gone", DataNotFoundError, "No such file"),
    "no samples": (
        lambda folder: _in_file(folder / "a.h5", x=PIXELS[:0]), DataNotFoundError, "holds no samples",
    ),
    "text": (_text, DataNotFoundError, "by its content"),
    "cut LMDB": (
        lambda folder: _cut(write_lmdb(folder, numbered([bytes(12_300)] * 100))), CorruptDataError, "its pages need",
    ),
    "pickles": (lambda folder: write_lmdb(folder, numbered(pickled(IMAGES))), UsageError, "could run any code"),
    "numbers": (lambda folder: _in_file(folder / "a.h5", x=np.arange(500.0)), UsageError, "neither uint8 pixels"),
    "damaged chunk": (_damaged_chunk, CorruptDataError, "HDF5 cannot read it"),
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
    path = _in_file(tmp_path / "large.h5", rows={"shape": (4, 8000, 8000), "dtype": np.uint8})
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


def test_a_file_in_memory_only_is_never_called_cold(in_memory: Path) -> None:
    if mount_of(in_memory).fstype not in IN_MEMORY:
        pytest.skip("no folder in memory here")
    done = storebench(in_memory, "inspect", write_vlen(in_memory / "vlen.h5", IMAGES), "--samples", "5")
    assert done.returncode == 0, done.stderr
    assert "cold not measured (" in done.stdout
    assert "tmpfs" in done.stdout


def test_a_file_of_a_few_pages_has_no_cold_figure(disk: Path) -> None:
    done = storebench(disk, "inspect", write_vlen(disk / "few", IMAGES[:12]))
    assert done.returncode == 0, done.stderr
    small = r"cold not measured \(too small a file, \d+ pages of at least 256: .*\), warm [\d.]+"
    assert re.search(small, done.stdout.splitlines()[-1])


def test_no_samples_means_no_reads_and_no_eviction(disk: Path) -> None:
    path = write_vlen(disk / "vlen.h5", IMAGES)
    warm([path])
    done = storebench(disk, "inspect", path, "--samples", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "a random sample here: not measured (no samples were to be read)"
    assert resident([path]).frac == 1


def test_the_last_line_says_what_a_sample_costs_below_the_settings(disk: Path) -> None:
    options: dict[str, Any] = {"row_group_size": 1000, "compression": "none", "use_dictionary": False}
    pq.write_table(table(SAMPLES * 5), disk / "a.parquet", **options)
    done = storebench(disk, "inspect", disk / "a.parquet", "--samples", "20")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.split()[:2] == ["setting", "now"] for line in lines)
    cost = r"[\d,]+ bytes; cold [\d,]+ bytes read in [\d.]+ (m|µ)s, warm [\d.]+ (m|µ)s"
    assert re.fullmatch(rf"a random sample here: {cost}", lines[-1]), lines[-1]


def test_the_findings_are_printed_as_json(disk: Path) -> None:
    path = write_lmdb(disk / "db", numbered(IMAGES))
    facts = json.loads(storebench(disk, "inspect", path, "--samples", "5", "--json").stdout)
    assert (facts["kind"], facts["content"]) == ("LMDB", "JPEG")
    assert facts["cold"].keys() == facts["warm"].keys() == {"samples", "median_s", "read_bytes", "reason"}
