"""One producer: spans that add up, memory that it was given, errors that name the sample."""

import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from storebench.codecs import get_codec
from storebench.loading.augment import Augment
from storebench.loading.batch import LOOP_WORKER, BatchRequest
from storebench.loading.loader import ReusedBuffer
from storebench.loading.producer import Producer
from storebench.probes.page_count import PAGE_BYTES, mincore_pages
from storebench.testing.stores import SHAPE, SmallStore
from tests.support.loading_tools import MakeJob

StoreOf = Callable[[str], SmallStore]


def request_for(*numbers: int) -> BatchRequest:
    return BatchRequest(epoch=0, step=0, indices=np.array(numbers, dtype=np.int64))


def test_the_spans_add_up_to_the_time_that_passed(make_job: MakeJob) -> None:
    """Nothing that costs time lies outside of fetch, decode and prep."""
    producer = Producer(make_job("png", augment=Augment(crop=30, mirror=True)))
    producer.open()
    producer.produce(request_for(*range(60)))
    overheads = []
    for _ in range(20):
        start = time.perf_counter_ns()
        spans = producer.produce(request_for(*range(60))).spans
        whole = time.perf_counter_ns() - start
        overheads.append(1 - (spans.fetch_ns + spans.decode_ns + spans.prep_ns) / whole)
    producer.close()
    assert min(overheads) < 0.02


def test_decoding_counts_as_decoding(make_job: MakeJob) -> None:
    """A raw store has next to none of it, a PNG store hardly anything else, whenever nothing comes in between."""
    shares: dict[str, list[float]] = {}
    for backend in ("memory:native", "png"):
        producer = Producer(make_job(backend))
        producer.open()
        spans = [producer.produce(request_for(*range(60))).spans for _ in range(9)]
        shares[backend] = sorted(span.decode_ns / (span.fetch_ns + span.decode_ns) for span in spans)
        producer.close()
    # A busy machine may stop either part for a while: of some batches the share is far too small or too large.
    assert shares["png"][-1] > 0.5
    assert shares["memory:native"][0] < 0.2


@pytest.mark.parametrize("backend", ["png", "lmdb+jpeg", "memory:native"])
def test_the_decoder_is_made_before_the_first_batch(make_job: MakeJob, backend: str) -> None:
    """Making it may import a library of many MiB, which no step may pay for."""
    producer = Producer(make_job(backend))
    get_codec.cache_clear()  # as in a new process
    producer.open()
    made = get_codec.cache_info().misses
    producer.produce(request_for(0, 1, 2))
    assert get_codec.cache_info().misses == made
    producer.close()


def first_rows(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return memory[: shape[0]]


def test_pixels_go_where_the_loader_wants_them(make_job: MakeJob, store_of: StoreOf) -> None:
    """Fetched, decoded or augmented straight into that memory."""
    for backend in ("lmdb", "png"):
        memory = torch.zeros((5, *SHAPE), dtype=torch.uint8)
        producer = Producer(make_job(backend), functools.partial(first_rows, memory))
        batch = producer.produce(request_for(4, 2))
        producer.close()
        assert batch.pixels.data_ptr() == memory.data_ptr()
        np.testing.assert_array_equal(memory[:2].numpy(), store_of(backend).pixels[[4, 2]])
        assert not memory[2:].any()
        assert batch.worker == LOOP_WORKER


def test_scratch_memory_grows_with_the_batch(make_job: MakeJob, store_of: StoreOf) -> None:
    producer = Producer(make_job(augment=Augment(mirror=True)))
    for numbers in ([1], [5, 6, 7], [2, 3]):
        flipped_or_not = producer.produce(request_for(*numbers)).pixels.numpy()
        pixels = store_of("lmdb").pixels[numbers]
        for found, image in zip(flipped_or_not, pixels, strict=True):
            assert (found == image).all() or (found == image[:, ::-1]).all()
    producer.close()


@pytest.mark.parametrize(
    ("backend", "direct"),
    [("memory:native", True), ("lmdb:direct", True), ("hdf5:direct", True), ("hdf5", False), ("png", False)],
)
def test_windows_need_no_scratch_batch_where_the_reader_serves_them(
    backend: str, direct: bool, make_job: MakeJob, store_of: StoreOf
) -> None:
    augment, numbers, small = Augment(crop=20, mirror=True), [3, 60, 3, 0], store_of(backend)
    producer = Producer(make_job(backend, augment=augment))
    producer.open()
    timed = producer.produce(request_for(*numbers))
    assert (producer._scratch is None) is direct
    expected = np.empty((4, 20, 20, 3), np.uint8)
    augment.apply_without_kernel(small.pixels[numbers], np.array(numbers), expected, seed=5, epoch=0)
    np.testing.assert_array_equal(timed.pixels.numpy(), expected)
    producer.close()
    assert timed.payload_bytes == sum(len(small.payloads[n]) for n in numbers)


def resident_frac(memory: np.ndarray) -> float:
    """Return the share of an array's pages that are in place."""
    start = memory.ctypes.data & -PAGE_BYTES
    length = memory.ctypes.data + memory.nbytes - start
    return mincore_pages(start, length) / -(-length // PAGE_BYTES)


def test_the_first_step_pays_for_no_page_of_a_batch(make_job: MakeJob) -> None:
    """All memory of the largest batch is in place when the reader is open."""
    whole = dataclasses.replace(make_job("hdf5"), batch_size=60)
    cropped = dataclasses.replace(whole, augment=Augment(crop=30))
    buffer = ReusedBuffer()
    producers = [Producer(whole, buffer), Producer(cropped)]
    for producer in producers:
        producer.open()
    assert producers[1]._scratch is not None
    memory = [buffer((60, *SHAPE)).numpy(), producers[1]._scratch]
    for producer in producers:
        producer.close()
    assert [resident_frac(part) for part in memory] == [1.0] * 2
    assert resident_frac(np.empty(64 << 20, np.uint8)) < 0.5, "new memory counts as in place"
