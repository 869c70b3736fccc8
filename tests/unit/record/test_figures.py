"""The figures of a record, computed again by hand from a table of steps that was written by hand."""

import dataclasses

import numpy as np
import pytest

from storebench.loading.batch import Spans
from storebench.record.figures import epoch_record
from storebench.record.schema import Percentiles
from storebench.record.steps import StepTable, handoff_ns, queue_depth
from storebench.training.loop import StepTimes
from storebench.training.step_table import step_table
from tests.support.planted import expect, without_figures

MS = 1_000_000
BATCHES = (10, 10, 10, 4)
# asked, got, copied, done of each step in milliseconds; 1 ms passes between two steps.
CLOCK = ((0, 40, 42, 50), (51, 55, 56, 66), (67, 70, 70, 80), (81, 89, 90, 95))
# start, fetch, decode, prep of each batch's making in milliseconds.
MAKING = ((1, 30, 5, 2), (38, 6, 3, 1), (48, 2, 2, 1), (60, 20, 4, 3))


def table(
    warmup_steps: int, losses: tuple[float, ...] = (2.0, 1.5, 1.25, 1.0), *, made_ahead: bool = True
) -> StepTable:
    start = np.cumsum((0, *BATCHES))
    times = [
        StepTimes(
            asked_ns=asked * MS,
            got_ns=got * MS,
            copied_ns=copied * MS,
            done_ns=done * MS,
            spans=Spans(
                start_ns=(begun if made_ahead else asked) * MS,
                fetch_ns=fetch * MS,
                decode_ns=decode * MS,
                prep_ns=prep * MS,
                ready_ns=(begun + fetch + decode + prep) * MS,
            ),
            worker=step % 2,
            payload_bytes=100 * BATCHES[step],
            indices=np.arange(start[step], start[step + 1]),
        )
        for step, ((asked, got, copied, done), (begun, fetch, decode, prep)) in enumerate(
            zip(CLOCK, MAKING, strict=True)
        )
    ]
    return step_table(times, losses, warmup_steps=warmup_steps)


def test_without_warm_up_every_step_counts() -> None:
    found = epoch_record(without_figures(), table(0))
    expect(
        found,
        samples=34,
        steps=4,
        epoch_s=0.095,
        timed_samples=34,
        timed_steps=4,
        timed_s=0.095,
        samples_per_s=34 / 0.095,
        payload_bytes=3400,
        payload_bytes_per_s=3400 / 0.095,
        data_wait_s=0.040 + 0.004 + 0.003 + 0.008,
        h2d_s=0.002 + 0.001 + 0 + 0.001,
        compute_s=0.008 + 0.010 + 0.010 + 0.005,
        overhead_s=0.003,
        data_wait_frac=0.055 / 0.092,
        accelerator_util_frac=0.033 / 0.095,
        fetch_s=0.058,
        decode_s=0.014,
        prep_s=0.007,
        time_to_first_batch_s=0.040,
    )
    assert found.data_wait_ns == Percentiles(p50=4 * MS, p95=40 * MS, p99=40 * MS, max=40 * MS)
    assert found.loss is not None
    assert (found.loss.first, found.loss.last) == (2.0, 1.0)


def test_warm_up_steps_leave_the_samples_and_the_time_alike() -> None:
    found = epoch_record(without_figures(), table(1, made_ahead=False))
    expect(
        found,
        samples=34,
        steps=4,
        epoch_s=0.095,
        payload_bytes=3400,
        timed_samples=24,
        timed_steps=3,
        timed_s=0.095 - 0.051,
        samples_per_s=24 / 0.044,
        payload_bytes_per_s=2400 / 0.044,
        data_wait_s=0.015,
        h2d_s=0.002,
        compute_s=0.025,
        overhead_s=0.002,
        data_wait_frac=0.015 / 0.042,
        fetch_s=0.028,
        decode_s=0.009,
        prep_s=0.005,
        time_to_first_batch_s=0.040,
    )
    assert found.data_wait_ns == Percentiles(p50=4 * MS, p95=8 * MS, p99=8 * MS, max=8 * MS)


