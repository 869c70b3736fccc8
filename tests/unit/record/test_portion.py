"""Rates from a cold start, and steady steps: computed again by hand from step times and residency written by hand."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from storebench.loading.batch import Spans
from storebench.probes.page_count import PAGE_BYTES
from storebench.record.figures import (
    KEPT_POINTS,
    ResidencyCurve,
    asked_frac,
    residency_points,
    steady_portion,
    with_cold_rates,
)
from storebench.record.schema import STEADY_DRIFT, Portion
from storebench.record.steps import StepTable
from storebench.training.loop import StepTimes
from storebench.training.step_table import step_table
from tests.support.planted import make_record

MS = 1_000_000
PAYLOAD = 64 * PAGE_BYTES
COUNT, STORE_BYTES = 100, 6500 * PAGE_BYTES


def table(
    steps: int = 10, *, step_ms: int = 10, samples: int = 10, warmup_steps: int = 0, ahead_ms: int = 0
) -> StepTable:
    """Steps that follow each other without a pause: 6 ms of waiting, 1 of copying, 3 of computing for every 10.

    Each batch is begun when the loop asks for it, or `ahead_ms` earlier by a worker.
    """
    times = []
    for step in range(steps):
        asked = step * step_ms * MS
        begun = max(0, asked - ahead_ms * MS)
        got, copied, done = (asked + step_ms * part * MS // 10 for part in (6, 7, 10))
        spans = Spans(start_ns=begun, fetch_ns=5 * MS, decode_ns=2 * MS, prep_ns=MS, ready_ns=got - MS)
        times.append(
            StepTimes(
                asked_ns=asked,
                got_ns=got,
                copied_ns=copied,
                done_ns=done,
                spans=spans,
                worker=-1,
                payload_bytes=samples * PAYLOAD,
                indices=np.arange(step * samples, (step + 1) * samples),
            )
        )
    return step_table(times, (), warmup_steps=warmup_steps)


def curve(*points: tuple[float, float]) -> ResidencyCurve:
    return ResidencyCurve(
        at_ns=tuple(int(at_ms * MS) for at_ms, _ in points), resident_frac=tuple(frac for _, frac in points)
    )


def at(*moments_ms: float) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array([int(moment * MS) for moment in moments_ms], np.int64)


def test_a_batch_counts_as_asked_for_from_the_moment_it_is_begun() -> None:
    assert asked_frac(table(), at(-1, 0, 9.999, 10, 95, 1000), 100).tolist() == [0, 0.1, 0.1, 0.2, 1, 1]


def test_batches_that_workers_have_begun_count_before_the_loop_has_them() -> None:
    # At 35 ms steps 0 to 3 have been asked for by the loop, and 20 ms ahead means two more.
    assert asked_frac(table(ahead_ms=20), at(0, 35), 100).tolist() == [0.3, 0.6]


def cold_rates(
    steps: StepTable, points: ResidencyCurve, count: int
) -> list[tuple[float, float, float | None, float | None]]:
    """Return (share, rate, resident, excess) of a cold record of LMDB with these steps."""
    record = make_record("lmdb", cache="cold")
    assert record.store is not None
    assert record.cache is not None
    store = dataclasses.replace(record.store, count=count)
    cache = dataclasses.replace(record.cache, curve=residency_points(steps, points, count))
    found = with_cold_rates(dataclasses.replace(record, store=store, cache=cache), steps).cold_rates
    return [(one.read_frac, one.samples_per_s, one.resident_frac, one.excess_frac) for one in found]


def test_a_rate_from_a_cold_start_is_that_of_all_steps_up_to_a_share() -> None:
    """200 steps of one sample: the first 20 take 20 ms each, the others 10 ms."""
    steps = table(200, samples=1)
    steps["data_wait_ns"][:20] += 10 * MS
    steps = one_after_the_other(steps)
    ends = {0.02: 0.08, 0.05: 0.2, 0.10: 0.4, 0.25: 0.7, 1.0: 2.2}
    found = cold_rates(steps, ResidencyCurve(), 200)
    assert found == [(share, pytest.approx(share * 200 / end), None, None) for share, end in ends.items()]


def test_pauses_for_the_proof_are_in_no_rate() -> None:
    steps = table(50, samples=1)
    steps["paused_ns"] = np.full(50, 5 * MS)
    steps["start_ns"] = np.arange(50) * 15 * MS
    assert [rate for _, rate, *_ in cold_rates(steps, ResidencyCurve(), 50)] == pytest.approx([100.0] * 5)


@pytest.mark.parametrize(
    ("steps", "samples", "count", "shares"),
    [
        (10, 10, 100, [0.1, 0.25, 1.0]),  # the first batch passes over 2% and 5%
        (1, 100, 100, [1.0]),
        (10, 10, 1000, [0.02, 0.05, 0.1]),  # the epoch ends at a tenth
        (1, 1, 100, []),
    ],
)
def test_shares_that_are_not_reached_or_passed_over_have_no_rate(
    steps: int, samples: int, count: int, shares: list[float]
) -> None:
    assert [
        share for share, *_ in cold_rates(table(steps, samples=samples), ResidencyCurve(), count)
    ] == shares


def test_what_was_resident_is_compared_with_what_had_been_requested() -> None:
    """Read-ahead makes a quarter resident at 5% and all at 25%; at the end of a step the next batch is requested."""
    points = curve((0, 0.0), (40, 0.25), (240, 1.0), (1000, 1.0))
    found = {share: rest for share, _, *rest in cold_rates(table(100, samples=1), points, 100)}
    assert found[0.05] == pytest.approx([0.25 + 0.75 / 20, 0.2275])
    assert found[0.25] == pytest.approx([1.0, 0.75])
    assert found[1.0] == pytest.approx([1.0, 0.75]), "once too much, no later rate is cold"


@pytest.mark.parametrize(
    ("backend", "cache"), [("lmdb", "warm"), ("lmdb", "any"), ("memory:native", "cold"), ("null", "cold")]
)
def test_cells_that_do_not_start_cold_have_no_such_rates(backend: str, cache: str) -> None:
    assert with_cold_rates(make_record(backend, cache=cache), table()).cold_rates == ()


def test_the_recorded_curve_is_thinned_evenly_and_keeps_both_ends() -> None:
    long = table(100, samples=1)
    # Ten times as many points in the first tenth of the epoch as in the rest.
    moments = np.concatenate([np.linspace(0, 100, 1000), np.linspace(101, 1001, 100)])
    points = curve(*((at_ms, 0.5) for at_ms in moments.tolist()))
    found = residency_points(long, points, 100)
    assert len(found) <= KEPT_POINTS
    shares = [point.asked_frac for point in found]
    assert (found[0].elapsed_s, found[0].asked_frac) == (0, 0.01)
    assert (found[-1].elapsed_s, found[-1].asked_frac) == (1.001, 1.0)
    assert max(np.diff(shares)) <= 0.03
    few = curve((-3, 0.0), (-2, 0.0), (-1, 0.0), (50, 0.25), (100, 0.75))
    assert [
        (point.elapsed_s, point.asked_frac, point.resident_frac)
        for point in residency_points(table(), few, 100)
    ] == [
        (0, 0, 0),
        (0.05, 0.6, 0.25),
        (0.1, 1, 0.75),
    ]
    assert residency_points(table(), ResidencyCurve(), 100) == ()


LIMIT = STORE_BYTES // 2


def steady(
    points: Sequence[tuple[float, float]], *, epoch: int = 0, warmup_steps: int = 0
) -> tuple[int, int] | str:
    judged = steady_portion(
        table(warmup_steps=warmup_steps), curve(*points), COUNT, STORE_BYTES, epoch=epoch, memory_bytes=LIMIT
    )
    if isinstance(judged, str):
        return judged
    assert judged.samples == 10 * judged.steps
    return judged.first_step, judged.steps


FULL = [(0, 0.44), (50, 0.48), (100, 0.47)]
FILLING = [(0, 0.0), (20, 0.2), (25, 0.3), (34, 0.44), (35, 0.46), (50, 0.48), (100, 0.47)]


@pytest.mark.parametrize(
    ("points", "asked", "expected"),
    [
        (FILLING, {}, (4, 6)),
        (FILLING, {"warmup_steps": 6}, (6, 4)),
        (FULL, {"epoch": 1}, (0, 10)),
        (FULL, {"epoch": 1, "warmup_steps": 6}, (6, 4)),
        # Twelve steps from PNG files once left half of the cache empty, and the next epoch was called steady.
        (
            [(0, 0.19), (50, 0.3), (100, 0.35)],
            {"epoch": 1},
            "from 19.0% of the store when step 0 began to 35.0%",
        ),
        ([(0, 0.0), (50, 0.12), (100, 0.24)], {}, "still filling"),
        ([(0, 0.2), (30, 0.48), (100, 0.47)], {"epoch": 1, "warmup_steps": 6}, (6, 4)),
        ([(0, 0.2), (30, 0.2), (80, 0.48), (100, 0.47)], {"epoch": 1, "warmup_steps": 6}, "still filling"),
        # Of samples from before the epoch only the last counts: the record keeps no others.
        ([(-20, 0.48), (-1, 0.1), (50, 0.3), (100, 0.47)], {"epoch": 1}, "still filling"),
        # Without a full cache a tenth of the steps is left out.
        ([(0, 0.0), (50, 0.02), (90, 0.03), (100, 0.03)], {}, (1, 9)),
        ([(0, 0.0), (50, 0.02), (90, 0.03), (100, 0.03)], {"epoch": 2}, (0, 10)),
    ],
)
def test_the_steady_state_begins_with_a_full_cache(
    points: Sequence[tuple[float, float]], asked: dict[str, int], expected: tuple[int, int] | str
) -> None:
    found = steady(points, **asked)
    assert found == expected or (isinstance(expected, str) and expected in str(found))


def test_a_cache_that_never_filled_has_no_steady_portion() -> None:
    assert "had not filled" in str(steady([(0, 0.0), (50, 0.2), (100, 0.47)]))
    fits = steady_portion(table(), curve(*FILLING), COUNT, STORE_BYTES, epoch=0, memory_bytes=STORE_BYTES)
    assert "fits into the limit" in str(fits)
    unknown = steady_portion(
        table(), ResidencyCurve(reason="no kernel"), COUNT, STORE_BYTES, epoch=0, memory_bytes=LIMIT
    )
    assert unknown == "no kernel"


@pytest.mark.parametrize(("ahead_ms", "steps"), [(0, 6), (20, 6), (31, 0), (80, 0)])
def test_what_was_read_before_the_cache_filled_has_no_rate(ahead_ms: int, steps: int) -> None:
    """One step of 32 images that a worker had ready was once called a steady rate of 93,729 samples per second."""
    judged = steady_portion(
        table(ahead_ms=ahead_ms), curve(*FILLING), COUNT, STORE_BYTES, epoch=0, memory_bytes=LIMIT
    )
    assert (judged.steps if isinstance(judged, Portion) else 0) == steps
    assert ("ahead of the loop: use more steps or epochs" in str(judged)) == (not steps)
    later = steady_portion(
        table(ahead_ms=ahead_ms), curve(*FULL), COUNT, STORE_BYTES, epoch=1, memory_bytes=LIMIT
    )
    assert isinstance(later, Portion), "a full cache at its start leaves nothing to wait for"


def reading_ahead(steps: int = 20, *, ahead: int = 2) -> StepTable:
    """Return steps whose reader waits for `ahead` more batches in the first one, and for none in the last ones."""
    found = table(steps, samples=5)
    found["data_wait_ns"][0] += 10 * ahead * MS
    found["data_wait_ns"][steps - ahead :] = 0
    return one_after_the_other(found)


def one_after_the_other(found: StepTable) -> StepTable:
    """Let each step begin when the one before has ended."""
    lasting = found["data_wait_ns"] + found["h2d_ns"] + found["compute_ns"]
    found["start_ns"] = np.concatenate([[0], np.cumsum(lasting)[:-1]])
    return found


@pytest.mark.parametrize(
    ("ahead_frac", "edge_steps", "drift"),
    [(0.0, 0, 1.364), (0.10, 2, 1.0), (0.25, 5, 1.0), (0.26, 6, None)],
)
def test_filling_and_draining_a_window_is_no_drift(
    ahead_frac: float, edge_steps: int, drift: float | None
) -> None:
    steps = reading_ahead()
    judged = steady_portion(
        steps,
        curve((0, 0.4), (230, 0.4)),
        COUNT,
        STORE_BYTES,
        epoch=1,
        memory_bytes=LIMIT,
        ahead_frac=ahead_frac,
    )
    assert isinstance(judged, Portion)
    assert (judged.first_step, judged.steps, judged.edge_steps) == (0, 20, edge_steps)
    assert judged.drift == (None if drift is None else pytest.approx(drift, abs=0.01))
    plain = steady_portion(
        steps, curve((0, 0.4), (230, 0.4)), COUNT, STORE_BYTES, epoch=1, memory_bytes=LIMIT
    )
    assert isinstance(plain, Portion)
    rates = (judged.samples_per_s, judged.seconds, judged.samples)
    assert rates == (plain.samples_per_s, plain.seconds, plain.samples), "the rate is that of all steps"


def test_a_window_hides_no_rate_that_goes_on_rising() -> None:
    steps = table(20, samples=5)
    steps["data_wait_ns"] += np.arange(20, 0, -1) * MS
    judged = steady_portion(
        one_after_the_other(steps),
        curve((0, 0.4), (400, 0.4)),
        COUNT,
        STORE_BYTES,
        epoch=1,
        memory_bytes=LIMIT,
        ahead_frac=0.1,
    )
    assert isinstance(judged, Portion)
    assert judged.drift is not None
    assert judged.drift > STEADY_DRIFT[1]
