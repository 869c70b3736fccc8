"""What a random sample costs in the layouts of HDF5 that people have, in files made with h5py alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from storebench.errors import CorruptDataError
from storebench.stores.inspection import Inspection, SampleSet, inspect
from tests.support.foreign_files import jpegs, write_blob, write_per_image, write_vlen
from tests.support.quick_cli import storebench

FEW = 6
"""Samples to read where the time of a read does not matter."""

PIXELS = np.random.default_rng(0).integers(0, 256, (240, 12, 12, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
"""Squares of one colour, which compress."""


def main_of(found: Inspection) -> SampleSet:
    assert found.main is not None
    return found.main


def spread_of(images: Sequence[bytes]) -> tuple[int, int, int]:
    lengths = sorted(map(len, images))
    return lengths[0], int(np.median(lengths)), lengths[-1]


def test_sizes_of_some_values_are_called_that(tmp_path: Path) -> None:
    path = write_vlen(tmp_path / "vlen.h5", jpegs(120))
    part = main_of(inspect(path, samples=10))
    assert (part.samples, part.looked_at) == (120, 10)
    said = storebench(tmp_path, "inspect", path.name, "--samples", "10").stdout
    assert ", median " in said
    assert "(10 looked at)" in said


def test_values_of_text_are_called_that(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "text.h5", "w") as file:
        file["names"] = ["one", "three"] * 40
        file.create_dataset("list", data=[["a"] * 3] * 40, dtype=h5py.vlen_dtype(str))
    said = str(inspect(tmp_path / "text.h5", samples=4))
    assert "<class" not in said


@pytest.mark.parametrize("rows", [16, 64])
def test_chunks_of_less_than_a_mebibyte_come_with_their_mending(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "chunks.h5"
    with h5py.File(path, "w") as file:
        pixels = np.zeros((128, 64, 64, 3), np.uint8)
        file.create_dataset("images", data=pixels, chunks=(rows, 64, 64, 3), compression="gzip")
    part = main_of(inspect(path, samples=FEW))
    assert part.advice is not None
    assert f"(12288 bytes) costs {rows * 12} KiB: it spans 1 chunk" in part.advice


@pytest.mark.parametrize("options", [{}, {"chunks": (16,)}, {"chunks": (16,), "compression": "gzip"}])
def test_values_of_variable_length_have_their_own_sizes(tmp_path: Path, options: dict[str, Any]) -> None:
    images = jpegs(120)
    part = main_of(inspect(write_vlen(tmp_path / "vlen.h5", images, **options), samples=len(images)))
    assert (part.name, part.samples, part.exact, part.content) == ("images", 120, True, "JPEG")
    assert part.sample_bytes == spread_of(images)
    assert part.touched_bytes is not None
    assert part.touched_bytes > 4096, "a collection of the heap, and the reference to the value"
    assert "behind a reference" in part.layout
    assert part.advice is not None
    assert part.advice.startswith("HDF5 compresses the references only") == ("compression" in options)
    assert part.decompress_s is None
    assert part.warm is not None
    assert part.warm.samples == 120
    assert part.warm.median_s


def test_records_have_the_sizes_of_their_values_of_variable_length(tmp_path: Path) -> None:
    images = jpegs(60)
    path = tmp_path / "records.h5"
    inner = np.dtype(
        [("bytes", h5py.vlen_dtype(np.uint8)), ("name", h5py.string_dtype()), ("of", h5py.ref_dtype)]
    )
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("rows", (60,), np.dtype([("label", "i4"), ("image", inner)]))
        for number, image in enumerate(images):
            rows[number] = (number, (np.frombuffer(image, np.uint8), "a.jpg", file.ref))
    part = main_of(inspect(path, samples=60))
    least, middle, most = spread_of(images)
    assert (part.name, part.samples, part.content) == ("rows", 60, "JPEG")
    assert part.sample_bytes == (least + 9, middle + 9, most + 9), "with a label of 4 bytes and a name of 5"
    assert part.layout.startswith("variable-length records (label, image), each in HDF5's heap")
    record = 4 + 16 + 16 + 8
    assert part.touched_bytes == pytest.approx(record - 1 + 3 * 4096, abs=9), (
        "the row, and a collection of the heap"
    )


@pytest.mark.parametrize("classes", [3, 30])
def test_one_data_set_per_image_is_one_part(tmp_path: Path, classes: int) -> None:
    images = jpegs(600)
    found = inspect(write_per_image(tmp_path / "classes.h5", images, classes), samples=40)
    [part] = found.parts
    assert (part.name, part.samples, part.exact, part.content) == ("*/*", 600, True, "JPEG")
    assert part.layout.startswith("one data set per sample")
    assert part.sample_bytes == spread_of(images), "of all, not of those that were read"
    assert part.looked_at is None
    assert part.warm is not None
    assert part.warm.samples == 40


def test_one_group_per_sample_is_one_part_for_each_name(tmp_path: Path) -> None:
    path = tmp_path / "groups.h5"
    with h5py.File(path, "w") as file:
        for number in range(40):
            file[f"train/{number:04d}/image"] = PIXELS[number]
            file[f"train/{number:04d}/mask"] = PIXELS[number, ::2]
            file[f"train/{number:04d}/label"] = number
    found = inspect(path, samples=FEW)
    assert [(part.name, part.samples) for part in found.parts] == [
        ("train/*/image", 40),
        ("train/*/mask", 40),
    ]
    assert main_of(found).content == "uint8 48x48x3"
    assert main_of(found).sample_bytes == (6912, 6912, 6912)
    assert "train/*/label (one int64)" in found.notes["other data sets"]


def test_opaque_scalars_are_samples(tmp_path: Path) -> None:
    path = tmp_path / "opaque.h5"
    images = jpegs(30)
    with h5py.File(path, "w") as file:
        for number, image in enumerate(images):
            file[f"{number}"] = np.void(image)
    part = main_of(inspect(path, samples=30))
    assert (part.name, part.samples, part.content, part.layout) == (
        "*",
        30,
        "JPEG",
        "one data set per sample, contiguous",
    )
    assert part.warm is not None
    assert part.warm.samples == 30


def test_videos_are_runs_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "videos.h5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            file[f"demo_{number}/frames"] = PIXELS[: 3 + number % 2]
    part = main_of(inspect(path, samples=FEW))
    assert (part.name, part.samples, part.sample_bytes) == ("*/frames", 70, (6912, 6912, 6912))


def test_offsets_divide_a_data_set_of_bytes(tmp_path: Path) -> None:
    images = jpegs(50)
    found = inspect(write_blob(tmp_path / "blob.h5", images), samples=50)
    part = main_of(found)
    assert (part.name, part.samples, part.content) == ("train/bytes", 50, "JPEG")
    assert part.sample_bytes == spread_of(images)
    assert part.layout == "one sample after another, divided by train/begin; contiguous"
    assert "train/label" in found.notes["other data sets"]


def test_bytes_without_offsets_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "bytes.h5"
    with h5py.File(path, "w") as file:
        file["bytes"] = np.zeros(100_000, np.uint8)
        file["other"] = np.arange(1000)
    found = inspect(path, samples=FEW)
    assert found.main is None
    assert found.notes["other data sets"] == "bytes (100000 uint8), other (1000 int64)"


def test_columns_of_a_table_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "table.h5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            file[f"column{number}"] = np.arange(500.0)
    assert inspect(path, samples=FEW).parts == ()


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_decompression_has_a_measured_cost(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "packed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("single", data=PIXELS, chunks=(1, 48, 48, 3), compression=compression)
        file.create_dataset("many", data=PIXELS, chunks=(60, 48, 48, 3), compression=compression)
        file.create_dataset("plain", data=PIXELS, chunks=(1, 48, 48, 3))
    parts = {part.name: part for part in inspect(path, samples=12).parts}
    single, many = parts["single"], parts["many"]
    assert single.decompress_s
    assert many.decompress_s
    assert many.decompress_s > 5 * single.decompress_s, "60 samples are decompressed for one"
    assert parts["plain"].decompress_s is None
    assert many.layout == f"chunks of 60x48x48x3, {compression}"
    assert many.warm is not None
    assert many.warm.median_s is not None
    assert many.warm.median_s > many.decompress_s / 3, "no read finds its chunk in the cache of the library"


def test_a_chunk_larger_than_the_cache_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        _, cache_bytes, _ = file.create_dataset("x", data=0).id.get_access_plist().get_chunk_cache()
        rows = cache_bytes // (64 * 64 * 3) + 1
        file.create_dataset("plain", data=np.zeros((rows, 64, 64, 3), np.uint8), chunks=(rows, 64, 64, 3))
        file.create_dataset(
            "packed", data=np.zeros((rows, 64, 64, 3), np.uint8), chunks=(rows, 64, 64, 3), compression=1
        )
    parts = {part.name: part for part in inspect(path, samples=FEW).parts}
    assert parts["plain"].touched_bytes == pytest.approx(64 * 64 * 3, abs=4096)
    assert parts["plain"].advice is None
    assert parts["packed"].advice is not None
    assert "h5repack -l packed:CHUNK=1x64x64x3" in parts["packed"].advice


def test_a_chunked_data_set_of_bytes_is_read_in_chunks(tmp_path: Path) -> None:
    path = tmp_path / "blob.h5"
    lengths = np.full(100, 30_000)
    with h5py.File(path, "w") as file:
        file.create_dataset("bytes", data=np.zeros(lengths.sum(), np.uint8), chunks=(1 << 20,))
        file["begin"] = np.append(0, np.cumsum(lengths))
    part = main_of(inspect(path, samples=FEW))
    assert part.touched_bytes == pytest.approx(1 << 20, abs=4096)
    assert part.advice is not None
    assert "(30000 bytes) costs 1.0 MiB" in part.advice
    assert "h5repack -l bytes:CONTI" in part.advice


def test_data_in_other_files_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "outside.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (100, 100), np.uint8, external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)])
        file["elsewhere"] = h5py.ExternalLink("/dev/zero", "data")
        file["loop"] = h5py.SoftLink("/")
        file["inner/further"] = h5py.ExternalLink("gone.h5", "data")
    found = inspect(path, samples=FEW)
    part = main_of(found)
    assert (part.name, part.unread, part.warm) == ("data", "its data is in other files", None)
    assert found.notes["in other files"].startswith("elsewhere, inner/further; links to other files")


def test_a_filter_that_is_not_installed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "blosc.h5"
    with h5py.File(path, "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((1, 100))
        created.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((50, 100))
        h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT8, space, dcpl=created)
    part = main_of(inspect(path, samples=FEW))
    assert "32001" in part.unread
    assert "HDF5_PLUGIN_PATH" in part.unread
    assert part.cold is None


def test_a_group_that_contains_itself_is_visited_once(tmp_path: Path) -> None:
    path = tmp_path / "loop.h5"
    with h5py.File(path, "w") as file:
        file["images"] = PIXELS[:4]
        file.create_group("inner")["outer"] = file["/"]
    assert [part.name for part in inspect(path, samples=FEW).parts] == ["images"]


def test_many_data_sets_are_counted_without_opening_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storebench.stores.inspection.hdf5_walk.MOST_OBJECTS", 100)
    part = main_of(inspect(write_per_image(tmp_path / "many.h5", jpegs(400), classes=4), samples=FEW))
    assert (part.samples, part.exact) == (400, False)


def test_groups_that_were_not_visited_in_time_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_per_image(tmp_path / "many.h5", jpegs(2000), classes=100)
    monkeypatch.setattr("storebench.stores.inspection.hdf5_walk.WALK_S", 0.02)
    found = inspect(path, samples=FEW)
    part = main_of(found)
    assert part.samples == pytest.approx(2000, rel=0.1)
    assert part.exact == ("groups" not in found.notes)


def test_an_empty_file_has_no_parts(tmp_path: Path) -> None:
    path = tmp_path / "empty.h5"
    with h5py.File(path, "w") as file:
        file.create_group("nothing/at/all")
        file.create_dataset("rows", (0, 32, 32, 3), np.uint8)
        file["null"] = h5py.Empty("f4")
    found = inspect(path)
    assert (found.parts, found.main) == ((), None)


def test_a_damaged_chunk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", data=PIXELS[:1], chunks=(1, 48, 48, 3), compression="gzip")
        place = data.id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[place.byte_offset + 2 : place.byte_offset + 60] = bytes(58)
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match="HDF5 cannot read it"):
        inspect(path)


def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.file.MEMORY_BYTES", 16 << 20)
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", (4, 50_000_000), np.uint8)
    with pytest.raises(CorruptDataError, match="HDF5 cannot read it"):
        inspect(path)


def test_small_parts_do_not_hide_values_of_unknown_size(tmp_path: Path) -> None:
    path = write_vlen(tmp_path / "vlen.h5", jpegs(40))
    with h5py.File(path, "a") as file:
        for number in range(5):
            file[f"features{number}"] = np.zeros((40, 100 + number), np.float32)
    assert main_of(inspect(path, samples=FEW)).name == "images"


def test_a_hundred_gigabytes_are_inspected_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.h5"
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    try:
        with h5py.File(path, "w") as file:
            space = h5py.h5s.create_simple((500_000, 256, 256, 3))
            h5py.h5d.create(file.id, b"images", h5py.h5t.NATIVE_UINT8, space, dcpl=created)
    except OSError:
        pytest.skip("no file may be so large here")
    assert path.stat().st_size > 98e9
    part = main_of(inspect(path, samples=FEW))
    assert (part.samples, part.sample_bytes) == (500_000, (196_608, 196_608, 196_608))
    assert part.warm is not None
    assert part.warm.samples == FEW
    path.unlink()