def ahead(depth: int, steps: int, warmup_steps: int, *, made_at: float | None = None) -> StepTable:
    """Steps of 10 ms each; a worker begins each batch `depth` steps before the loop asks for it."""
    times = []
    for step in range(steps):
        begun_ms = max(0, 10 * (step - depth)) if made_at is None else made_at
        spans = Spans(start_ns=int(begun_ms * MS), fetch_ns=MS, decode_ns=0, prep_ns=0, ready_ns=0)
        asked = 10 * step * MS
        times.append(
            StepTimes(
                asked_ns=asked,
                got_ns=asked,
                copied_ns=asked,
                done_ns=asked + 10 * MS,
                spans=spans,
                worker=0,
                payload_bytes=1,
                indices=np.arange(5),
            )
        )
    return step_table(times, (), warmup_steps=warmup_steps)


@pytest.mark.parametrize(
    ("steps", "first", "prefetched"),
    [
        (ahead(0, 20, 0), 0, 0),
        (ahead(3, 20, 0), 0, 0),
        (ahead(0, 20, 3), 3, 0),
        (
            ahead(3, 36, 3),
            6,
            3,
        ),  # step 3 is asked for at 30 ms, when the batches of steps 3 to 5 have been begun
        (ahead(3, 35, 3), 0, 0),  # 3 of 29 timed batches would have been begun before the clock
        (ahead(9, 18, 2), 0, 0),
        (ahead(0, 10, 2, made_at=5), 0, 0),
        (ahead(16, 8, 2), 0, 0),  # 8 workers x 2 batches ahead: all were begun before the clock
    ],
)
def test_at_most_a_tenth_of_the_timed_samples_were_begun_before_the_clock(
    steps: StepTable, first: int, prefetched: int
) -> None:
    count = len(steps["step"])
    assert steps["warmup"].tolist() == [step < first for step in range(count)]
    found = epoch_record(without_figures(), steps)
    expect(
        found,
        timed_steps=count - first,
        timed_s=0.01 * (count - first),
        samples_per_s=500,
        prefetched_samples=5 * prefetched,
    )


def test_where_every_step_is_warm_up_nothing_is_claimed() -> None:
    found = epoch_record(without_figures(), table(4))
    expect(found, samples=34, steps=4, epoch_s=0.095, timed_samples=0, timed_s=0, samples_per_s=0)
    assert found.data_wait_ns is None


def test_without_compute_there_is_no_loss_and_no_utilization() -> None:
    found = epoch_record(without_figures("none"), table(0, losses=()))
    assert found.loss is None
    assert found.accelerator_util_frac is None


def test_queue_depth_counts_batches_that_lay_ready_when_the_loop_asked() -> None:
    # Ready at 38, 48, 53 and 87 ms; asked at 0, 51, 67 and 81 ms.
    assert queue_depth(table(0)).tolist() == [0, 1, 1, 0]


def test_handoff_is_the_time_from_ready_to_received() -> None:
    # Batch 0 ready at 38, had at 40; 1 ready before it was asked for at 51, had at 55; 2 likewise; 3 ready at 87.
    assert handoff_ns(table(0)).tolist() == [2 * MS, 4 * MS, 3 * MS, 2 * MS]
    expect(epoch_record(without_figures(), table(0)), handover_s=0.011)


def test_percentiles_are_waits_that_really_happened() -> None:
    steps = table(0)
    steps["data_wait_ns"] = np.array([7, 1, 5, 3]) * MS
    found = epoch_record(without_figures(), steps).data_wait_ns
    assert found is not None
    assert set(dataclasses.asdict(found).values()) <= {one * MS for one in (7, 1, 5, 3)}
    assert (found.p50, found.max) == (3 * MS, 7 * MS)
