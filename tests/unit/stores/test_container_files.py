"""What a random sample of tar, TFRecord, MDS, Parquet and Arrow files costs, by layout and measured."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storebench.errors import CorruptDataError, UsageError
from storebench.stores.inspection import Inspection, SampleSet, inspect
from tests.support.container_files import WRITERS, table
from tests.support.foreign_files import jpegs

IMAGES = jpegs(60)
SAMPLES = [(image, number % 3) for number, image in enumerate(IMAGES)]
WITHIN: dict[str, tuple[str, str, int]] = {
    "tar": ("000.tar", "tar shards", 30),
    "TFRecord": ("0.tfrecord", "TFRecord", 30),
    "MDS": ("", "MDS", 30),
    "Hugging Face": ("data-00000-of-00001.arrow", "Arrow", 60),
    "Parquet": ("0.parquet", "Parquet", 30),
}
"""Writer -> file within its folder, kind, and samples."""


def main_of(found: Inspection) -> SampleSet:
    assert found.main is not None
    return found.main


@pytest.mark.parametrize("kind", WITHIN)
def test_samples_are_counted_and_read(kind: str, tmp_path: Path) -> None:
    name, words, count = WITHIN[kind]
    WRITERS[kind](tmp_path / "data", SAMPLES)
    found = inspect(tmp_path / "data" / name, samples=8)
    part = main_of(found)
    assert (found.kind, part.samples) == (words, count)
    assert "JPEG" in part.content
    assert part.warm is not None
    assert part.warm.samples == 8
    assert part.sample_bytes is not None
    frame = 64 if kind == "TFRecord" else 0  # name, label and lengths around an image
    assert abs(part.sample_bytes[1] - np.median([len(image) for image in IMAGES])) < 300 + frame


@pytest.mark.parametrize(("rows", "advised"), [(400, True), (64, False)])
def test_a_row_needs_its_whole_row_group(rows: int, advised: bool, tmp_path: Path) -> None:
    pq.write_table(
        table(SAMPLES * 10),
        tmp_path / "a.parquet",
        row_group_size=rows,
        compression="none",
        use_dictionary=False,
    )
    part = main_of(inspect(tmp_path / "a.parquet", samples=8))
    stored = sum(len(image) for image in (IMAGES * 10)[:rows])
    assert part.touched_bytes is not None
    assert 0.9 * stored < part.touched_bytes < 1.1 * stored
    assert (part.advice is not None) == advised


def test_a_row_group_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(3 << 20)
    pq.write_table(pa.table({"image": [noise] * 90}), tmp_path / "a.parquet", use_dictionary=False)
    part = main_of(inspect(tmp_path / "a.parquet", samples=8))
    assert "a read needs it as a whole" in part.unread
    assert part.warm is None


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    WRITERS["MDS, zstd"](tmp_path / "mds", SAMPLES)
    with pytest.raises(UsageError, match="Unpack them first"):
        inspect(tmp_path / "mds")
    path = tmp_path / "a.parquet"
    pq.write_table(table(SAMPLES), path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CorruptDataError, match="cannot be read"):
        inspect(path)
    pq.write_table(table(SAMPLES).slice(0, 0), path)
    assert inspect(path).main is None
