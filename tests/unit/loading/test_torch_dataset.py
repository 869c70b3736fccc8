"""A store as a dataset of torch: samples, batches, worker processes, and what is refused."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PilImage
from torch.utils.data import DataLoader

from storebench.errors import CorruptStoreError, IntegrityError, UnknownNameError
from storebench.formats import open_reader
from storebench.formats.base import Batch as Pixels
from storebench.formats.base import Indices
from storebench.formats.registry import get_format
from storebench.loading.torch_dataset import StoreDataset
from storebench.testing.stores import COUNT, SHAPE, SmallStore, build_small_store, open_files

BACKENDS = [("lmdb", "raw"), ("lmdb", "jpeg"), ("files", "png"), ("leveldb", "raw"), ("hdf5", "raw")]


@pytest.fixture(scope="module", params=BACKENDS, ids="+".join)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    name, codec = request.param
    return build_small_store(get_format(name), codec, tmp_path_factory.mktemp(f"{name}-{codec}"))


@pytest.fixture
def dataset(small: SmallStore) -> Iterator[StoreDataset]:
    with StoreDataset(small.path) as opened:
        yield opened


def loaded(loader: DataLoader[Any]) -> tuple[Pixels, Indices]:
    """Return what a loader yields, as pixels [N, H, W, C] and labels [N] in its order."""
    batches = list(loader)
    images = torch.cat([images for images, _ in batches]).permute(0, 2, 3, 1).numpy()
    return images, torch.cat([labels for _, labels in batches]).numpy()


class Half:
    """Scale pixels to floats; picklable, as a spawned worker needs it."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() / 2


def test_each_sample_has_its_pixels_and_label(small: SmallStore, dataset: StoreDataset) -> None:
    assert len(dataset) == COUNT
    for index in (0, 5, COUNT - 1):
        image, label = dataset[index]
        assert image.shape == (SHAPE[2], *SHAPE[:2])
        assert image.dtype == torch.uint8
        np.testing.assert_array_equal(image.permute(1, 2, 0), small.pixels[index])
        assert label == small.labels[index]
    assert dataset.classes == list(small.manifest.dataset.class_names)
    np.testing.assert_array_equal(dataset.labels, small.labels)


@pytest.mark.parametrize("index", [-1, COUNT])
def test_an_index_without_a_sample_is_refused(dataset: StoreDataset, index: int) -> None:
    with pytest.raises(IndexError, match=f"no sample {index} in {COUNT}"):
        dataset[index]
    with pytest.raises(IndexError, match=f"no sample {index} in {COUNT}"):
        dataset.__getitems__([0, index])


@pytest.mark.parametrize("index", [1.0, "1", slice(0, 2)])
def test_an_index_that_is_no_integer_is_refused(dataset: StoreDataset, index: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        dataset[index]
    with pytest.raises(IndexError):
        dataset[2**70]
    for whole in (np.int32(3), np.uint8(3), torch.tensor(3)):
        np.testing.assert_array_equal(dataset[whole][0], dataset[3][0])  # type: ignore[index]


@pytest.mark.parametrize("method", [None, "fork"])
def test_a_loader_serves_every_sample(small: SmallStore, method: str | None) -> None:
    with StoreDataset(small.path) as dataset:
        dataset[0]  # a reader is open in this process before any worker starts
        loader = DataLoader(
            dataset,
            batch_size=16,
            num_workers=2 if method else 0,
            multiprocessing_context=method,
        )
        images, labels = loaded(loader)
        np.testing.assert_array_equal(images, small.pixels)
        np.testing.assert_array_equal(labels, small.labels)
        np.testing.assert_array_equal(dataset[3][0].permute(1, 2, 0), small.pixels[3])


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        pytest.param("lmdb", "raw", id="lmdb"),
        pytest.param("files", "png", id="files", marks=pytest.mark.full),
    ],
)
def test_a_spawned_worker_serves_every_sample(name: str, codec: str, tmp_path: Path) -> None:
    """It unpickles the dataset and opens a reader of its own; tests/contracts has every format in spawned processes."""
    small = build_small_store(get_format(name), codec, tmp_path)
    with StoreDataset(small.path) as dataset:
        dataset[0]
        spawned = DataLoader(dataset, batch_size=16, num_workers=1, multiprocessing_context="spawn")
        images, labels = loaded(spawned)
    np.testing.assert_array_equal(images, small.pixels)
    np.testing.assert_array_equal(labels, small.labels)


def test_a_batch_is_one_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = build_small_store(get_format("lmdb"), "raw", tmp_path)
    fetched: list[list[int]] = []
    kind = get_format("lmdb").readers()["get"].reader
    original = kind.fetch_into

    def counted(self: Any, indices: Any, out: Any) -> Any:
        fetched.append(indices.tolist())
        return original(self, indices, out)

    monkeypatch.setattr(kind, "fetch_into", counted)
    with StoreDataset(small.path) as dataset:
        loaded(DataLoader(dataset, batch_size=32))
    assert [len(indices) for indices in fetched] == [32, 32, COUNT - 64]


def test_a_dataset_that_was_closed_opens_anew(tmp_path: Path) -> None:
    small = build_small_store(get_format("lmdb"), "raw", tmp_path)
    dataset = StoreDataset(small.path)
    for _ in range(2):
        dataset[0]
        assert [path for path in open_files() if path.startswith(str(tmp_path))]
        dataset.close()
        dataset.close()
        assert not [path for path in open_files() if path.startswith(str(tmp_path))]


def test_a_transform_is_given_each_image(small: SmallStore) -> None:
    with StoreDataset(small.path, transform=Half()) as dataset:
        images, _ = loaded(DataLoader(dataset, batch_size=32))
    np.testing.assert_array_equal(images, small.pixels / 2)


def test_original_images_keep_their_sizes(photos: Path) -> None:
    with StoreDataset(photos, pil=True) as dataset:
        images = [dataset[index][0] for index in range(len(dataset))]
    with open_reader(photos) as reader:
        files = reader.fetch(np.arange(len(images)))
    originals = [PilImage.open(io.BytesIO(file)).convert("RGB") for file in files]
    assert len({image.size for image in images}) > 1
    assert [image.tobytes() for image in images] == [image.tobytes() for image in originals]


def test_what_is_wrong_is_said_when_the_dataset_is_made(tmp_path: Path) -> None:
    with pytest.raises(CorruptStoreError, match="not a store"):
        StoreDataset(tmp_path)
    (tmp_path / "store").mkdir()
    small = build_small_store(get_format("lmdb"), "raw", tmp_path / "store")
    with pytest.raises(UnknownNameError, match="'direct'"):
        StoreDataset(small.path, "drect")
    with pytest.raises(UnknownNameError, match="option"):
        StoreDataset(small.path, "get", options={"readahed": "off"})


def test_a_damaged_sample_is_named(tmp_path: Path) -> None:
    small = build_small_store(get_format("files"), "png", tmp_path)
    victim = small.format.locate(small.path, small.manifest, 7)
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    with StoreDataset(small.path) as dataset, pytest.raises(IntegrityError, match="sample 7"):
        dataset.__getitems__(list(range(COUNT)))
