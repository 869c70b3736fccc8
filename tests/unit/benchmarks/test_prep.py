"""The account of a warm batch adds up, and its ways of preparing one give the same pixels."""

import numpy as np
import pytest

from benchmarks.prep import parts_of, prep_ways
from storebench.loading.batch import Spans
from storebench.training.loop import StepTimes

US = 1_000


def step(asked_us: int) -> StepTimes:
    """Return a step of 100 us: 10 until the producer begins, fetch 40, decode 5, prep 20, 1 inside, and 24 after."""
    start = asked_us + 10
    spans = Spans(
        start_ns=start * US, fetch_ns=40 * US, decode_ns=5 * US, prep_ns=20 * US, ready_ns=(start + 66) * US
    )
    got = (start + 70) * US
    return StepTimes(
        asked_ns=asked_us * US,
        got_ns=got,
        copied_ns=got,
        done_ns=got,
        spans=spans,
        worker=-1,
        payload_bytes=1,
        indices=np.arange(64),
    )


def test_the_parts_of_a_batch_add_up_to_the_time_between_requests() -> None:
    slow_first = [step(0), *(step(5_000 + 100 * number) for number in range(4))]
    parts = parts_of(slow_first)
    assert parts == pytest.approx({"fetch": 40, "decode": 5, "prep": 20, "loop": 35})
    assert sum(parts.values()) == pytest.approx(100)


def test_every_way_of_cropping_and_mirroring_gives_the_same_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 12, 12, 3), dtype=np.uint8)
    ways = prep_ways(images, 9)
    assert next(iter(ways)) == "crop"
    found = []
    for name, way in ways.items():
        if name.startswith("crop and mirror"):
            found.append(way().copy())
    assert len(found) == 3
    assert all(np.array_equal(found[0], other) for other in found)
