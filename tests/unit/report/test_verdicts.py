"""What limits a cell, checked with planted records to the digit."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import CellSummary, summarise
from storebench.report.decisions import Topic
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.texts.advice import recommend
from storebench.report.texts.labels import number
from storebench.report.texts.verdicts import limit_figure, limit_sentence
from storebench.report.verdict import Bound, CellVerdict, planned_reader
from storebench.results import Ceilings, Conditions, Counters, Record, Status
from tests.support.planted import make_record, replicates


def cells_of(records: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def facts_of(records: list[Record]) -> Facts:
    return derive(cells_of(records))


def verdict_of(records: list[Record], backend: str = "lmdb", cache: str | None = None) -> CellVerdict:
    facts = facts_of(records)
    wanted = next(c for c in facts.cells if c.backend == backend and cache in (None, c.cell.cache))
    return facts.verdicts[wanted.key]


def test_a_tiny_model_on_a_slow_decoder_is_decode_bound() -> None:
    verdict = verdict_of([make_record("lmdb", wait_ms=20, compute_ms=1, fetch_ms=4, decode_ms=15, prep_ms=1)])
    assert verdict.bound is Bound.DECODE
    assert "decode is 75% of the producers' work (15.0 ms per batch)" in limit_figure(verdict)
    assert verdict.gain == pytest.approx(21 / 6)
    assert verdict.feed_gain == pytest.approx(21)


def test_the_handoff_is_no_part_of_the_producers_work_of_a_fetch() -> None:
    parts: dict[str, Any] = {"fetch_ms": 30.0, "prep_ms": 10.0, "handoff_ms": 6.0}
    verdict = verdict_of([make_record("lmdb", cache="cold", workers=2, wait_ms=46, compute_ms=1, **parts)])
    assert verdict.bound is Bound.FETCH
    assert "fetch from the device is 75% of the producers' work" in limit_figure(verdict)


def test_a_slow_augmentation_is_prep_bound() -> None:
    verdict = verdict_of([make_record("lmdb", wait_ms=20, compute_ms=1, fetch_ms=4, prep_ms=16)])
    assert verdict.bound is Bound.PREP


def test_a_huge_model_is_compute_bound_with_and_without_workers() -> None:
    parts: dict[str, Any] = {"wait_ms": 2.0, "compute_ms": 98.0, "fetch_ms": 2.0}
    for workers in (0, 2):
        verdict = verdict_of([make_record("lmdb", workers=workers, **parts)])
        assert verdict.bound is Bound.COMPUTE
        assert "compute is 98% of the loop's time" in limit_figure(verdict)


def test_a_warm_sibling_as_slow_blames_the_reader() -> None:
    cold = make_record("lmdb", cache="cold", wait_ms=20, compute_ms=1, fetch_ms=19, prep_ms=1)
    warm = make_record("lmdb", cache="warm", wait_ms=18, compute_ms=1, fetch_ms=17, prep_ms=1)
    assert verdict_of([cold, warm], cache="cold").bound is Bound.READER


@pytest.mark.parametrize(("share", "bound"), [(0.05, Bound.READER), (0.2, Bound.FETCH), (1.0, Bound.FETCH)])
def test_with_the_cache_as_found_the_device_counter_decides(share: float, bound: Bound) -> None:
    counters = Counters(device_read_bytes=round(share * 100 * 32 * 196_608))
    record = make_record("lmdb", cache="any", wait_ms=20, compute_ms=1, fetch_ms=19, counters=counters)
    assert verdict_of([record]).bound is bound


def test_producers_that_wait_for_the_queue_are_handoff_bound() -> None:
    parts: dict[str, Any] = {"fetch_ms": 2.0, "prep_ms": 1.0, "handoff_ms": 12.0}
    verdict = verdict_of([make_record("lmdb", workers=2, wait_ms=11, compute_ms=1, **parts)])
    assert verdict.bound is Bound.HANDOFF
    assert limit_sentence(verdict).startswith("handoff-bound: ")


def test_what_workers_do_side_by_side_is_shared_among_them() -> None:
    verdict = verdict_of(
        [make_record("lmdb", workers=4, wait_ms=9, compute_ms=1, fetch_ms=4, decode_ms=36, prep_ms=0)]
    )
    assert verdict.bound is Bound.DECODE
    assert verdict.batch_s == pytest.approx(0.009)
    assert verdict.gain == pytest.approx(10)


def test_stalls_are_differences_of_cold_warm_and_null() -> None:
    cold = make_record("lmdb", cache="cold", wait_ms=30, compute_ms=10)
    warm = make_record("lmdb", cache="warm", wait_ms=10, compute_ms=10)
    null = make_record("null", wait_ms=0, compute_ms=10, fetch_ms=0, prep_ms=0)
    stalls = verdict_of([cold, warm, null], cache="cold").stalls
    assert (stalls.fetch_frac, stalls.prep_frac) == pytest.approx((0.5, 0.25))


def test_a_failed_cell_and_the_null_cell_get_no_verdict() -> None:
    records = [make_record("null"), make_record("lmdb", status=Status.FAILED, failure="x")]
    assert facts_of(records).verdicts == {}


ARRIVING = 32 * 196_608 / 0.019
"""Bytes per second that `fetching` gets while it fetches."""


def fetching(best: float, cache: str = "cold", backend: str = "lmdb", **changes: Any) -> Record:
    """Plant a cell that fetches a batch in 19 ms, beside a device of so many bytes per second."""
    parts: dict[str, Any] = {
        "wait_ms": 20.0,
        "compute_ms": 1.0,
        "fetch_ms": 19.0,
        "prep_ms": 1.0,
        "bytes_on_disk": 0,
    }
    ceilings = Ceilings(device_random_1_bytes_per_s=1.0, device_random_16_bytes_per_s=best)
    return make_record(backend, cache=cache, ceilings=ceilings, **(parts | changes))


@pytest.mark.parametrize(
    ("share", "bound"),
    [
        (1.4, Bound.STORAGE),
        (1.0, Bound.STORAGE),
        (0.72, Bound.STORAGE),
        (0.68, Bound.LATENCY),
        (0.1, Bound.LATENCY),
    ],
)
def test_the_device_is_the_limit_only_where_it_delivers_nearly_all_it_can(share: float, bound: Bound) -> None:
    verdict = verdict_of([fetching(ARRIVING / share)])
    assert verdict.bound is bound
    assert f"{share:.0%} of the device's best measured rate" in limit_figure(verdict)


@pytest.mark.parametrize(
    ("backend", "share", "bound"),
    [
        ("lmdb", 0.9, Bound.STORAGE),
        ("lmdb:direct", 0.9, Bound.LATENCY),
        ("lmdb:direct", 1.6, Bound.STORAGE),
    ],
)
def test_a_reader_that_is_told_the_order_reads_while_the_network_computes(
    backend: str, share: float, bound: Bound
) -> None:
    parts: dict[str, Any] = {"wait_ms": 20.0, "compute_ms": 18.0}
    verdict = verdict_of([fetching(ARRIVING / share, backend=backend, **parts)], backend)
    assert verdict.bound is bound


def test_without_a_device_rate_a_slow_cold_fetch_has_no_known_cause() -> None:
    assert (
        verdict_of([make_record("lmdb", cache="cold", wait_ms=20, compute_ms=1, fetch_ms=19)]).bound
        is Bound.FETCH
    )


def test_a_rate_that_a_cell_exceeds_is_not_the_devices_best() -> None:
    assert verdict_of([fetching(ARRIVING / 3.9)]).bound is Bound.FETCH


def test_the_devices_rate_is_taken_from_any_cell_of_the_same_payload() -> None:
    training = make_record("lmdb", cache="cold", wait_ms=20, compute_ms=1, fetch_ms=19, bytes_on_disk=0)
    facts = facts_of([training, fetching(10 * ARRIVING, compute="none")])
    assert {one.bound for one in facts.verdicts.values()} == {Bound.LATENCY}


def test_the_reader_that_would_mend_waiting_is_named() -> None:
    names = ("lmdb", "lmdb:direct", "lmdb:shared", "leveldb", "png")
    asked = make_record("lmdb", reader_options=(("readahead", "off"),))
    cells = cells_of([*map(make_record, names), asked])
    assert {cell.backend: planned_reader(cell) for cell in cells} == {
        "lmdb": "lmdb:direct",
        "lmdb?readahead=off": "lmdb:direct",
        "lmdb:direct": "",
        "lmdb:shared": "lmdb:direct",
        "leveldb": "",
        "png": "png:threads",
    }
    slow = [
        dataclasses.replace(
            fetching(10 * ARRIVING, "limited", memory_bytes=1 << 27, compute="none", compute_ms=0.0),
            replicate=n,
        )
        for n in range(3)
    ]
    cells = cells_of(
        replicates("png", [90.0] * 3, compute="none", compute_ms=0, cache="limited", memory_bytes=1 << 27)
        + slow
    )
    (bottleneck,) = [one.text for one in recommend(derive(cells)) if one.rule.startswith("R5")]
    assert "LMDB is latency-bound" in bottleneck
    assert "several requests in flight (LMDB (direct))" in bottleneck


def test_a_reader_that_would_help_is_named_in_every_case() -> None:
    alone: dict[str, Any] = {
        "compute": "none",
        "compute_ms": 0.0,
        "cache": "limited",
        "memory_bytes": 1 << 27,
    }
    slow = [dataclasses.replace(fetching(10 * ARRIVING, **alone), replicate=n) for n in range(3)]
    direct = [
        dataclasses.replace(fetching(10 * ARRIVING, backend="lmdb:direct", **alone), replicate=n)
        for n in range(3)
    ]
    png = replicates("png", [90.0] * 3, **alone)
    told = {
        backend: next(one.text for one in recommend(facts_of(records)) if one.rule.startswith("R5"))
        for backend, records in (("lmdb", [*png, *slow, *direct]), ("lmdb:direct", [*png, *direct]))
    }
    assert (
        "in flight (LMDB (direct) does so, but was measured here and is not proven faster)." in told["lmdb"]
    )
    assert "several requests in flight (LMDB (direct) does so already: more of them)." in told["lmdb:direct"]


def test_a_share_just_below_the_limit_of_the_device_says_so() -> None:
    below, lower = (verdict_of([fetching(ARRIVING * ratio)]) for ratio in (1.43, 2.0))
    assert below.bound is lower.bound is Bound.LATENCY
    assert "bytes arrive at just under 70% of the device's best measured rate" in limit_sentence(below)
    assert "bytes arrive at 50% of the device's best measured rate" in limit_sentence(lower)


def test_a_warm_cell_that_fetches_slowly_is_bound_by_its_reader() -> None:
    verdict = verdict_of([fetching(ARRIVING, cache="warm")])
    assert verdict.bound is Bound.READER
    assert verdict.arriving_frac is None, "the device is not in question"


def test_of_a_cold_fetch_the_device_has_the_part_that_a_warm_one_saves() -> None:
    parts: dict[str, Any] = {"wait_ms": 20.0, "compute_ms": 1.0, "prep_ms": 0.0, "decode_ms": 5.0}
    cold = make_record("lmdb", cache="cold", fetch_ms=15.0, **parts)
    warm = make_record("lmdb", cache="warm", fetch_ms=3.0, **parts)
    verdict = verdict_of([cold, warm], cache="cold")
    assert verdict.bound is Bound.FETCH
    assert verdict.batch_s == pytest.approx(0.012)
    assert verdict.feeding_frac == pytest.approx(12 / 20), (
        "fetching is 15 of 20 ms, and 3 of them are the reader's"
    )


def test_a_cold_cell_with_data_in_memory_is_not_device_bound() -> None:
    record = make_record("memory:native", wait_ms=20, compute_ms=1, fetch_ms=19)
    assert verdict_of([record], "memory:native").bound is Bound.READER


@pytest.mark.parametrize(("wait_ms", "bound"), [(9.0, Bound.COMPUTE), (11.0, Bound.READER)])
def test_without_workers_the_larger_of_waiting_and_computing_is_the_limit(
    wait_ms: float, bound: Bound
) -> None:
    record = make_record("lmdb", cache="warm", wait_ms=wait_ms, compute_ms=10, fetch_ms=wait_ms, prep_ms=0)
    verdict = verdict_of([record])
    assert verdict.bound is bound
    assert verdict.feed_gain == pytest.approx((10 + wait_ms) / 10)
    assert ("at most 1.90 times as fast" in limit_sentence(verdict)) is (bound is Bound.COMPUTE)


PHOTOGRAPHS: dict[str, Any] = {
    "workers": 8,
    "wait_ms": 23.8,
    "compute": "none",
    "compute_ms": 0,
    "handoff_ms": 14.9,
}
STRETCHED: dict[str, Any] = {"fetch_ms": 64, "decode_ms": 104, "prep_ms": 16}
"""Spans of 8 workers that share 2 cores in long turns."""
SHORT: dict[str, Any] = {"fetch_ms": 6, "decode_ms": 36, "prep_ms": 2}
"""Those of batches that are shorter than a turn: most workers wait between two batches, in no span."""
TRAINING: dict[str, Any] = {"workers": 2, "decode_ms": 0, "prep_ms": 0, "cache": "warm"}


@pytest.mark.parametrize(
    ("planted", "busy_cores", "cores", "bound", "gain"),
    [
        (PHOTOGRAPHS | STRETCHED, 2.0, 2, Bound.DECODE, 1 / (1 - 104 / 184)),
        (PHOTOGRAPHS | STRETCHED, 2.0, 16, Bound.DECODE, 23.8 / 14.9),
        (PHOTOGRAPHS | SHORT, 1.9, 2, Bound.DECODE, 23.8 / (23.8 - 36 / 2)),
        (PHOTOGRAPHS | SHORT, 1.9, 16, Bound.HANDOFF, 23.8 / (23.8 - 14.9)),
        (PHOTOGRAPHS | SHORT, 0.2, 2, Bound.HANDOFF, 23.8 / (23.8 - 14.9)),
        (TRAINING | {"wait_ms": 0.9, "compute_ms": 9.1, "fetch_ms": 9}, 1.0, 8, Bound.COMPUTE, 10 / 4.5),
        (TRAINING | {"wait_ms": 1.2, "compute_ms": 8.8, "fetch_ms": 9}, 1.0, 8, Bound.COMPUTE, 10 / 4.5),
        (TRAINING | {"wait_ms": 7, "compute_ms": 3, "fetch_ms": 19}, 1.0, 8, Bound.READER, 10 / 3),
        (TRAINING | {"wait_ms": 1, "compute_ms": 9, "fetch_ms": 19.4}, 1.0, 8, Bound.READER, 10 / 9),
        (TRAINING | {"wait_ms": 0.4, "compute_ms": 9.6, "fetch_ms": 19.4}, 1.0, 8, Bound.BALANCED, 10 / 9.6),
        (TRAINING | {"wait_ms": 1, "compute_ms": 2, "h2d_ms": 7, "fetch_ms": 4}, 1.0, 8, Bound.COPY, 10 / 3),
        (
            TRAINING | {"workers": 0, "wait_ms": 7, "compute_ms": 3, "fetch_ms": 6},
            1.0,
            8,
            Bound.READER,
            10 / 4,
        ),
        (
            TRAINING
            | {
                "workers": 0,
                "wait_ms": 7,
                "compute_ms": 3,
                "fetch_ms": 2.9,
                "decode_ms": 2.8,
                "prep_ms": 1.3,
            },
            1.0,
            8,
            Bound.COMPUTE,
            10 / 7,
        ),
        (
            TRAINING | {"workers": 0, "wait_ms": 0.4, "compute_ms": 0.3, "overhead_ms": 9.3, "fetch_ms": 0.4},
            1.0,
            8,
            Bound.BALANCED,
            10 / 9.6,
        ),
    ],
)
def test_the_limit_is_the_part_without_which_a_cell_gains_most(
    planted: dict[str, Any], busy_cores: float, cores: int, bound: Bound, gain: float
) -> None:
    record = make_record("jpeg", **planted)
    record = dataclasses.replace(
        record,
        counters=Counters(cpu_user_s=busy_cores * record.epoch_s, cpu_system_s=0.0),
        conditions=Conditions(wall_s=9.0, cores=cores, others_cpu_s=0.0),
    )
    verdict = verdict_of([record], "jpeg")
    assert (verdict.bound, verdict.gain) == (bound, pytest.approx(gain))
    told = verdict.feed_gain if bound is Bound.COMPUTE else gain
    assert f" at most {number(told)} times as fast" in limit_sentence(verdict)


@pytest.mark.parametrize(("null_ms", "gain"), [(16.0, 20 / 16), (8.0, 20 / 10)])
def test_the_null_cell_never_raises_what_free_loading_could_gain(null_ms: float, gain: float) -> None:
    cell = make_record("lmdb", cache="warm", wait_ms=10, compute_ms=10, fetch_ms=10)
    null = make_record("null", wait_ms=0, compute_ms=null_ms, fetch_ms=0, prep_ms=0)
    assert verdict_of([cell, null]).feed_gain == pytest.approx(gain)


def test_the_handoff_limits_what_mending_another_stage_gains() -> None:
    parts: dict[str, Any] = {
        "fetch_ms": 30.0,
        "prep_ms": 0.0,
        "handoff_ms": 8.0,
        "cache": "warm",
        "workers": 2,
    }
    verdict = verdict_of([make_record("lmdb", wait_ms=14, compute_ms=1, **parts)])
    assert verdict.bound is Bound.READER
    assert verdict.batch_s == pytest.approx(0.015), "two workers fetch side by side"
    assert verdict.gain == pytest.approx(15 / 8)


def contended(inflation: tuple[float, ...]) -> list[Record]:
    """Plant a null cell of 10 ms of compute, and LMDB beside which it computes so many times as long."""
    nulls = [
        make_record("null", replicate=n, wait_ms=0.0, compute_ms=10.0, fetch_ms=0, prep_ms=0)
        for n in range(len(inflation))
    ]
    return nulls + [
        make_record("lmdb", replicate=n, cache="warm", wait_ms=0.2, compute_ms=10 * times, fetch_ms=0.1)
        for n, times in enumerate(inflation)
    ]


def test_proven_longer_computing_beside_a_backend_is_contention() -> None:
    verdict = verdict_of(contended((1.2, 1.21, 1.19, 1.2)))
    assert verdict.bound is Bound.CONTENTION
    assert verdict.inflation is not None
    assert verdict.inflation.ratio.mid == pytest.approx(1.2, rel=1e-3)
    assert "computes 1.20 [" in limit_figure(verdict)
    assert verdict.gain == pytest.approx(12.2 / 10.2, rel=1e-2)


@pytest.mark.parametrize(
    "inflation", [(1.04, 1.041, 1.039, 1.04), (0.9, 1.5, 1.2, 1.3), (0.8, 0.81, 0.8, 0.8), (1.2, 1.2)]
)
def test_contention_needs_proof_and_more_than_five_percent(inflation: tuple[float, ...]) -> None:
    assert verdict_of(contended(inflation)).bound is Bound.COMPUTE


def test_advice_calls_contention_only_what_the_page_has_decided() -> None:
    png = [make_record("png", replicate=n, cache="warm", wait_ms=0.2, compute_ms=12.0) for n in range(4)]
    cells = cells_of(contended((1.2, 1.21, 1.19, 1.2)) + png)
    page = derive(cells).decisions
    rates_only = {key: one for key, one in page.found.items() if one.topic is not Topic.COMPUTE}
    for made, told in ((page, True), (dataclasses.replace(page, found=rates_only), False)):
        (text,) = [one.text for one in recommend(derive(cells, made)) if one.rule == "R5 bottleneck"]
        assert ("slowed down by contention" in text) is told


def test_a_loop_fed_by_the_networks_cores_is_not_indifferent() -> None:
    png = [make_record("png", replicate=n, cache="warm", wait_ms=0.2, compute_ms=12.0) for n in range(4)]
    taking = recommend(facts_of(contended((1.2, 1.21, 1.19, 1.2)) + png))
    assert "waits less than 10%" not in " ".join(one.text for one in taking)
    calm = [make_record("png", replicate=n, cache="warm", wait_ms=0.2, compute_ms=10.0) for n in range(4)]
    assert "waits less than 10%" in recommend(facts_of(contended((1.0, 1.01, 1.0, 1.0)) + calm))[0].text
