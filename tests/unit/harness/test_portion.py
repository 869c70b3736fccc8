"""Which steps were cold, or steady: computed again by hand from step times and residency written by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from storebench.loading.batch import Spans
from storebench.probes.page_count import PAGE_BYTES
from storebench.probes.residency import ResidencyCurve
from storebench.results import PortionKind
from storebench.results.portion import STEADY_DRIFT
from storebench.training.loop import StepTimes
from storebench.training.step_table import StepTable, step_table
from storebench.worker.portion import (
    KEPT_POINTS,
    asked_frac,
    cold_portion,
    expected_frac,
    residency_points,
    steady_portion,
)
from storebench.worker.store_pages import EXCESS_MAX_FRAC, StorePages

MS = 1_000_000
PAYLOAD = 64 * PAGE_BYTES
# 100 samples of 65 pages each: pages of their own, so asking for a share of them touches that share of the pages.
OWN = StorePages(count=100, pages=6500, payload_bytes=100 * PAYLOAD)


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


def honest(every_ms: float = 5, until_ms: float = 100) -> list[tuple[float, float]]:
    """Return the curve of a reader that reads what was asked for and nothing else."""
    moments = np.arange(0, until_ms + every_ms, every_ms)
    shares = asked_frac(table(), at(*moments), OWN.count)
    return list(zip(moments.tolist(), shares.tolist(), strict=True))


def test_of_a_store_of_one_sample_all_is_asked_for_at_once() -> None:
    assert asked_frac(table(steps=1, samples=1), at(-1, 0, 100), 1).tolist() == [0, 1, 1]


def test_a_batch_counts_as_asked_for_from_the_moment_it_is_begun() -> None:
    assert asked_frac(table(), at(-1, 0, 9.999, 10, 95, 1000), 100).tolist() == [0, 0.1, 0.1, 0.2, 1, 1]


def test_batches_that_workers_have_begun_count_before_the_loop_has_them() -> None:
    # At 35 ms steps 0 to 3 have been asked for by the loop, and 20 ms ahead means two more.
    assert asked_frac(table(ahead_ms=20), at(0, 35), 100).tolist() == [0.3, 0.6]


def test_asking_ahead_never_exceeds_the_epoch() -> None:
    part = table(5)
    found = asked_frac(part, at(-1, 0, 25, 45), 100, ahead_frac=0.15)
    assert found.tolist() == pytest.approx([0, 0.25, 0.45, 0.5])


@pytest.mark.parametrize(
    ("payload_bytes", "pages", "shared"),
    [
        (196_608, 100 * 48, 1.0),  # contiguous, and a multiple of the page
        (196_608, 100 * 49, 1.0),  # LMDB: one more page for the header
        (3072, 75, 4096 / 3072 + 1),  # packed
        (3072, 100, 1.0),  # LMDB: a page for each
        (784, 20, 4096 / 784 + 1),
        (300, 100, 1.0),  # a file for each
    ],
)
def test_how_many_samples_share_a_page_follows_from_the_space_they_take(
    payload_bytes: int, pages: int, shared: float
) -> None:
    store = StorePages(count=100, pages=pages, payload_bytes=100 * payload_bytes)
    assert store.samples_per_page == pytest.approx(shared)


@pytest.mark.parametrize(
    ("asked", "shared", "expected"), [(0.5, 1, 0.5), (0.5, 2, 0.75), (0, 3, 0), (1, 3, 1)]
)
def test_a_page_is_touched_if_any_sample_on_it_was_asked_for(
    asked: float, shared: float, expected: float
) -> None:
    assert expected_frac(asked, shared) == pytest.approx(expected)


def test_the_expected_share_is_what_drawing_samples_at_random_touches() -> None:
    payload, count = 3072, 40_000
    rng = np.random.default_rng(0)
    pages = -(-count * payload // PAGE_BYTES)
    for asked in (0.05, 0.3, 0.7):
        starts = rng.permutation(count)[: int(asked * count)] * payload
        touched = np.zeros(pages, bool)
        touched[starts // PAGE_BYTES] = True
        touched[(starts + payload - 1) // PAGE_BYTES] = True
        store = StorePages(count=count, pages=pages, payload_bytes=count * payload)
        # 3,072 bytes lie on 1.5 pages, and not on the 1.75 of an arbitrary offset: they begin at quarters of a page.
        assert touched.mean() <= expected_frac(asked, store.samples_per_page) < touched.mean() + 0.08


def test_an_epoch_without_excess_pages_is_cold_to_its_end() -> None:
    found = cold_portion(table(), curve(*honest()), OWN).portion
    assert found is not None
    assert (found.kind, found.first_step, found.steps, found.samples) == (PortionKind.COLD, 0, 10, 100)
    assert (found.seconds, found.samples_per_s, found.upper_bound) == (0.1, 1000.0, False)
    assert (found.asked_frac, found.excess_frac) == (1.0, 0.0)
    assert found.payload_bytes == 100 * PAYLOAD
    sums = (found.data_wait_s, found.h2d_s, found.compute_s, found.fetch_s, found.decode_s, found.prep_s)
    assert sums == pytest.approx((0.06, 0.01, 0.03, 0.05, 0.02, 0.01))
    assert found.handover_s == pytest.approx(0.01)
    assert found.drift == pytest.approx(1.0)
    assert "no more was resident" in found.reason


def test_the_portion_ends_with_the_last_proven_step() -> None:
    # At 47 ms, 30 points too much are resident; the last point before, at 42 ms, still proves the steps up to 40 ms.
    points = [*honest(until_ms=35), (42, 0.5), (47, 0.8), (60, 1.0), (100, 1.0)]
    found = cold_portion(table(), curve(*points), OWN).portion
    assert found is not None
    assert (found.steps, found.samples, found.asked_frac) == (4, 40, 0.5)
    assert not found.upper_bound
    assert "with 50.0% of the samples asked for, 30.0% of the store" in found.reason
    assert found.samples_per_s == pytest.approx(1000)


@pytest.mark.parametrize(("excess", "steps"), [(0.099, 10), (0.101, 3)])
def test_the_tolerance_is_ten_points(excess: float, steps: int) -> None:
    points = [(at_ms, share + excess * (at_ms == 35)) for at_ms, share in honest()]
    found = cold_portion(table(), curve(*points), OWN).portion
    assert found is not None
    assert found.steps == steps


def test_what_is_too_much_once_stays_too_much() -> None:
    points = [(at_ms, 1.0 if at_ms == 35 else share) for at_ms, share in honest()]
    found = cold_portion(table(), curve(*points), OWN).portion
    assert found is not None
    assert found.steps == 3


def test_a_store_resident_after_one_step_has_an_upper_bound_only() -> None:
    found = cold_portion(table(), curve((0, 0.0), (4, 0.6), (9, 1.0), (100, 1.0)), OWN).portion
    assert found is not None
    assert (found.steps, found.samples, found.samples_per_s) == (1, 10, 1000.0)
    assert found.upper_bound
    assert found.drift is None
    assert found.asked_frac == 0.2  # the step ends at 10 ms, when the second batch is begun
    assert found.excess_frac == pytest.approx(0.0)  # by 100 ms everything was asked for
    assert "before the end of the first timed step" in found.reason


def test_a_first_step_that_no_sample_point_proves_is_an_upper_bound_too() -> None:
    found = cold_portion(table(), curve((0, 0.0), (15, 1.0)), OWN).portion
    assert found is not None
    assert (found.steps, found.upper_bound) == (1, True)
    assert found.excess_frac == pytest.approx(0.8)


def test_for_a_reader_that_is_told_the_order_one_step_bounds_nothing() -> None:
    found = cold_portion(table(), curve((0, 0.0), (4, 0.6), (100, 1.0)), OWN, planned=True)
    assert found.portion is None
    assert "told the order" in found.reason


@pytest.mark.parametrize("overtaken_ms", [4, 14, 24, 34])
def test_steps_that_fill_the_pipeline_of_workers_have_no_rate(overtaken_ms: int) -> None:
    """Workers that read several batches at once deliver the first one as late as the others."""
    everything = StorePages(count=1000, pages=65_000, payload_bytes=1000 * PAYLOAD)
    resident = curve((0, 0.0), (overtaken_ms - 2, 0.05), (overtaken_ms, 0.6), (100, 1.0))
    found = cold_portion(table(ahead_ms=25), resident, everything)
    assert found.portion is None
    assert "workers were up to 2 steps ahead of the loop" in found.reason
    alone = cold_portion(table(), resident, everything).portion
    assert alone is not None
    assert alone.steps == max(1, overtaken_ms // 10)


def test_a_portion_longer_than_the_pipeline_and_an_epoch_have_rates() -> None:
    everything = StorePages(count=1000, pages=65_000, payload_bytes=1000 * PAYLOAD)
    late = cold_portion(
        table(ahead_ms=25), curve((0, 0.0), (50, 0.06), (61, 0.6), (100, 1.0)), everything
    ).portion
    assert late is not None
    assert late.steps == 5
    short = cold_portion(table(steps=3, ahead_ms=25), curve((0, 0.0), (30, 0.03)), everything).portion
    assert short is not None
    assert short.steps == 3


def test_what_a_planned_reader_reads_ahead_was_asked_for() -> None:
    points = curve(*((at_ms, min(1.0, share + 0.2 * (share > 0))) for at_ms, share in honest()))
    short = cold_portion(table(), points, OWN).portion
    assert short is not None
    assert short.steps == 1
    whole = cold_portion(table(), points, OWN, ahead_frac=0.2, planned=True).portion
    assert whole is not None
    assert (whole.steps, whole.upper_bound) == (10, False)


def test_warm_up_steps_count_as_asked_for_and_not_in_the_portion() -> None:
    found = cold_portion(table(warmup_steps=3), curve(*honest()), OWN).portion
    assert found is not None
    assert (found.first_step, found.steps, found.samples, found.seconds) == (3, 7, 70, 0.07)
    spoilt = [(at_ms, 1.0 if at_ms >= 15 else share) for at_ms, share in honest()]
    found = cold_portion(table(warmup_steps=3), curve(*spoilt), OWN).portion
    assert found is not None
    assert (found.first_step, found.steps, found.upper_bound) == (3, 1, True)


def test_an_epoch_that_is_cut_short_is_judged_by_its_share_of_the_store() -> None:
    whole = StorePages(count=1000, pages=65_000, payload_bytes=1000 * PAYLOAD)
    points = curve((0, 0.0), (50, 0.06), (100, 0.1))
    found = cold_portion(table(), points, whole).portion
    assert found is not None
    assert (found.steps, found.asked_frac) == (10, 0.1)
    read_ahead = cold_portion(table(), curve((0, 0.0), (20, 0.1), (50, 0.4), (100, 1.0)), whole).portion
    assert read_ahead is not None
    assert read_ahead.steps == 2


def test_a_small_store_may_have_two_mib_of_its_own_pages() -> None:
    small = StorePages(count=100, pages=1600, payload_bytes=100 * 16 * PAGE_BYTES)
    assert small.tolerated_frac == pytest.approx(512 / 1600)
    assert OWN.tolerated_frac == EXCESS_MAX_FRAC


@pytest.mark.parametrize(
    ("points", "warmup_steps", "reason"),
    [
        (ResidencyCurve(reason="no kernel counts it"), 0, "no kernel counts it"),
        (ResidencyCurve(), 0, "not sampled"),
        (curve((0, 0.0)), 0, "not sampled after the end of the first timed step"),
        (curve((0, 0.0), (100, 0.0)), 10, "no step was timed"),
    ],
)
def test_where_nothing_is_known_there_is_no_portion_but_a_reason(
    points: ResidencyCurve, warmup_steps: int, reason: str
) -> None:
    for found in (
        cold_portion(table(warmup_steps=warmup_steps), points, OWN),
        cold_portion(step_table([], (), warmup_steps=0), points, OWN),
    ):
        assert found.portion is None
        assert reason in found.reason or "no step was timed" in found.reason


def test_counts_before_and_after_are_a_curve_of_two_points() -> None:
    found = cold_portion(table(), curve((0, 0.0), (101, 1.0)), OWN).portion
    assert found is not None
    assert found.steps == 10
    part = StorePages(count=200, pages=13_000, payload_bytes=200 * PAYLOAD)
    found = cold_portion(table(), curve((0, 0.0), (101, 1.0)), part).portion
    assert found is not None
    assert (found.steps, found.upper_bound) == (1, True)


def faster_after_half(factor: int) -> StepTable:
    found = table()
    found["start_ns"] = np.cumsum([0, *[10 * factor * MS] * 5, *[10 * MS] * 4])
    found["data_wait_ns"][:5] += 10 * (factor - 1) * MS
    found["fetch_start_ns"] = found["start_ns"].copy()
    return found


def test_drift_is_the_second_half_over_the_first() -> None:
    found = cold_portion(faster_after_half(2), curve((0, 0.1), (160, 1.0)), OWN).portion
    assert found is not None
    assert found.seconds == pytest.approx(0.15)
    assert found.drift == pytest.approx(2.0)
    assert not found.upper_bound


def test_a_rate_that_rises_threefold_is_an_upper_bound() -> None:
    found = cold_portion(faster_after_half(3), curve((0, 0.0), (210, 0.0)), OWN).portion
    assert found is not None
    assert (found.steps, found.excess_frac, found.upper_bound) == (10, 0.0, True)
    assert found.drift == pytest.approx(3.0)
    assert "its rate rose 3.0-fold within the portion: something other than the device" in found.reason


# 100 samples, four to a page: nine tenths of the pages are needed in the first half of the samples.
SHARED = StorePages(count=100, pages=25, payload_bytes=100 * PAGE_BYTES // 4)


@pytest.mark.parametrize(
    ("half_way", "explained", "upper_bound"),
    [(0.99, 31.0, False), (0.97, 31.0, False), (0.75, 3.0, False), (0.5, 1.0, True), (0.0, 1.0, True)],
)
def test_late_samples_on_pages_that_are_there_are_rightly_faster(
    half_way: float, explained: float, upper_bound: bool
) -> None:
    """The rate rises sixfold; with a copy in memory of its own, a reader makes no page of the store resident."""
    end = 1.0 if half_way else 0.0
    steps = faster_after_half(6)
    found = cold_portion(steps, curve((0, 0.0), (300, half_way), (350, end)), SHARED).portion
    assert found is not None
    assert found.drift == pytest.approx(6.0)
    assert found.shared_drift == pytest.approx(explained, rel=0.05)
    assert found.upper_bound is upper_bound
    own = cold_portion(steps, curve((0, 0.0), (300, 0.5), (350, 1.0)), OWN).portion
    assert own is not None
    assert (own.shared_drift, own.upper_bound) == (1.0, True)


@pytest.mark.parametrize("shown", [0.001, 0.02, 0.3])
def test_a_few_resident_pages_explain_no_rising_rate(shown: float) -> None:
    """With a copy in memory of its own, a reader may still make pages of labels or an index resident, all of them early."""
    found = cold_portion(faster_after_half(6), curve((0, 0.0), (300, shown), (350, shown)), SHARED).portion
    assert found is not None
    assert found.shared_drift == 1.0
    assert found.upper_bound


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


LIMIT = OWN.pages * PAGE_BYTES // 2


def steady(
    points: Sequence[tuple[float, float]], *, epoch: int = 0, warmup_steps: int = 0
) -> tuple[int, int] | str:
    judged = steady_portion(
        table(warmup_steps=warmup_steps), curve(*points), OWN, epoch=epoch, memory_bytes=LIMIT
    )
    if judged.portion is None:
        return judged.reason
    assert judged.portion.kind is PortionKind.STEADY
    assert judged.portion.samples == 10 * judged.portion.steps
    assert judged.portion.asked_frac == 1.0
    return judged.portion.first_step, judged.portion.steps


FULL = [(0, 0.44), (50, 0.48), (100, 0.47)]
FILLING = [(0, 0.0), (20, 0.2), (25, 0.3), (34, 0.44), (35, 0.46), (50, 0.48), (100, 0.47)]


def test_the_steady_state_begins_when_the_cache_has_filled() -> None:
    assert steady(FILLING) == (4, 6)
    assert steady(FILLING, warmup_steps=6) == (6, 4)


def test_all_steps_of_a_later_epoch_count_if_it_begins_with_a_full_cache() -> None:
    assert steady(FULL, epoch=1) == (0, 10)
    assert steady(FULL, epoch=1, warmup_steps=6) == (6, 4)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_later_epoch_whose_cache_still_fills_has_no_steady_portion(epoch: int) -> None:
    """Twelve steps from PNG files once left half of the cache empty, and the next epoch was called steady."""
    said = str(steady([(0, 0.19), (50, 0.3), (100, 0.35)], epoch=epoch))
    assert said.startswith("the cache was still filling, from 19.0% of the store when step 0 began to 35.0%")
    assert "use more steps or epochs" in said


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_cache_that_fills_below_half_its_limit_is_still_filling(epoch: int) -> None:
    assert "still filling" in str(steady([(0, 0.0), (50, 0.12), (100, 0.24)], epoch=epoch))


def test_a_cache_that_fills_during_warmup_steps_is_full_when_it_counts() -> None:
    assert steady([(0, 0.2), (30, 0.48), (100, 0.47)], epoch=1, warmup_steps=6) == (6, 4)
    assert "still filling" in str(
        steady([(0, 0.2), (30, 0.2), (80, 0.48), (100, 0.47)], epoch=1, warmup_steps=6)
    )


def test_a_sample_from_before_the_epoch_does_not_count() -> None:
    """What the record keeps of the curve begins with the last count before the first step, and validation has only that."""
    assert steady([(-20, 0.3), (-1, 0.47), (50, 0.48), (100, 0.47)], epoch=1) == (0, 10)
    assert "still filling" in str(steady([(-20, 0.48), (-1, 0.1), (50, 0.3), (100, 0.47)], epoch=1))


def test_without_a_full_cache_a_tenth_of_the_steps_is_left_out() -> None:
    assert steady([(0, 0.0), (50, 0.02), (90, 0.03), (100, 0.03)]) == (1, 9)
    assert steady([(0, 0.0), (50, 0.02), (90, 0.03), (100, 0.03)], epoch=2) == (0, 10)


def test_a_cache_that_never_filled_has_no_steady_portion() -> None:
    assert "had not filled" in str(steady([(0, 0.0), (50, 0.2), (100, 0.47)]))
    fits = steady_portion(table(), curve(*FILLING), OWN, epoch=0, memory_bytes=OWN.pages * PAGE_BYTES)
    assert "fits into the limit" in fits.reason
    unknown = steady_portion(table(), ResidencyCurve(reason="no kernel"), OWN, epoch=0, memory_bytes=LIMIT)
    assert unknown.reason == "no kernel"


@pytest.mark.parametrize(("ahead_ms", "steps"), [(0, 6), (20, 6), (31, 0), (40, 0), (80, 0)])
def test_what_was_read_before_the_cache_filled_has_no_rate(ahead_ms: int, steps: int) -> None:
    """One step of 32 images that a worker had ready was once called a steady rate of 93,729 samples per second."""
    judged = steady_portion(table(ahead_ms=ahead_ms), curve(*FILLING), OWN, epoch=0, memory_bytes=LIMIT)
    assert (judged.portion.steps if judged.portion else 0) == steps
    assert ("ahead of the loop: use more steps or epochs" in judged.reason) == (not steps)
    later = steady_portion(table(ahead_ms=ahead_ms), curve(*FULL), OWN, epoch=1, memory_bytes=LIMIT).portion
    assert later is not None, "a full cache at its start leaves nothing to wait for"


def reading_ahead(steps: int = 20, *, ahead: int = 2) -> StepTable:
    """Return steps whose reader waits for `ahead` more batches in the first, and has nothing to wait for in the last ones."""
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
    [(0.0, 0, 1.364), (0.08, 2, 1.0), (0.10, 2, 1.0), (0.25, 5, 1.0), (0.26, 6, None), (1.0, 20, None)],
)
def test_filling_and_draining_a_window_is_no_drift(
    ahead_frac: float, edge_steps: int, drift: float | None
) -> None:
    steps = reading_ahead()
    judged = steady_portion(
        steps, curve((0, 0.4), (230, 0.4)), OWN, epoch=1, memory_bytes=LIMIT, ahead_frac=ahead_frac
    ).portion
    assert judged is not None
    assert (judged.first_step, judged.steps, judged.edge_steps) == (0, 20, edge_steps)
    assert judged.drift == (None if drift is None else pytest.approx(drift, abs=0.01))
    plain = steady_portion(steps, curve((0, 0.4), (230, 0.4)), OWN, epoch=1, memory_bytes=LIMIT).portion
    assert plain is not None
    rates = (judged.samples_per_s, judged.seconds, judged.samples)
    assert rates == (plain.samples_per_s, plain.seconds, plain.samples), "the rate is that of all steps"


def test_a_window_hides_no_rate_that_goes_on_rising() -> None:
    steps = table(20, samples=5)
    steps["data_wait_ns"] += np.arange(20, 0, -1) * MS
    judged = steady_portion(
        one_after_the_other(steps),
        curve((0, 0.4), (400, 0.4)),
        OWN,
        epoch=1,
        memory_bytes=LIMIT,
        ahead_frac=0.1,
    ).portion
    assert judged is not None
    assert judged.drift is not None
    assert judged.drift > STEADY_DRIFT[1]
