"""What limits a cell and what a verdict lacks, as whole sentences, and the figures behind the limits at their edges."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import summarise
from storebench.report.decisions import Decision
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.texts.verdicts import limit_sentence, verdict_notes
from storebench.report.verdict import Bound, CellVerdict
from storebench.results import Ceilings, Counters, Record
from tests.support.planted import make_record, replicates

PAYLOAD = 196_608
ARRIVING = 32 * PAYLOAD / 0.019
"""Bytes per second that a batch of raw pixels needs to arrive in 19 ms."""


def facts_of(records: list[Record]) -> Facts:
    cells = summarise(to_frame((record, Path("run/records.jsonl")) for record in records))
    return derive(cells)


def verdict_of(records: list[Record], backend: str = "lmdb", cache: str | None = None) -> CellVerdict:
    facts = facts_of(records)
    wanted = next(c for c in facts.cells if c.backend == backend and cache in (None, c.cell.cache))
    return facts.verdicts[wanted.key]


def slow_fetch(best: float | None = None, backend: str = "lmdb", **changes: Any) -> Record:
    """Plant a cold cell that fetches a batch in 19 of 21 ms, beside a device of so many bytes per second."""
    parts: dict[str, Any] = {
        "cache": "cold",
        "wait_ms": 20.0,
        "compute_ms": 1.0,
        "fetch_ms": 19.0,
        "bytes_on_disk": 0,
    }
    return make_record(backend, ceilings=Ceilings(device_random_16_bytes_per_s=best), **(parts | changes))


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (
            make_record("lmdb", wait_ms=2, compute_ms=98, fetch_ms=2),
            (
                "compute-bound: compute is 98% of the loop's time and waiting 2.0%; without any loading it would be at"
                " most 1.02 times as fast"
            ),
        ),
        (
            make_record("lmdb", workers=2, wait_ms=11, compute_ms=1, fetch_ms=2, prep_ms=1, handoff_ms=12),
            (
                "handoff-bound: the loop waits 92% of its time, and handoff is 89% of feeding it (12.0 ms per batch);"
                " without that it would be at most 8.00 times as fast"
            ),
        ),
        (
            slow_fetch(ARRIVING / 0.9),
            (
                "storage-bound: the loop waits 95% of its time, and fetch from the device is 95% of the producers' work"
                " (19.0 ms per batch); bytes arrive at 90% of the device's best measured rate; without that it would be at"
                " most 10.5 times as fast"
            ),
        ),
        (
            slow_fetch(),
            (
                "fetch-bound: the loop waits 95% of its time, and fetch from the device is 95% of the producers' work"
                " (19.0 ms per batch); without that it would be at most 10.5 times as fast"
            ),
        ),
        (
            make_record("lmdb", cache="warm", wait_ms=20, compute_ms=5, fetch_ms=15, prep_ms=5),
            (
                "reader-bound: the loop waits 80% of its time, and fetch (warm) is 75% of the producers' work (15.0 ms per"
                " batch); without that it would be at most 2.50 times as fast"
            ),
        ),
        (
            make_record("lmdb", wait_ms=20, compute_ms=5, fetch_ms=2, decode_ms=3, prep_ms=15),
            (
                "prep-bound: the loop waits 80% of its time, and prep is 75% of the producers' work (15.0 ms per batch);"
                " without that it would be at most 2.50 times as fast"
            ),
        ),
    ],
)
def test_a_limit_is_told_with_its_figure_and_the_gain_of_lifting_it(record: Record, sentence: str) -> None:
    assert limit_sentence(verdict_of([record])) == sentence


def test_contention_is_told_with_the_time_that_the_network_takes_longer() -> None:
    null = replicates("null", [0.0] * 4, fetch_ms=0, prep_ms=0)
    lmdb = replicates("lmdb", [0.2] * 4, cache="warm", compute_ms=12.0, fetch_ms=0.1)
    assert limit_sentence(verdict_of(null + lmdb)) == (
        "slowed down by contention: with it, the network computes 1.20 [1.20, 1.20] times as long as with nothing to load,"
        " and the loop waits 1.6% of its time; without that it would be at most 1.20 times as fast"
    )


def test_without_a_network_a_loop_with_workers_is_as_fast_as_producers() -> None:
    verdict = verdict_of([make_record("lmdb", workers=2, wait_ms=0.2, compute_ms=9.8, fetch_ms=9, prep_ms=1)])
    assert (verdict.bound, verdict.gain) == (Bound.COMPUTE, pytest.approx(10 / 5))


@pytest.mark.parametrize(("times", "bound"), [(1.0, Bound.LATENCY), (2.0, Bound.STORAGE)])
def test_of_a_steady_rate_all_bytes_that_the_device_delivered_arrive(times: float, bound: Bound) -> None:
    limit: dict[str, Any] = {"cache": "limited", "memory_bytes": 1 << 27}
    record = slow_fetch(2 * ARRIVING, **limit)
    read = Counters(device_read_bytes=round(times * record.payload_bytes))
    verdict = verdict_of([dataclasses.replace(record, counters=read)])
    assert (verdict.bound, verdict.arriving_frac) == (bound, pytest.approx(times / 2))


# Stalls, and the rate of the device


@pytest.mark.parametrize(
    ("cold", "warm", "stall"),
    [((30.0, 10.0), (10.0, 10.0), 0.5), ((5.0, 35.0), (1.0, 9.0), 5 / 40), ((10.0, 10.0), (20.0, 10.0), 0.0)],
)
def test_a_fetch_stall_is_what_a_warm_cell_saves_and_at_most_the_wait(
    cold: tuple[float, float], warm: tuple[float, float], stall: float
) -> None:
    records = [
        make_record("lmdb", cache=cache, wait_ms=wait, compute_ms=compute)
        for cache, (wait, compute) in (("cold", cold), ("warm", warm))
    ]
    stalls = verdict_of(records, cache="cold").stalls
    assert stalls.fetch_frac == pytest.approx(stall)
    assert (stalls.prep_frac, stalls.known) == (None, True)


@pytest.mark.parametrize(
    ("wait_ms", "null_ms", "stall"), [(30.0, 20.0, 0.5), (4.0, 20.0, 0.1), (30.0, 60.0, 0.0)]
)
def test_a_prep_stall_without_a_warm_cell_is_all_that_the_null_cell_saves(
    wait_ms: float, null_ms: float, stall: float
) -> None:
    cell = make_record("lmdb", cache="any", wait_ms=wait_ms, compute_ms=40 - wait_ms)
    null = make_record("null", wait_ms=0, compute_ms=null_ms, fetch_ms=0, prep_ms=0)
    stalls = verdict_of([cell, null]).stalls
    assert (stalls.fetch_frac, stalls.prep_frac) == (None, pytest.approx(stall))
    assert not verdict_of([cell]).stalls.known


@pytest.mark.parametrize(
    ("backend", "changes", "bound"),
    [
        ("hdf5", {}, Bound.LATENCY),
        ("png", {}, Bound.FETCH),
        ("memory:native", {}, Bound.FETCH),
        ("hdf5", {"dataset": "mnist", "size": None}, Bound.FETCH),
    ],
)
def test_the_rate_of_a_device_is_that_of_requests_of_the_same_payload(
    backend: str, changes: dict[str, Any], bound: Bound
) -> None:
    other = slow_fetch(10 * ARRIVING, backend, **changes)
    assert verdict_of([slow_fetch(), other]).bound is bound


def test_of_several_rates_of_a_device_the_best_counts() -> None:
    assert verdict_of([slow_fetch(ARRIVING), slow_fetch(10 * ARRIVING, "hdf5")]).bound is Bound.LATENCY
    assert verdict_of([slow_fetch(10 * ARRIVING), slow_fetch(ARRIVING, "hdf5")]).bound is Bound.LATENCY
    several = Ceilings(device_random_1_bytes_per_s=ARRIVING / 10, device_sequential_bytes_per_s=ARRIVING)
    verdict = verdict_of([dataclasses.replace(slow_fetch(), ceilings=several)])
    assert (verdict.bound, verdict.arriving_frac) == (Bound.STORAGE, pytest.approx(1.0))


# What a verdict lacks


def decisions_of(*sides: list[Record]) -> tuple[Facts, list[Decision]]:
    facts = facts_of([record for side in sides for record in side])
    return facts, list(facts.decisions.found.values())


def notes(*sides: list[Record]) -> list[str]:
    facts, compared = decisions_of(*sides)
    return verdict_notes(facts.decisions, compared)


def test_a_verdict_that_is_told_lacks_nothing() -> None:
    assert notes(replicates("png", [50.0, 50.1, 50.0]), replicates("lmdb", [10.0, 10.1, 10.0])) == []
    assert notes(replicates("png", [10.0, 10.1, 10.0]), replicates("lmdb", [10.1, 10.0, 10.0])) == []


def test_a_verdict_that_cannot_be_told_says_what_it_lacks() -> None:
    [note] = notes(replicates("png", [20.0, 30.0, 16.0]), replicates("lmdb", [22.0, 18.0, 25.0]))
    enough = "would be enough to see a difference of 1.25 times, if there is one"
    assert re.fullmatch(rf"LMDB: cannot be told; \d+ more rounds {enough}\.", note)
    [cold] = notes(*(replicates(name, [10.0] * 3, cache="cold") for name in ("png", "lmdb")))
    assert cold.startswith("LMDB: not ranked; a cold start ranks no stores")


def test_a_proven_ratio_whose_size_is_uncertain_says_so() -> None:
    facts, compared = decisions_of(
        replicates("png", [400.0, 900.0, 500.0], compute_ms=0.1),
        replicates("lmdb", [1.0, 1.0, 1.0], compute_ms=0.1),
    )
    [decision] = compared
    ratio = decision.ratio
    assert decision.faster
    wide, narrow = (
        dataclasses.replace(
            decision, ratio=dataclasses.replace(ratio, lo=ratio.mid / span, hi=ratio.mid * span)
        )
        for span in (3.2, 3.1)
    )
    [note] = verdict_notes(facts.decisions, [wide])
    assert re.fullmatch(
        r"LMDB: proven faster, but 3 rounds hardly tell by how much; \d+ more rounds would tell the ratio to within a factor"
        r" of 1\.25\.",
        note,
    )
    assert verdict_notes(facts.decisions, [narrow]) == []
    [never] = verdict_notes(facts.decisions, [dataclasses.replace(wide, alpha=1e-300)])
    assert never.endswith("with this spread, 200 rounds would not tell the ratio to within a factor of 1.25.")
    turned = wide.inverted()
    [other] = verdict_notes(facts.decisions, [turned])
    assert other.startswith("PNG files: proven slower, but 3 rounds ")


def test_what_several_verdicts_lack_is_told_once() -> None:
    facts, compared = decisions_of(*(replicates(name, [20.0]) for name in ("png", "hdf5", "lmdb")))
    told = [decision for decision in compared if decision.base.backend == "png"]
    assert verdict_notes(facts.decisions, told) == [
        "HDF5, LMDB: cannot be told; one round shows no spread, so at least 3 are needed."
    ]
