"""Readers that keep an order of their own: what they serve is what they say beforehand, and backends' names mark it."""

import csv
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storebench.arrays import randomness
from storebench.formats.base import Indices, Reader
from storebench.formats.peers.stream import StreamOptions
from storebench.formats.registry import BUILTIN, get_format
from storebench.testing.stores import COUNT, SmallStore, build_small_store, read_pixels

STREAMS = ["webdataset", "tfrecord"]


@pytest.fixture(params=STREAMS)
def small(request: pytest.FixtureRequest, tmp_path: Path) -> SmallStore:
    for library in BUILTIN[request.param].libraries:
        pytest.importorskip(library)
    return build_small_store(get_format(request.param), "png", tmp_path)


@pytest.fixture
def stream(small: SmallStore) -> Iterator[Reader]:
    with small.format.reader(small.path, small.manifest, "stream", {"buffer": "9"}) as reader:
        yield reader


def order_of(small: SmallStore, seed: tuple[int, ...], buffer: int = 9) -> Indices:
    reader = small.format.readers()["stream"].reader
    return reader.native_order(small.path, small.manifest, StreamOptions(buffer=buffer), seed)


def test_an_epoch_is_served_in_the_order_that_was_drawn(small: SmallStore, stream: Reader) -> None:
    for seed in ((1, 0), (1, 1), (2**63, 0)):
        order = order_of(small, seed)
        assert sorted(order) == list(range(COUNT))
        batches = [order[at : at + 16] for at in range(0, COUNT, 16)]
        stream.plan(batches, seed)
        for batch in batches:
            np.testing.assert_array_equal(read_pixels(stream, batch.tolist()), small.pixels[batch])
    assert "batches outside of the native order" not in stream.notes()


def test_a_batch_outside_of_the_order_is_right_and_counted(small: SmallStore, stream: Reader) -> None:
    stream.plan([order_of(small, (1, 0))], (1, 0))
    wanted = [5, 0, 66, 5]
    np.testing.assert_array_equal(read_pixels(stream, wanted), small.pixels[wanted])
    assert stream.notes()["batches outside of the native order"] == "1"


def test_seeds_and_buffers_change_the_order(small: SmallStore) -> None:
    orders = [
        order_of(small, seed, buffer).tolist() for seed in ((1, 0), (1, 1), (2, 0)) for buffer in (5, 50)
    ]
    assert len({tuple(order) for order in orders}) == len(orders)
    # A buffer of one sample moves whole shards, so most neighbours stay neighbours.
    assert randomness(order_of(small, (1, 0), 1))[1] > 0.7
    assert randomness(order_of(small, (1, 0), COUNT))[1] < 0.3


def test_a_uniform_shuffle_has_the_displacement_of_one() -> None:
    displacement, neighbours = randomness(np.random.default_rng(0).permutation(100_000))
    assert displacement == pytest.approx(1, abs=0.01)
    assert neighbours < 0.001


@pytest.mark.parametrize("setting", [["--workers", "2"], ["--ranks", "2"]])
def test_a_stream_is_not_dealt_to_several(
    setting: list[str], cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    pytest.importorskip("google_crc32c")
    done = cli("run", "tfrecord", "--dataset", "mnist", "--synthetic", "--size", "40", *setting)
    assert done.returncode == 2
    assert "tfrecord is one stream in its own order" in done.stderr


def test_a_run_of_both_orders_is_valid_and_measures_the_own_one(
    cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    pytest.importorskip("google_crc32c")
    backends = ("tfrecord?buffer=5", "lmdb", "npy")
    setting = ("--dataset", "mnist", "--synthetic", "--size", "400", "--compute", "none", "--replicates", "1")
    done = cli("run", *backends, *setting, "--cache", "warm", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "tfrecord (own order, buffer=5)" in done.stdout
    assert cli("validate", "run").returncode == 0
    rows = {row["backend"]: row for row in csv.DictReader(cli("export", "run").stdout.splitlines())}
    assert rows["lmdb"]["order_displacement"] == ""
    own = rows["tfrecord:stream?buffer=5"]
    assert own["order_buffer_samples"] == "5.0"
    assert 0.1 < float(own["order_displacement"]) < 1.5  # the eight shards come in a drawn order
    assert 0.01 < float(own["order_neighbours_kept"]) < 0.5
