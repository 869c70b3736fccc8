"""Cutting and growing: decided by seed and index alone, in any process, and said in the provenance."""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from storebench.datasets import Dataset, DatasetSpec, Origin, open_dataset
from storebench.digests import sample_digest
from tests.support.dataset_files import digests, write_class_folders, write_mnist


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_class_folders(tmp_path, {"a": 2, "b": 2})
    return f"folder:{tmp_path}"


def _one(dataset: Dataset, index: int) -> bytes:
    return sample_digest(*dataset.sample(index))


def test_the_originals_come_first_and_the_rest_is_said_to_be_derived(folder: str) -> None:
    source, grown = (open_dataset(DatasetSpec(name=folder, size=size)) for size in (None, 16))
    made = digests(grown)
    assert made[:4] == digests(source)
    assert len(set(made)) == 16
    assert [grown.sample(index)[1] for index in range(16)] == [0, 0, 1, 1] * 4
    assert grown.info.provenance.origin is Origin.DERIVED
    assert grown.info.provenance.derived_frac == 0.75
    assert source.info.provenance.origin is Origin.REAL


def test_any_process_makes_the_same_sample_alone(folder: str) -> None:
    grown = open_dataset(DatasetSpec(name=folder, size=12, seed=3))
    expected = digests(grown)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        backwards = list(pool.map(_one, [grown] * 8, range(11, 3, -1)))
    assert backwards == expected[:3:-1]
    code = (
        "from storebench.datasets import *; from storebench.digests import sample_digest\n"
        f"print(sample_digest(*open_dataset(DatasetSpec(name={folder!r}, size=12, seed=3)).sample(7)).hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected[7].hex()


def test_the_seed_changes_the_derived_samples_only(folder: str) -> None:
    one, other = (open_dataset(DatasetSpec(name=folder, size=8, seed=seed)) for seed in (1, 2))
    assert digests(one)[:4] == digests(other)[:4]
    assert not set(digests(one)[4:]) & set(digests(other)[4:])
    assert one.info.fingerprint != other.info.fingerprint


def test_equal_fingerprints_mean_equal_samples(folder: str) -> None:
    specs: list[dict[str, Any]] = [
        {}, {"seed": 5}, {"size": 4}, {"size": 8, "limit": 4}, {"limit": 2}, {"size": 2}, {"size": 8, "limit": 2},
        {"size": 8}, {"size": 16, "limit": 8}, {"size": 8, "seed": 5}, {"limit": 3}, {"size": 16},
    ]  # fmt: skip
    opened = [open_dataset(DatasetSpec(name=folder, **options)) for options in specs]
    for one in opened:
        for other in opened:
            same = digests(one) == digests(other)
            assert same == (one.info.fingerprint == other.info.fingerprint), (one.info, other.info)


def test_a_smaller_size_is_spread_evenly(tmp_path: Path) -> None:
    write_mnist(tmp_path, train=30)
    whole = open_dataset(DatasetSpec(name="mnist"), tmp_path)
    cut = open_dataset(DatasetSpec(name="mnist", size=10), tmp_path)
    first = open_dataset(DatasetSpec(name="mnist", limit=10), tmp_path)
    places = [digests(whole).index(digest) for digest in digests(cut)]
    assert [place // 3 for place in places] == list(range(10))
    assert len({place % 3 for place in places}) > 1, "a fixed stride may meet one kind of image only"
    assert digests(first) == digests(whole)[:10]
    assert cut.info.provenance.origin is Origin.REAL
