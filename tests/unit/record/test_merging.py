"""The figures of a job, computed again by hand from the steps of two ranks that were written by hand."""

import dataclasses

import numpy as np
import pytest

from storebench.errors import CellFailedError, CorruptDataError
from storebench.record.figures import epoch_record
from storebench.record.merging import (
    RANK,
    job_steps,
    merged_counters,
    merged_table,
    rank_count,
    rank_tables,
    rate_until_first_end,
    set_to_first_node,
    waits_for_slowest_s,
)
from storebench.record.schema import Counters
from storebench.record.steps import StepTable, wall_ns
from tests.support.planted import expect, without_figures

MS = 1_000_000
# Per step of each rank in milliseconds: asked, got, done, and how long it paused then.
CLOCKS = (
    ((0, 10, 20, 1), (21, 31, 40, 1), (41, 43, 50, 0)),
    ((2, 4, 20, 3), (23, 25, 40, 1), (41, 49, 52, 4)),
)
SAMPLES = ((4, 4, 2), (4, 4, 1))
LOSSES = ((8.0, 4.0, 1.0), (4.0, 2.0, 0.5))
"""Sums over the samples of a rank."""


def table(rank: int, warmup: tuple[bool, ...] = (False, False, False)) -> StepTable:
    asked, got, done, paused = (np.array(column) * MS for column in zip(*CLOCKS[rank], strict=True))
    samples = np.array(SAMPLES[rank])
    return {
        "step": np.arange(3),
        "warmup": np.array(warmup),
        "samples": samples,
        "payload_bytes": 100 * samples,
        "start_ns": asked,
        "data_wait_ns": got - asked,
        "h2d_ns": np.zeros(3, np.int64),
        "compute_ns": done - got,
        "paused_ns": paused,
        "worker": np.full(3, -1),
        "fetch_start_ns": asked + MS,
        "fetch_ns": (got - asked) // 2,
        "decode_ns": np.zeros(3, np.int64),
        "prep_ns": np.full(3, rank * MS // 4),
        "ready_ns": got,
        "queue_depth": np.zeros(3, np.int64),
        "loss": np.array(LOSSES[rank], np.float32),
    }


def test_a_job_has_one_row_per_step_and_rank_with_the_loss_of_all_samples() -> None:
    merged = merged_table([table(0), table(1)])
    assert merged[RANK].tolist() == [0, 1, 0, 1, 0, 1]
    assert merged["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert merged["samples"].tolist() == [4, 4, 4, 4, 2, 1]
    assert merged["loss"].tolist() == [1.5, 1.5, 0.75, 0.75, 0.5, 0.5]
    assert merged["loss"].dtype == np.float32
    for rank, part in enumerate(rank_tables(merged)):
        for name in ("start_ns", "data_wait_ns", "compute_ns", "samples"):
            np.testing.assert_array_equal(part[name], table(rank)[name], err_msg=name)


def test_a_step_is_a_warm_up_step_of_the_job_if_it_is_one_for_a_rank() -> None:
    merged = merged_table([table(0, (True, False, False)), table(1, (True, True, False))])
    assert merged["warmup"].tolist() == [True, True, True, True, False, False]


def test_a_counter_that_one_rank_lacks_is_left_out() -> None:
    counted = table(0) | {"read_calls": np.ones(3, np.int64)}
    assert "read_calls" not in merged_table([counted, table(1)])
    assert merged_table([counted, counted])["read_calls"].tolist() == [1] * 6


def test_ranks_that_ran_different_numbers_of_steps_are_no_job() -> None:
    short = {name: column[:2] for name, column in table(1).items()}
    with pytest.raises(CellFailedError, match="3, 2 steps"):
        merged_table([table(0), short])


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)], ids=str)
def test_a_step_of_a_job_lasts_from_its_first_request_to_its_last_end(ranks: tuple[int, ...]) -> None:
    steps = job_steps(merged_table([table(rank) for rank in ranks]))
    assert (steps["start_ns"] // MS).tolist() == [0, 21, 41]
    assert (steps["end_ns"] // MS).tolist() == [20, 40, 52]
    assert (steps["data_wait_ns"] / MS).tolist() == [6.0, 6.0, 5.0]
    assert steps["samples"].tolist() == [8, 8, 3]
    assert (steps["paused_ns"] // MS).tolist() == [1, 1, 0]
    assert wall_ns(steps) == (52 - 1 - 1) * MS


def test_the_record_of_a_job_has_sums_of_samples_and_means_of_times() -> None:
    found = epoch_record(without_figures(ranks=2), merged_table([table(0), table(1)]))
    expect(
        found,
        samples=19,
        steps=3,
        timed_samples=19,
        timed_steps=3,
        payload_bytes=1900,
        epoch_s=0.050,
        timed_s=0.050,
        samples_per_s=19 / 0.050,
        payload_bytes_per_s=1900 / 0.050,
        data_wait_s=(0.022 + 0.012) / 2,
        compute_s=(0.026 + 0.034) / 2,
        fetch_s=(0.011 + 0.006) / 2,
        prep_s=0.00075 / 2,
        time_to_first_batch_s=0.010,
        overhead_s=0.050 - 0.017 - 0.030,
        data_wait_frac=17 / 47,
        accelerator_util_frac=30 / 50,
    )
    assert found.loss is not None
    assert (found.loss.first, found.loss.last) == (1.5, 0.5)
    assert found.data_wait_ns is not None
    assert (found.data_wait_ns.p50, found.data_wait_ns.max) == (2 * MS, 10 * MS)


def test_warm_up_steps_of_a_job_are_in_no_rate() -> None:
    first = (True, False, False)
    found = epoch_record(without_figures(ranks=2), merged_table([table(0, first), table(1, first)]))
    expect(found, samples=19, timed_samples=11, timed_steps=2, timed_s=0.030, samples_per_s=11 / 0.030)


def test_a_rank_waits_for_the_slowest_no_longer_than_it_computes() -> None:
    merged = merged_table([table(0), table(1)])
    # Rank 1 has its batch 6 ms earlier in two steps; rank 0 in the last one, in which it ends 7 ms after it began.
    assert waits_for_slowest_s(merged) == pytest.approx([0.006, 0.012])
    late = merged | {
        "data_wait_ns": merged["data_wait_ns"] + np.where(merged["step"] == 2, merged[RANK] * 50 * MS, 0)
    }
    assert waits_for_slowest_s(late) == pytest.approx([0.007, 0.012])


def test_until_its_first_rank_ended_a_job_counts_parts_of_steps() -> None:
    # Without its pauses rank 0 ends after 48 ms. Rank 1 ends then, too.
    assert rate_until_first_end(merged_table([table(0), table(1)])) == pytest.approx(19 / 0.048)
    slow = table(1) | {"compute_ns": np.array([16, 15, 23]) * MS}
    # Its last step lasts from 37 to 68 ms now, of which 11 of 31 ms have passed.
    for tables in ([table(0), slow], [slow, table(0)]):
        assert rate_until_first_end(merged_table(tables)) == pytest.approx((18 + 11 / 31) / 0.048)


def test_a_plain_table_is_that_of_one_rank() -> None:
    plain = table(0)
    assert rank_count(plain) == 1
    [only] = rank_tables(plain)
    assert list(only) == list(plain)
    assert all(np.array_equal(only[name], plain[name]) for name in plain)
    assert job_steps(plain) is plain


@pytest.mark.parametrize(
    "ranks",
    [(0, 1, 0, 1, 0, 0), (0, 1, 0, 1, 0, 2), (1, 0, 1, 0, 1, 0), (-1,) * 6, (0, 1, 2, 3, 0, 1)],
    ids=str,
)
def test_rows_that_are_not_those_of_each_rank_in_turn_are_refused(ranks: tuple[int, ...]) -> None:
    merged = merged_table([table(0), table(1)]) | {RANK: np.array(ranks)}
    with pytest.raises(CorruptDataError, match="ranks in turn"):
        rank_count(merged)


def test_counters_of_a_job_are_sums_and_unknown_where_one_is() -> None:
    one = Counters(
        device_read_bytes=30,
        block_device_read_bytes=70,
        block_device_reads=7,
        read_calls=4,
        cpu_user_s=0.5,
        peak_rss_bytes=10,
    )
    two = dataclasses.replace(one, device_read_bytes=20, read_calls=None, reasons={"read_calls": "not shown"})
    assert merged_counters([one, two], [0, 0], 25) == Counters(
        device_read_bytes=50,
        block_device_read_bytes=70,
        block_device_reads=7,
        cpu_user_s=1.0,
        peak_rss_bytes=20,
        read_amplification=2.0,
        reasons={"read_calls": "not shown"},
    )
    assert (
        merged_counters(
            [two, dataclasses.replace(two, device_read_bytes=None)], [0, 0], 25
        ).read_amplification
        is None
    )


@pytest.mark.parametrize(
    ("delivered", "of_job"),
    [((70, 60, 40, 50), 120), ((0, 0, 0, 30), 30), ((70, 60, None, 50), None)],
    ids=str,
)
def test_each_node_of_a_job_has_a_device_of_its_own(
    delivered: tuple[int | None, ...], of_job: int | None
) -> None:
    counters = [Counters(block_device_read_bytes=one) for one in delivered]
    assert merged_counters(counters, [0, 0, 1, 1], 25).block_device_read_bytes == of_job


DAY_NS = 24 * 3600 * 10**9


def clock_ahead(rank: int, by_ns: int) -> StepTable:
    """Return the table of a rank on a machine whose clock is ahead."""
    own = table(rank)
    return own | {name: own[name] + by_ns for name in ("start_ns", "fetch_start_ns", "ready_ns")}


@pytest.mark.parametrize("ahead_ns", [0, DAY_NS, -DAY_NS])
def test_a_job_on_two_nodes_does_not_depend_on_their_clocks(ahead_ns: int) -> None:
    # Node 1 left the barrier 3 ms before its clock showed `ahead_ns`, node 0 at -1 ms of its own.
    tables = set_to_first_node([table(0), clock_ahead(1, ahead_ns)], [0, 1], [-MS, ahead_ns - 3 * MS])
    for name, column in table(0).items():
        np.testing.assert_array_equal(tables[0][name], column, err_msg=name)
    np.testing.assert_array_equal(tables[1]["start_ns"], table(1)["start_ns"] + 2 * MS)
    np.testing.assert_array_equal(tables[1]["data_wait_ns"], table(1)["data_wait_ns"])
    # Its last step ends at 54 ms of the common time, and the pauses of the job are 1 ms each.
    assert wall_ns(job_steps(merged_table(tables))) == (54 - 1 - 1) * MS


def test_the_first_rank_of_a_node_stands_for_it() -> None:
    ahead = [clock_ahead(1, DAY_NS), clock_ahead(1, DAY_NS)]
    tables = set_to_first_node([table(0), *ahead], [0, 1, 1], [0, DAY_NS + MS, DAY_NS])
    for found in tables[1:]:
        np.testing.assert_array_equal(found["ready_ns"], table(1)["ready_ns"])


def test_the_tables_of_one_node_are_unchanged() -> None:
    for rank, found in enumerate(set_to_first_node([table(0), table(1)], [0, 0], [-MS, 2 * MS])):
        for name, column in table(rank).items():
            np.testing.assert_array_equal(found[name], column, err_msg=name)
