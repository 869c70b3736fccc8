"""What a report concludes, held against planted records to the digit."""

from pathlib import Path

import pytest
from planted import make_record, paper_records, replicates

from storebench.report.cells import CellSummary, Panel, panels, summarise
from storebench.report.factors import break_even, factorise, largest_part
from storebench.report.frame import to_frame
from storebench.report.headline import headline
from storebench.report.paper import factor_sentence, then_and_now
from storebench.report.recommend import recommend
from storebench.report.verdict import Bound, CellVerdict, judge_all
from storebench.results import Counters, Record, Status


def cells_of(records: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def verdict_of(records: list[Record], backend: str = "lmdb", cache: str | None = None) -> CellVerdict:
    cells = cells_of(records)
    wanted = next(c for c in cells if c.backend == backend and cache in (None, c.cell.cache))
    return judge_all(cells)[wanted.key]


# The sentence


def rounds(backend: str, step_ms: list[float], **changes: object) -> list[Record]:
    """Plant a cell whose steps take so long: 10 ms of compute, the rest data wait."""
    return replicates(backend, [ms - 10 for ms in step_ms], **changes)  # type: ignore[arg-type]


def test_the_sentence_gives_the_ratio_its_interval_and_the_largest_cause() -> None:
    png = rounds("png", [60, 60, 60], fetch_ms=5.0, decode_ms=43.75, prep_ms=1.25)
    lmdb = rounds("lmdb", [20, 20, 20], fetch_ms=9.0, decode_ms=0.0, prep_ms=1.0)
    assert headline(cells_of(png + lmdb)).answer == (
        "On this machine, cold, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times [3.0, 3.0] as fast as"
        " PNG files; decoding is 100% of the difference."
    )
    part = largest_part(*sorted(cells_of(png + lmdb), key=lambda c: c.backend != "png"))
    assert part == ("decoding", pytest.approx(43.75 / 40))


def test_no_winner_is_named_where_the_spread_is_too_wide() -> None:
    records = rounds("png", [20, 30, 16]) + rounds("lmdb", [22, 18, 25])
    answer = headline(cells_of(records)).answer
    assert "the spread is too wide to tell" in answer
    assert "as fast as" not in answer


def test_no_difference_is_said_where_the_interval_is_narrow_around_one() -> None:
    records = rounds("png", [20.0, 20.1, 20.0, 20.1]) + rounds("lmdb", [20.1, 20.0, 20.1, 20.0])
    assert "no difference that we can detect between" in headline(cells_of(records)).answer


def test_beside_training_stands_what_the_loader_alone_gives() -> None:
    training = rounds("png", [20.0, 20.1, 20.0, 20.1]) + rounds("lmdb", [20.1, 20.0, 20.1, 20.0])
    alone = rounds("png", [60.0, 60.0], compute="none") + rounds("lmdb", [20.0, 20.0], compute="none")
    answer = headline(cells_of(training + alone)).answer
    assert answer.startswith(
        "On this machine, cold, ImageNet, 4,000 images: no difference that we can detect"
    )
    assert " With nothing to compute: LMDB loads 3.0 times [3.0, 3.0] as fast as PNG files" in answer
    assert "With nothing to compute" not in headline(cells_of(alone)).answer


def test_one_round_names_no_winner() -> None:
    answer = headline(cells_of(rounds("png", [60]) + rounds("lmdb", [20]))).answer
    assert "without replicates there is no interval, so no winner is named" in answer


def test_a_paper_turned_round_is_said_the_right_way_round() -> None:
    answer = headline(cells_of(rounds("png", [20, 20]) + rounds("lmdb", [30, 30]))).answer
    assert "PNG files feed CaffeNet 1.5 times [1.5, 1.5] as fast as LMDB" in answer


def test_the_sentence_rests_on_cold_real_training_with_the_largest_images() -> None:
    small = [
        r
        for b, ms in (("png", 20.0), ("lmdb", 12.0))
        for r in rounds(b, [ms, ms], dataset="mnist", size=None)
    ]
    warm = [r for b, ms in (("png", 40.0), ("lmdb", 12.0)) for r in rounds(b, [ms, ms], cache="warm")]
    cold = [r for b, ms in (("png", 60.0), ("lmdb", 20.0)) for r in rounds(b, [ms, ms])]
    drained = [r for b, ms in (("png", 99.0), ("lmdb", 11.0)) for r in rounds(b, [ms, ms], compute="none")]
    answer = headline(cells_of(drained + small + warm + cold)).answer
    assert "cold, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times" in answer


def test_nothing_measured_is_said() -> None:
    failed = make_record("lmdb", status=Status.FAILED, failure="no memory")
    assert headline(cells_of([failed])).answer == "Nothing was measured: every cell failed."


# The factorisation


def square(cache: str, factor: float) -> list[Record]:
    """Plant container x codec: containers cost 4 (files) or 1 (LMDB), PNG costs 5, everything times `factor`."""
    steps = {"png": 20.0, "files+raw": 4.0, "lmdb+png": 5.0, "lmdb": 1.0}
    return [
        record
        for backend, cost in steps.items()
        for record in replicates(
            backend, [cost * 10 * (factor if cache == "cold" and backend in ("png", "files+raw") else 1)] * 2,
            compute_ms=0.0, compute="none", cache=cache,
        )
    ]  # fmt: skip


def test_a_ratio_is_taken_apart_exactly_into_container_codec_and_cache() -> None:
    factors = {one.cache_state: one for one in factorise(cells_of(square("warm", 1) + square("cold", 3)))}
    warm, cold = factors["warm"], factors["cold"]
    assert (warm.ratio.mid, warm.container, warm.codec, warm.cache) == pytest.approx((20, 4, 5, 1))
    assert (cold.ratio.mid, cold.container, cold.codec, cold.cache) == pytest.approx((60, 4, 5, 3))
    assert cold.careless is not None
    assert cold.careless.mid == pytest.approx(60)
    assert (
        "60.0 [60.0, 60.0] = 4.00 (files instead of LMDB) x 5.00 (PNG instead of raw pixels)"
        in factor_sentence(cold)
    )


def test_with_one_corner_missing_the_product_still_holds() -> None:
    records = [r for r in square("warm", 1) if r.cell.backend != "files+raw"]
    (one,) = factorise(cells_of(records))
    assert one.container * one.codec == pytest.approx(one.ratio.mid)


def test_without_a_corner_nothing_is_taken_apart() -> None:
    records = [r for r in square("warm", 1) if r.cell.backend in ("png", "lmdb")]
    assert factorise(cells_of(records)) == []


# The break-even


def panel_of(records: list[Record]) -> Panel:
    (panel,) = panels(cells_of(records))
    return panel


def test_a_conversion_pays_after_its_build_time_over_what_it_saves() -> None:
    # 4,000 images in steps of 32: 125 steps. PNG 60 ms a step: 7.5 s; LMDB 20 ms: 2.5 s; saved 5 s an epoch.
    (one,) = break_even(panel_of(rounds("png", [60, 60]) + rounds("lmdb", [20, 20], build_s=12.0)))
    assert one.saved_s.mid == pytest.approx(5.0)
    assert one.epochs is not None
    assert one.epochs.mid == pytest.approx(2.4)


def test_a_conversion_that_saves_nothing_for_certain_never_pays() -> None:
    (one,) = break_even(panel_of(rounds("png", [20, 30, 16]) + rounds("lmdb", [22, 18, 25])))
    assert one.epochs is None


# The advice


def rules_of(records: list[Record]) -> dict[str, str]:
    return {one.rule[:2]: one.text for one in recommend(cells_of(records))}


def test_the_fastest_is_advised_when_it_is_proven() -> None:
    advice = rules_of(rounds("png", [60, 61]) + rounds("hdf5", [30, 30.1]) + rounds("lmdb", [20, 20.1]))
    assert "use LMDB" in advice["R2"]
    assert "1.50 [" in advice["R2"]
    assert "it pays after" in advice["R4"]


def test_it_does_not_matter_when_the_loop_hardly_waits() -> None:
    records = rounds("png", [10.6, 10.6], fetch_ms=0.5) + rounds("lmdb", [10.2, 10.2], fetch_ms=0.1)
    advice = rules_of(records)
    assert "it does not matter here: the loop waits less than 10% of its time" in advice["R1"]
    assert "R2" not in advice


def test_it_does_not_matter_when_intervals_overlap() -> None:
    advice = rules_of(rounds("png", [20, 30, 16]) + rounds("lmdb", [22, 18, 25]))
    assert "no backend is proven slower" in advice["R1"]
    assert "more replicates could still show a difference" in advice["R1"]


def test_of_equals_the_smallest_is_advised() -> None:
    slow, big = rounds("png", [90, 90, 91]), rounds("hdf5", [20, 21, 20], bytes_on_disk=900)
    small = rounds("lmdb", [21, 20, 20.5], bytes_on_disk=800)
    assert "LMDB is the smallest on disk" in rules_of(slow + big + small)["R3"]


def test_one_round_is_no_ground_for_advice() -> None:
    advice = recommend(cells_of(rounds("png", [60]) + rounds("lmdb", [20])))
    assert len(advice) == 1
    assert "Run more replicates before you choose" in advice[0].text


def test_workers_memory_and_amplification_each_get_their_advice() -> None:
    records = rounds("png", [60, 61]) + rounds("lmdb", [30, 30.1], amplification=8.0)
    records += rounds("lmdb", [15, 15.1], workers=2) + rounds("lmdb", [15, 15.1], cache="warm")
    advice = rules_of(records)
    assert "use 2 workers; that is 2.00 [" in advice["R6"]
    assert "2.00 [" in advice["R7"]
    assert "LMDB: the device delivered 8.0 times" in advice["R8"]


def test_memory_is_not_advised_where_warm_is_slower() -> None:
    cold = rounds("png", [60, 61]) + rounds("lmdb", [15, 15.1])
    assert "R7" not in rules_of(cold + rounds("lmdb", [30, 30.1], cache="warm"))


# The verdicts


def test_a_tiny_model_on_a_slow_decoder_is_decode_bound() -> None:
    verdict = verdict_of([make_record("lmdb", wait_ms=20, compute_ms=1, fetch_ms=4, decode_ms=15, prep_ms=1)])
    assert verdict.bound is Bound.DECODE
    assert "decode is 75% of feeding it (15.0 ms a batch)" in verdict.figure
    assert verdict.gain == pytest.approx(21 / 6)
    assert verdict.feed_gain == pytest.approx(21)


def test_a_slow_augmentation_is_prep_bound() -> None:
    verdict = verdict_of([make_record("lmdb", wait_ms=20, compute_ms=1, fetch_ms=4, prep_ms=16)])
    assert verdict.bound is Bound.PREP


def test_a_huge_model_is_compute_bound_with_and_without_workers() -> None:
    parts = {"wait_ms": 2.0, "compute_ms": 98.0, "fetch_ms": 2.0}
    for workers in (0, 2):
        verdict = verdict_of([make_record("lmdb", workers=workers, **parts)])  # type: ignore[arg-type]
        assert verdict.bound is Bound.COMPUTE
        assert "compute is 98% of the loop's time" in verdict.figure


def test_a_slow_fetch_is_the_storage_when_cold_and_the_reader_when_warm() -> None:
    parts = {"wait_ms": 20.0, "compute_ms": 1.0, "fetch_ms": 19.0, "prep_ms": 1.0}
    assert verdict_of([make_record("lmdb", cache="cold", **parts)]).bound is Bound.STORAGE  # type: ignore[arg-type]
    assert verdict_of([make_record("lmdb", cache="warm", **parts)]).bound is Bound.READER  # type: ignore[arg-type]


def test_a_warm_sibling_as_slow_moves_the_blame_from_the_device_to_the_reader() -> None:
    cold = make_record("lmdb", cache="cold", wait_ms=20, compute_ms=1, fetch_ms=19, prep_ms=1)
    warm = make_record("lmdb", cache="warm", wait_ms=18, compute_ms=1, fetch_ms=17, prep_ms=1)
    assert verdict_of([cold, warm], cache="cold").bound is Bound.READER


def test_with_the_cache_as_found_the_device_counter_decides() -> None:
    parts = {"cache": "any", "wait_ms": 20.0, "compute_ms": 1.0, "fetch_ms": 19.0}
    none, all_ = (make_record("lmdb", counters=Counters(device_read_bytes=n), **parts) for n in (0, 10**9))  # type: ignore[arg-type]
    assert verdict_of([none]).bound is Bound.READER
    assert verdict_of([all_]).bound is Bound.STORAGE


def test_producers_that_wait_for_the_queue_are_hand_over_bound() -> None:
    parts = {"fetch_ms": 2.0, "prep_ms": 1.0, "handover_ms": 12.0}
    verdict = verdict_of([make_record("lmdb", workers=2, wait_ms=11, compute_ms=1, **parts)])  # type: ignore[arg-type]
    assert verdict.bound is Bound.HANDOVER


def test_what_workers_do_side_by_side_is_shared_among_them() -> None:
    verdict = verdict_of(
        [make_record("lmdb", workers=4, wait_ms=9, compute_ms=1, fetch_ms=4, decode_ms=36, prep_ms=0)]
    )
    assert verdict.costs_s[Bound.DECODE] == pytest.approx(0.009 / 32)
    assert verdict.gain == pytest.approx(10)


def test_stalls_are_differences_of_cold_warm_and_null() -> None:
    cold = make_record("lmdb", wait_ms=30, compute_ms=10)
    warm = make_record("lmdb", cache="warm", wait_ms=10, compute_ms=10)
    null = make_record("null", wait_ms=0, compute_ms=10, fetch_ms=0, prep_ms=0)
    stalls = verdict_of([cold, warm, null], cache="cold").stalls
    assert (stalls.fetch_frac, stalls.prep_frac) == pytest.approx((0.5, 0.25))


def test_a_failed_cell_and_the_null_cell_get_no_verdict() -> None:
    records = [make_record("null"), make_record("lmdb", status=Status.FAILED, failure="x")]
    assert judge_all(cells_of(records)) == {}


# The paper


def test_the_papers_claims_stand_beside_what_was_measured() -> None:
    claims = {one.claim: one for one in then_and_now(cells_of(paper_records() + paper_records("warm")))}
    slow = claims["On ImageNet, image files are much slower than LMDB"]
    assert slow.then == "more than 17 times"
    assert [condition.split(", ")[-1] for condition, _ in slow.now] == ["cold", "warm"]
    assert slow.now[0][1].startswith("8.00 [")
    assert "3 of 3" not in claims["Key-value stores are reliable"].now[0][1]
    assert claims["Key-value stores are reliable"].now[0][1].startswith("6 of 6 epochs")


def test_a_claim_that_nothing_speaks_to_is_left_out() -> None:
    assert then_and_now(cells_of([make_record("png", dataset="mnist", size=None)])) == []
