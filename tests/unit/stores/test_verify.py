"""Reading a store back: what is right passes, and the first sample that is wrong is named."""

from pathlib import Path

import pytest

from storebench.errors import CorruptStoreError, DigestMismatchError
from storebench.formats import parse_backend
from storebench.stores.convert import convert
from storebench.stores.find import Store
from storebench.stores.verify import verify_store
from tests.support.small_datasets import SPEC, Gradients


def build(dataset: Gradients, backend: str, folder: Path) -> Store:
    return convert(dataset, SPEC, parse_backend(backend), folder / "stores")


def data_file_with(store: Store, content: bytes) -> Path:
    """Return the one data file that holds `content` as it is."""
    (found,) = (path for path in store.path.rglob("*") if path.is_file() and content in path.read_bytes())
    return found


def change_pixel(store: Store, dataset: Gradients, index: int) -> Path:
    """Flip one bit of sample `index` in a store of raw pixels."""
    pixels = dataset.sample(index)[0].tobytes()
    path = data_file_with(store, pixels)
    changed = pixels[:100] + bytes([pixels[100] ^ 1]) + pixels[101:]
    path.write_bytes(path.read_bytes().replace(pixels, changed))
    return path


@pytest.mark.parametrize("backend", ["hdf5", "lmdb", "memory:python", "files+raw"])
def test_a_flipped_bit_is_found_and_the_sample_named(backend: str, tmp_path: Path) -> None:
    dataset = Gradients(count=1100)
    store = build(dataset, backend, tmp_path)
    change_pixel(store, dataset, 1090)
    change_pixel(store, dataset, 1081)
    with pytest.raises(DigestMismatchError, match="sample 1081 is not as written") as refusal:
        verify_store(store.path)
    assert refusal.value.exit_code == 5


def test_a_file_that_does_not_decode_is_named(tmp_path: Path) -> None:
    store = build(Gradients(count=40, shape=(30, 30, 3)), "png", tmp_path)
    wrong = sorted(store.path.rglob("*.png"))[17]
    wrong.write_bytes(bytes(wrong.stat().st_size))
    with pytest.raises(CorruptStoreError, match=r"sample \d+ does not decode") as refusal:
        verify_store(store.path)
    assert refusal.value.where == str(wrong)


def test_another_label_is_told_from_other_pixels(tmp_path: Path) -> None:
    dataset = Gradients(count=50)
    store = build(dataset, "hdf5", tmp_path)
    import h5py

    with h5py.File(data_file_with(store, dataset.sample(0)[0].tobytes()), "r+") as file:
        file["label"][33] = 9
    with pytest.raises(DigestMismatchError, match="sample 33 is not as written"):
        verify_store(store.path)
