"""What limits a cell, from planted spans: the part whose removal gains most, and by how much."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.analysis.bottleneck import Bottleneck, bottlenecks
from storebench.analysis.frame import sourced
from storebench.analysis.summary import summarise
from storebench.record.schema import Ceilings, Conditions, Counters, Record, Status, TierFacts
from storebench.settings.words import Limit
from tests.support.planted import make_record, replicates


def limits_of(*records: Record) -> dict[str, Bottleneck]:
    cells = summarise(sourced((record, Path("run/records.jsonl")) for record in records))
    found = bottlenecks(cells)
    return {f"{cell.backend} {cell.cell.cache}": found[cell.key] for cell in cells if cell.key in found}


def limit_of(backend: str = "lmdb", **changes: Any) -> Bottleneck:
    (limit,) = limits_of(make_record(backend, **changes)).values()
    return limit


CASES: list[tuple[dict[str, Any], Limit]] = [
    ({"wait_ms": 20, "compute_ms": 1, "fetch_ms": 4, "decode_ms": 15, "prep_ms": 1}, Limit.DECODE),
    ({"wait_ms": 20, "compute_ms": 1, "fetch_ms": 4, "prep_ms": 16}, Limit.PREP),
    ({"wait_ms": 2, "compute_ms": 98, "fetch_ms": 2}, Limit.COMPUTE),
    ({"wait_ms": 2, "compute_ms": 98, "fetch_ms": 2, "workers": 2}, Limit.COMPUTE),
    ({"wait_ms": 11, "compute_ms": 1, "fetch_ms": 2, "handoff_ms": 12, "workers": 2}, Limit.HANDOFF),
    (
        {"wait_ms": 46, "compute_ms": 1, "fetch_ms": 30, "prep_ms": 10, "workers": 2, "cache": "cold"},
        Limit.FETCH,
    ),
    (
        {"wait_ms": 9, "compute_ms": 1, "fetch_ms": 4, "decode_ms": 36, "prep_ms": 0, "workers": 4},
        Limit.DECODE,
    ),
    ({"wait_ms": 19, "compute_ms": 1, "fetch_ms": 19, "prep_ms": 0, "cache": "warm"}, Limit.READER),
]


@pytest.mark.parametrize(("spans", "bound"), CASES)
def test_the_part_whose_removal_gains_most_is_the_limit(spans: dict[str, Any], bound: Limit) -> None:
    assert limit_of(**spans).limit is bound


def test_the_gain_is_what_the_others_leave() -> None:
    limit = limit_of(wait_ms=20, compute_ms=1, fetch_ms=4, decode_ms=15, prep_ms=1)
    assert (limit.gain, limit.share) == pytest.approx((21 / 6, 15 / 21))
    limit = limit_of(workers=4, wait_ms=9, compute_ms=1, fetch_ms=4, decode_ms=36, prep_ms=0)
    assert limit.gain == pytest.approx(10)


def test_a_warm_sibling_as_slow_blames_the_reader() -> None:
    cold = make_record("lmdb", cache="cold", wait_ms=20, compute_ms=1, fetch_ms=19, prep_ms=1)
    warm = make_record("lmdb", cache="warm", wait_ms=18, compute_ms=1, fetch_ms=17, prep_ms=1)
    assert limits_of(cold, warm)["lmdb cold"].limit is Limit.READER
    warm = make_record("lmdb", cache="warm", wait_ms=17, compute_ms=1, fetch_ms=5, prep_ms=12)
    limit = limits_of(cold, warm)["lmdb cold"]
    assert (limit.limit, limit.share, limit.gain) == (Limit.FETCH, pytest.approx(14 / 21), pytest.approx(3.0))


@pytest.mark.parametrize(("share", "bound"), [(0.05, Limit.READER), (0.2, Limit.FETCH), (1.0, Limit.FETCH)])
def test_with_the_cache_as_found_the_device_counter_decides(share: float, bound: Limit) -> None:
    counters = Counters(device_read_bytes=round(share * 100 * 32 * 196_608))
    assert limit_of(cache="any", wait_ms=20, compute_ms=1, fetch_ms=19, counters=counters).limit is bound


def test_failed_cells_and_null_have_no_limit() -> None:
    failed = make_record("lmdb", status=Status.FAILED, failure="x")
    assert limits_of(make_record("null"), failed) == {}


ARRIVING = 32 * 196_608 / 0.019
"""Bytes per second of a cell that fetches a batch in 19 ms."""


@pytest.mark.parametrize(
    ("backend", "share", "compute_ms", "bound"),
    [
        ("lmdb", 1.0, 1.0, Limit.STORAGE),
        ("lmdb", 0.72, 1.0, Limit.STORAGE),
        ("lmdb", 0.68, 1.0, Limit.LATENCY),
        ("lmdb", 1 / 0.25, 1.0, Limit.FETCH),  # the device's rate was measured too low
        ("lmdb", 0.9, 18.0, Limit.STORAGE),
        (
            "lmdb:direct",
            0.9,
            18.0,
            Limit.LATENCY,
        ),  # it is told the order, and reads while the network computes
    ],
)
def test_the_device_is_the_limit_where_it_delivers_nearly_all_it_can(
    backend: str, share: float, compute_ms: float, bound: Limit
) -> None:
    rates = Ceilings(device_best_bytes_per_s=ARRIVING / share)
    spans: dict[str, Any] = {
        "wait_ms": 20.0,
        "fetch_ms": 19.0,
        "prep_ms": 1.0,
        "compute_ms": compute_ms,
        "bytes_on_disk": 0,
    }
    assert limit_of(backend, cache="cold", ceilings=rates, **spans).limit is bound


def test_copying_and_computing_are_one_stage_of_the_loop() -> None:
    spans: dict[str, Any] = {
        "wait_ms": 1,
        "h2d_ms": 5,
        "compute_ms": 4,
        "decode_ms": 16,
        "fetch_ms": 0,
        "prep_ms": 0,
    }
    limit = limit_of(workers=2, **spans)
    assert (limit.limit, limit.gain) == (Limit.COPY, pytest.approx(10 / 8))


def test_computing_that_loading_slows_down_is_contention() -> None:
    null = replicates("null", [0.0] * 5, compute_ms=10.0, fetch_ms=0, prep_ms=0, workers=2)
    slowed = replicates("lmdb", [0.5] * 5, compute_ms=20.0, fetch_ms=4.0, workers=2)
    assert limits_of(*null, *slowed)["lmdb warm"].limit is Limit.CONTENTION


def test_workers_on_too_few_cores_count_as_fewer() -> None:
    def cell(cores: int) -> Record:
        conditions = Conditions(cores=cores, wall_s=1.0, others_cpu_s=0.0)
        counters = Counters(device_read_bytes=0, cpu_user_s=4.0, cpu_system_s=0.0)
        spans: dict[str, Any] = {"wait_ms": 9, "compute_ms": 1, "fetch_ms": 4, "decode_ms": 36, "prep_ms": 0}
        return make_record("lmdb", workers=4, conditions=conditions, counters=counters, **spans)

    (many,), (few,) = (limits_of(cell(cores)).values() for cores in (8, 1))
    assert few.share >= many.share


@pytest.mark.parametrize(("cores_used", "bound"), [(1.6, Limit.HANDOFF), (2.0, Limit.READER)])
def test_a_handoff_is_a_wait_for_a_core_only_if_the_cores_are_full(cores_used: float, bound: Limit) -> None:
    wall_s = 100 * 6e-3
    record = make_record(
        "lmdb",
        workers=3,
        conditions=Conditions(cores=2, wall_s=wall_s, others_cpu_s=0.0),
        counters=Counters(device_read_bytes=0, cpu_user_s=cores_used * wall_s, cpu_system_s=0.0),
        compute="none",
        wait_ms=6,
        compute_ms=0,
        fetch_ms=7,
        prep_ms=0,
        handoff_ms=5.8,
    )
    (limit,) = limits_of(record).values()
    assert limit.limit is bound


@pytest.mark.parametrize(("requests_per_s", "bound"), [(500.0, Limit.LATENCY), (5000.0, Limit.DECODE)])
def test_no_decoder_helps_where_an_emulated_device_is_used_up(requests_per_s: float, bound: Limit) -> None:
    tier = TierFacts(
        disk="8:0",
        limit_bytes_per_s=None,
        limit_requests_per_s=requests_per_s,
        read_bytes=10**8,
        requests=980,
        seconds=2.0,
    )
    spans: dict[str, Any] = {"wait_ms": 20, "compute_ms": 0, "fetch_ms": 5, "decode_ms": 15, "prep_ms": 0}
    rates = Ceilings(device_best_bytes_per_s=1e12)
    cell = make_record("png", cache="cold", compute="none", ceilings=rates, **spans)
    (limit,) = limits_of(dataclasses.replace(cell, tier=tier)).values()
    assert limit.limit is bound
