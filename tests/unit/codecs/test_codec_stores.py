"""Every codec in every container: the same samples, a known loss, and one line for a damaged payload."""

import math
from pathlib import Path

import numpy as np
import pytest

from storebench.formats import open_reader, parse_backend
from storebench.record.manifest import Manifest
from storebench.stores.convert import convert_to
from storebench.stores.verify import verify_store
from tests.support.codecs import ALL, LOSSLESS, installed
from tests.support.small_datasets import Gradients

CONTAINERS = ("files", "lmdb", "hdf5", "leveldb", "memory")
COUNT, SHAPE = 12, (24, 20, 3)
every = pytest.mark.parametrize("codec", installed(ALL))


@pytest.mark.thinned
@every
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_store_holds_the_samples_or_says_what_it_has_lost(
    container: str, codec: str, tmp_path: Path
) -> None:
    dataset = Gradients(count=COUNT, shape=SHAPE)
    store = convert_to(dataset, parse_backend(f"{container}+{codec}"), tmp_path / "store")
    assert verify_store(store.path).count == COUNT
    pixels = np.empty((COUNT, *SHAPE), np.uint8)
    with open_reader(store.path) as reader:
        reader.read_into(np.arange(COUNT), pixels)
    originals = np.stack([dataset.sample(index)[0] for index in range(COUNT)])
    assert store.manifest.lossless == (codec in LOSSLESS)
    if codec in LOSSLESS:
        np.testing.assert_array_equal(pixels, originals)
        assert store.manifest.samples_digest == dataset.digest()
        assert store.manifest.psnr_db is None
    else:
        error = np.square(pixels.astype(float) - originals).mean()
        assert store.manifest.psnr_db == pytest.approx(10 * math.log10(255**2 / error))
        assert Manifest.read(store.path).psnr_db == store.manifest.psnr_db
