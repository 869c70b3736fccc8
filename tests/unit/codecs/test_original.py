"""Image files as they are: copied byte for byte into every container, cut and resized when they are read."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from storebench.codecs import OriginalCodec, get_codec
from storebench.codecs.original import DRAWS, View, random_view
from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.digests import payload_digest, set_digest
from storebench.formats import open_reader, parse_backend
from storebench.stores.convert import convert
from storebench.stores.find import Store
from storebench.stores.verify import verify_store
from tests.support.photo_folders import photo, photo_file, write_photos

CONTAINERS = ("files", "hdf5", "memory", "leveldb", "lmdb")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


def files_of(photos: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(photos.glob("*/*"))]


def opened(photos: Path, **options: Any) -> tuple[Dataset, DatasetSpec]:
    spec = DatasetSpec(name=f"folder:{photos}", **options)
    return open_dataset(spec), spec


def stored(photos: Path, backend: str, stores: Path, **options: Any) -> Store:
    dataset, spec = opened(photos, **options)
    return convert(dataset, spec, parse_backend(backend), stores)


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_holds_the_very_bytes_of_the_files(
    photos: Path, container: str, tmp_path: Path
) -> None:
    store = stored(photos, f"{container}+original", tmp_path)
    contents = files_of(photos)
    with open_reader(store.path) as reader:
        assert reader.fetch(np.arange(len(contents))) == contents
        labels = reader.labels.tolist()
        pixels, _ = reader[3]
    assert labels == [0] * 6 + [1] * 6
    assert pixels.shape == store.manifest.dataset.image_shape == (256, 256, 3)
    assert store.manifest.payload_bytes == sum(map(len, contents))
    assert store.manifest.samples_digest == set_digest(map(payload_digest, contents, labels))
    assert not store.manifest.lossless
    assert verify_store(store.path).count == len(contents)


def test_all_image_sizes_share_one_store_of_files(photos: Path, tmp_path: Path) -> None:
    first = stored(photos, "original", tmp_path)
    second = stored(photos, "original", tmp_path, image_size=64)
    assert (second.path, second.built) == (first.path, False)
    raw = stored(photos, "lmdb", tmp_path, image_size=64)
    assert raw.manifest.dataset.image_shape == (64, 64, 3)
    assert raw.path.parent != first.path.parent


@pytest.mark.parametrize("size", [(1024, 512)])
def test_the_view_for_evaluation_is_a_resize_and_a_crop(size: tuple[int, int]) -> None:
    image = photo(4, size)
    resized = image.resize((size[0] // 2, 256), PilImage.Resampling.BILINEAR)
    left = (resized.width - 224) // 2
    expected = np.asarray(resized.crop((left, 16, left + 224, 240))).astype(int)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    out = np.empty((224, 224, 3), np.uint8)
    get_codec("original").decode_into(buffer.getvalue(), out)
    assert np.abs(out.astype(int) - expected).max() <= 1


def test_the_view_for_training_covers_the_parts_that_torchvision_draws() -> None:
    draws = np.random.default_rng(0).random((2000, DRAWS)).tolist()
    views = [random_view(640, 480, row) for row in draws]
    areas = np.array([view.width * view.height / (640 * 480) for view in views])
    ratios = np.array([view.width / view.height for view in views])
    assert 0.07 < areas.min() < 0.09
    assert 0.95 < areas.max() <= 1
    assert 0.74 < ratios.min() < 0.77
    assert 1.30 < ratios.max() < 1.36
    # Large parts fit at few ratios only; small ones are drawn evenly.
    small = areas < 0.4
    assert abs(areas[small].mean() - 0.24) < 0.015
    assert abs(np.log(ratios[small]).mean()) < 0.03
    assert all(view.left >= 0 and view.left + view.width <= 640 for view in views)
    assert all(view.top >= 0 and view.top + view.height <= 480 for view in views)
    assert 0.45 < np.mean([view.mirrored for view in views]) < 0.55


@pytest.mark.parametrize(
    ("size", "view"),
    [
        ((900, 10), View(left=443, top=0, width=13, height=10)),
        ((10, 900), View(left=0, top=443, width=10, height=13)),
    ],
)
def test_images_that_no_part_fits_are_cropped_in_the_middle(size: tuple[int, int], view: View) -> None:
    # Areas near the whole: no ratio of them fits an image that is much wider than high.
    assert random_view(*size, [0.999] * DRAWS) == view


def test_the_part_is_cut_resized_and_mirrored() -> None:
    image, codec = photo(5, (120, 90)), get_codec("original")
    assert isinstance(codec, OriginalCodec)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    view = View(left=20, top=10, width=60, height=60, mirrored=True)
    out = np.empty((30, 30, 3), np.uint8)
    codec.decode(buffer.getvalue(), out.shape, lambda width, height: view).write(out)
    cut = image.crop((20, 10, 80, 70)).resize((30, 30), PilImage.Resampling.BILINEAR)
    mirrored = np.asarray(cut)[:, ::-1].astype(int)
    # The filter may look one pixel beyond the part, which a crop does not have.
    assert np.abs(out[1:-1, 1:-1].astype(int) - mirrored[1:-1, 1:-1]).max() <= 1


def test_a_reduced_scale_gives_nearly_the_same_image() -> None:
    content = photo_file(6, (800, 600))
    whole, scaled = (np.empty((96, 96, 3), np.uint8) for _ in range(2))
    get_codec("original").decode_into(content, whole)
    get_codec("original?scale=dct").decode_into(content, scaled)
    difference = np.abs(whole.astype(int) - scaled.astype(int))
    assert difference.max() > 0
    assert difference.mean() < 4
