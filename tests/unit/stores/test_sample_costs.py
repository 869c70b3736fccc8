"""The estimates of a plan before conversion: the bytes of samples as the codec stores them, and the time they take."""

from pathlib import Path
from statistics import mean

import pytest

from storebench.datasets import DatasetSpec, open_dataset
from storebench.errors import CorruptDataError, UsageError
from storebench.formats import parse_backend
from storebench.run.dry_run import plan_run
from storebench.run.scenario import make_scenario
from storebench.stores.sample_costs import sample_costs
from tests.support.photo_folders import photo_file, write_photos


def test_a_few_samples_tell_what_each_codec_stores(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", each=8)
    dataset = open_dataset(DatasetSpec(name=f"folder:{photos}"))
    original, raw, png, jpeg = (
        sample_costs(dataset, parse_backend(f"lmdb+{codec}"), limit_s=9.0)
        for codec in ("original", "raw", "png", "jpeg")
    )
    assert original.payload_bytes == mean(path.stat().st_size for path in photos.rglob("*.*"))
    assert raw.payload_bytes == 256 * 256 * 3
    assert jpeg.payload_bytes < png.payload_bytes < raw.payload_bytes
    assert png.decode_s > raw.decode_s > 0


@pytest.mark.parametrize("every", [2, 4, 15])
def test_files_of_unlike_sizes_in_turn_are_counted_in_all(tmp_path: Path, every: int) -> None:
    for number in range(120):
        side = 400 if number % every == 0 else 24
        (tmp_path / f"{number:03d}.jpg").write_bytes(photo_file(number, (side, side)))
    mean_bytes = mean(path.stat().st_size for path in tmp_path.iterdir())
    for limit in (None, 60):
        dataset = open_dataset(DatasetSpec(name=f"folder:{tmp_path}", limit=limit))
        costs = sample_costs(dataset, parse_backend("original"), 224, limit_s=9.0)
        assert costs.payload_bytes == pytest.approx(mean_bytes, rel=0.4 if limit else 1e-9)


def test_samples_without_files_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    digits = open_dataset(DatasetSpec(name="mnist", synthetic=True, limit=4))
    with pytest.raises(UsageError, match="no image files"):
        sample_costs(digits, parse_backend("original"))
    photos = write_photos(tmp_path / "photos", each=2)
    damaged = next(photos.rglob("*001*"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(CorruptDataError, match=damaged.name):
        sample_costs(open_dataset(DatasetSpec(name=f"folder:{photos}")), parse_backend("lmdb"), limit_s=9.0)


def test_a_plan_counts_encoded_bytes_where_samples_are_encoded(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", each=8, only=0)
    matrix = {
        "dataset": f"folder:{photos}",
        "backends": ["original", "lmdb"],
        "model": "none",
        "compute": "none",
    }
    scenario = make_scenario({"name": "plan", "matrix": [matrix]})
    plan = plan_run(scenario, scenario.cells(), tmp_path / "stores")
    sizes = {store.name.rpartition("/")[2]: store.store_bytes for store in plan.stores}
    assert sizes["lmdb+raw"] == 16 * 256 * 256 * 3
    assert sizes["files+original"] == pytest.approx(
        sum(path.stat().st_size for path in photos.rglob("*.*")), rel=0.5
    )
    assert plan.write_bytes == sum(sizes.values())
