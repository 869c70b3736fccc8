"""A machine that slows down now and then is told from one that does not."""

import os

import pytest

from storebench.probes.core_speed import STEADY_MOST, loops, spread


@pytest.mark.parametrize(
    ("slow_loops", "steady"),
    [
        pytest.param(0, True, id="never slow"),
        pytest.param(5, True, id="a burst in twenty loops"),
        pytest.param(20, False, id="one loop in five"),
        pytest.param(50, False, id="every other loop"),
    ],
)
def test_a_machine_is_steady_if_nine_in_ten_loops_are_alike(slow_loops: int, steady: bool) -> None:
    seconds = [0.03] * (100 - slow_loops) + [0.05] * slow_loops
    assert (spread(seconds) <= STEADY_MOST) == steady


def test_every_core_is_tried_however_little_time_there_is() -> None:
    before = os.sched_getaffinity(0)
    took = loops(sorted(before), seconds=0)
    assert os.sched_getaffinity(0) == before
    assert {core: len(some) for core, some in took.items()} == dict.fromkeys(before, 2)
    assert all(seconds > 0 for some in took.values() for seconds in some)


def test_cores_that_may_not_be_used_leave_the_others_usable() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(OSError, match="Invalid argument"):
        loops([*sorted(before), 1 << 20], seconds=0)
    assert os.sched_getaffinity(0) == before
