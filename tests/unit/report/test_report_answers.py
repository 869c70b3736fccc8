"""What a report concludes, checked with planted records to the digit."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import CellSummary, summarise
from storebench.report.claims import Claim, ClaimKind
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.texts.advice import recommend
from storebench.report.texts.choosing import Advice
from storebench.report.texts.headline import headline
from storebench.report.texts.papers import then_and_now
from storebench.results import Record, Status
from storebench.results.record import NO_ANSWER_AFTER
from tests.support.planted import make_record, paper_records, replicates


def cells_of(records: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def facts_of(records: list[Record]) -> Facts:
    return derive(cells_of(records))


def rounds(backend: str, step_ms: Sequence[float], **changes: Any) -> list[Record]:
    """Plant a cell whose steps take so long: 10 ms of compute, the rest data wait."""
    return replicates(backend, [ms - 10 for ms in step_ms], **changes)


# The sentence


def test_the_sentence_gives_ratio_interval_and_shares_in_plain_words() -> None:
    png = rounds("png", [60, 60, 60], fetch_ms=5.0, decode_ms=43.75, prep_ms=1.25)
    lmdb = rounds("lmdb", [20, 20, 20], fetch_ms=9.0, decode_ms=0.0, prep_ms=1.0)
    answer = headline(facts_of(png + lmdb))
    assert answer.answer == (
        "On this machine, warm, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times [3.0, 3.0] as fast as"
        " PNG files. What decides: of the difference, decoding makes up 109% [109%, 109%], and fetching, which"
        " is faster with PNG files, takes off 10% [10%, 10%]."
    )
    shares = {one.part: one.figure for one in answer.claims if one.kind is ClaimKind.SHARE}
    assert shares["decoding"] is not None
    assert shares["decoding"].mid == pytest.approx(43.75 / 40)
    assert shares["fetching"] is not None
    assert shares["fetching"].mid == pytest.approx(-4 / 40)


def test_no_winner_and_no_share_is_named_where_the_spread_is_too_wide() -> None:
    png = rounds("png", [30, 40, 26], decode_ms=15.0)
    answer = headline(facts_of(png + rounds("lmdb", [32, 28, 35])))
    assert "cannot be told apart yet" in answer.answer
    assert "more rounds would be enough to see a difference of 1.25 times, if there is one" in answer.answer
    assert "as fast as" not in answer.answer
    assert "decoding" not in answer.answer
    assert [one.kind for one in answer.claims] == [ClaimKind.UNDECIDED]


def test_a_part_in_favour_of_the_slower_store_has_a_whole() -> None:
    slow = rounds("png", [30.0] * 3, fetch_ms=2.0, prep_ms=1.0)
    fast = rounds("lmdb", [10.0] * 3, fetch_ms=9.0, prep_ms=1.0)
    answer = headline(facts_of(slow + fast)).answer
    assert (
        "What decides: fetching, which is faster with PNG files, takes off 35% [35%, 35%] of the difference."
        in answer
    )


def test_a_spread_that_200_rounds_would_not_overcome_is_said() -> None:
    answer = headline(facts_of(rounds("png", [20, 200, 15]) + rounds("lmdb", [180, 14, 90]))).answer
    assert answer.endswith(
        "]); with this spread, 200 rounds would not be enough to see a difference of 1.25 times."
    )


@pytest.mark.parametrize(("hdf5_ms", "leveldb_ms", "name"), [(20, 30, "HDF5"), (30, 20, "LevelDB")])
def test_without_lmdb_the_fastest_other_store_stands_beside_png(
    hdf5_ms: float, leveldb_ms: float, name: str
) -> None:
    records = rounds("png", [60] * 3) + rounds("hdf5", [hdf5_ms] * 3) + rounds("leveldb", [leveldb_ms] * 3)
    answer = headline(facts_of(records)).answer
    assert f"{name} feeds CaffeNet 3.0 times [3.0, 3.0] as fast as PNG files" in answer


def test_equality_is_said_where_the_interval_is_narrow_around_one() -> None:
    records = rounds("png", [20.0, 20.1, 20.0, 20.1]) + rounds("lmdb", [20.1, 20.0, 20.1, 20.0])
    answer = headline(facts_of(records))
    assert "differ by less than 10% (LMDB over PNG files: 1.000 times [0.981, 1.020]" in answer.answer
    assert [one.kind for one in answer.claims] == [ClaimKind.EQUAL]


def test_beside_training_stands_what_the_loader_alone_gives() -> None:
    training = rounds("png", [20.0, 20.1, 20.0, 20.1]) + rounds("lmdb", [20.1, 20.0, 20.1, 20.0])
    alone = rounds("png", [60.0] * 3, compute="none") + rounds("lmdb", [20.0] * 3, compute="none")
    answer = headline(facts_of(training + alone)).answer
    assert "differ by less than 10%" in answer
    assert (
        " With nothing to do but the network's augmentation: LMDB loads 3.0 times [3.0, 3.0] as fast as PNG files"
        in answer
    )
    assert "With nothing to do" not in headline(facts_of(alone)).answer
    drained = rounds("png", [60.0] * 3, compute="none", model="none")
    drained += rounds("lmdb", [10.0 + 1] * 3, compute="none", model="none")
    answer = headline(facts_of(alone + drained)).answer
    assert "4,000 images, reader and decoder alone: LMDB loads 5.5 times" in answer


def test_a_comparison_names_workers_and_batch_if_others_were_measured() -> None:
    def drained(**settings: Any) -> list[Record]:
        alone: dict[str, Any] = {"compute": "none", "model": "none", **settings}
        return rounds("png", [60.0] * 3, **alone) + rounds("lmdb", [20.0] * 3, **alone)

    several = drained() + drained(workers=4) + drained(batch_size=8)
    assert "without workers, batch 32, reader and decoder alone: LMDB" in headline(facts_of(several)).answer
    assert "workers, reader" not in headline(facts_of(drained())).answer
    trained = rounds("png", [60.0] * 3, batch_size=8) + rounds("lmdb", [20.0] * 3, batch_size=8)
    assert "batch" not in headline(facts_of(drained() + trained)).answer
    asleep = drained(workers=4, compute="emulated:100")
    assert "Reading and decoding alone: LMDB loads" in headline(facts_of(drained() + asleep)).answer
    sleeping = drained(compute="emulated:100") + drained(workers=4, compute="emulated:100")
    assert ", without workers" in headline(facts_of(sleeping)).answer.partition("On this machine")[2]


def test_a_comparison_names_network_and_device_if_others_were_trained() -> None:
    def trained(**settings: Any) -> list[Record]:
        return rounds("png", [60.0, 20.0, 40.0], **settings) + rounds("lmdb", [20.0, 60.0, 40.0], **settings)

    alone = headline(facts_of(trained())).answer
    assert "cannot be told apart" in alone
    assert "training" not in alone
    several = headline(facts_of(trained() + trained(model="resnet50") + trained(device="cuda"))).answer
    assert ", training CaffeNet, on this CPU" in several or ", training CaffeNet, on this GPU" in several
    limited = rounds("png", [60.0] * 3, **LIMITED) + rounds("lmdb", [20.0] * 3, **LIMITED)
    beside = headline(
        facts_of(limited + trained(cache="warm") + trained(cache="warm", model="resnet50"))
    ).answer
    assert "Training CaffeNet, warm" in beside
    assert "training CaffeNet" not in beside, "the sentence has named it"


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_rounds_name_no_winner(count: int) -> None:
    answer = headline(facts_of(rounds("png", [60, 60.1][:count]) + rounds("lmdb", [20, 20][:count])))
    assert "cannot be told apart yet" in answer.answer
    assert [one.kind for one in answer.claims] == [ClaimKind.UNDECIDED]


def test_a_paper_turned_round_is_said_the_right_way_round() -> None:
    answer = headline(facts_of(rounds("png", [20] * 3) + rounds("lmdb", [30] * 3))).answer
    assert "PNG files feed CaffeNet 1.50 times [1.50, 1.50] as fast as LMDB" in answer


def test_the_sentence_prefers_training_large_images_and_no_cold_start() -> None:
    small = [
        r
        for b, ms in (("png", 20.0), ("lmdb", 12.0))
        for r in rounds(b, [ms] * 3, dataset="mnist", size=None)
    ]
    warm = [r for b, ms in (("png", 60.0), ("lmdb", 20.0)) for r in rounds(b, [ms] * 3)]
    cold = [r for b, ms in (("png", 40.0), ("lmdb", 12.0)) for r in rounds(b, [ms] * 3, cache="cold")]
    drained = [r for b, ms in (("png", 99.0), ("lmdb", 11.0)) for r in rounds(b, [ms] * 3, compute="none")]
    answer = headline(facts_of(drained + small + warm + cold)).answer
    assert "warm, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times" in answer


LIMITED = {"cache": "limited", "memory_bytes": 128 * 2**20, "compute": "none", "model": "none"}


def two(png_ms: list[float], lmdb_ms: list[float], **changes: Any) -> list[Record]:
    return rounds("png", png_ms, **changes) + rounds("lmdb", lmdb_ms, **changes)


def test_the_sentence_prefers_a_store_larger_than_memory() -> None:
    cold = two([60] * 3, [20] * 3)
    far, own = (
        two([99] * 3, [11] * 3, readahead_kib=8192, **LIMITED),
        two([60] * 3, [24] * 3, readahead_kib=128, **LIMITED),
    )
    answer = headline(facts_of(cold + far + own)).answer
    roofline, told = answer.split(" On this machine, ")
    assert "PNG files feed accelerators up to" in roofline, "which accelerators are fed comes first"
    assert told.startswith(
        "ImageNet, 4,000 images, larger than memory"
        " (page cache limited to 128 MiB, read-ahead 128 KiB), reader and decoder alone: LMDB loads 2.5 times"
    )
    assert "What decides: " in told
    assert "with a read-ahead of 8192 KiB, LMDB is 9.0 times [9.0, 9.0] as fast as PNG files" in told
    assert "Training CaffeNet, warm, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times" in answer
    fits = two([60] * 3, [24] * 3, **(LIMITED | {"memory_bytes": 2**30}))
    assert "larger than memory" not in headline(facts_of(fits)).answer


def test_an_undecided_setting_does_not_lead_and_is_not_kept_back_either() -> None:
    limited = two([30, 60, 40], [44, 35, 52], readahead_kib=128, **LIMITED)
    answer = headline(facts_of(limited + two([60] * 3, [20] * 3)))
    assert "warm, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times" in answer.answer
    assert answer.answer.endswith(
        "Undecided settings that come first: ImageNet, 4,000 images, limited to 128 MiB, read-ahead 128 KiB."
    )
    assert {ClaimKind.FASTER, ClaimKind.UNDECIDED} <= {one.kind for one in answer.claims}
    assert answer.panel is not None
    assert answer.panel.first.cell.cache == "warm"
    far = two([30, 60, 40], [44, 35, 52], readahead_kib=8192, **LIMITED)
    several = headline(facts_of(limited + far + two([60] * 3, [20] * 3)))
    assert several.answer.endswith(", and 1 further setting.")
    nothing = headline(facts_of(limited + two([30, 60, 40], [44, 35, 52])))
    assert "On this machine, ImageNet, 4,000 images, larger than memory" in nothing.answer
    assert "Asked before" not in nothing.answer


def test_training_of_a_few_steps_ranks_nothing_and_lets_others_speak() -> None:
    few = rounds("png", [60] * 3, steps=19, cache="warm") + rounds("lmdb", [20] * 3, steps=19, cache="warm")
    assert (
        "cannot be ranked: training of 19 steps ranks nothing, 20 are needed"
        in headline(facts_of(few)).answer
    )
    assert "R2" not in {one.rule[:2] for one in recommend(facts_of(few))}
    alone = rounds("png", [60] * 3, compute="none") + rounds("lmdb", [20] * 3, compute="none")
    assert "LMDB loads 3.0 times" in headline(facts_of(few + alone)).answer


def test_a_part_that_makes_up_the_whole_difference_costs_all_of_it() -> None:
    png = rounds("png", [60] * 3, fetch_ms=50.1, decode_ms=0.0, prep_ms=0.0)
    lmdb = rounds("lmdb", [20] * 3, fetch_ms=10.0, decode_ms=0.0, prep_ms=0.0)
    assert (
        "What decides: fetching costs 100% [100%, 100%] of the difference."
        in headline(facts_of(png + lmdb)).answer
    )


def test_of_a_store_whose_replicates_ran_out_of_time_no_shares_are_told() -> None:
    png = rounds("png", [60] * 4, fetch_ms=5.0, decode_ms=43.75, prep_ms=1.25)
    killed = dataclasses.replace(
        make_record("png", replicate=4), status=Status.FAILED, failure=f"{NO_ANSWER_AFTER} 60 s"
    )
    lmdb = rounds("lmdb", [20] * 5, fetch_ms=9.0, decode_ms=0.0, prep_ms=1.0)
    assert "decoding" in headline(facts_of(png + lmdb)).answer
    told = headline(facts_of([*png, killed, *lmdb])).answer
    assert "LMDB feeds CaffeNet at least 3.0 times" in told
    assert "decoding" not in told


def test_the_answer_names_the_store_that_the_advice_names() -> None:
    records = rounds("png", [60] * 3) + rounds("lmdb", [20] * 3) + rounds("hdf5", [11] * 3)
    answer = headline(facts_of(records))
    assert "LMDB feeds CaffeNet 3.0 times [3.0, 3.0] as fast as PNG files" in answer.answer
    assert "The fastest store there: HDF5 feeds CaffeNet 1.82 times" in answer.answer
    assert "use HDF5" in rules_of(records)["R2"]
    assert "The fastest store" not in headline(facts_of(records[:6])).answer


def test_the_advice_gives_the_choice_of_each_cache_state() -> None:
    limit = {"cache": "limited", "memory_bytes": 128 * 2**20}
    limited, warm = two([20] * 3, [40] * 3, **limit), two([40] * 3, [11] * 3)
    first, second = recommend(facts_of(limited + warm))[:2]
    assert (first.rule, second.rule) == ("R2 fastest", "R2 fastest")
    assert ", limited to 128 MiB: use PNG files. They are 2.00 [" in first.text
    assert ", warm: use LMDB. It is 3.6" in second.text
    same = recommend(facts_of(two([40] * 3, [11] * 3, **limit) + warm))
    assert [one.rule for one in same].count("R2 fastest") == 1, "the same store is not advised twice"
    undecided = two([20, 30, 16], [22, 18, 25], **limit)
    first, second = recommend(facts_of(undecided + warm))[:2]
    assert ", warm: use LMDB" in first.text, "what is decided leads"
    assert second.rule.startswith("R0")


def test_states_are_compared_however_long_their_epochs_are() -> None:
    length = {"compute": "none", "model": "none"}
    limited = two([20] * 3, [40] * 3, max_steps=16, warmup_steps=0, **LIMITED)
    warm = two([40] * 3, [11] * 3, cache="warm", max_steps=8, warmup_steps=2, passes=3, **length)
    facts = facts_of(limited + warm)
    assert "What decides: warm, LMDB is 3.6 times [3.6, 3.6] as fast as PNG files" in headline(facts).answer
    first, second = recommend(facts)[:2]
    assert "use PNG files" in first.text
    assert "use LMDB" in second.text


def test_where_another_setting_decides_its_states_are_told_as_well() -> None:
    undecided = two([20, 30, 16], [22, 18, 25], workers=2, **LIMITED, readahead_kib=128)
    limited = two([20] * 3, [40] * 3, **LIMITED) + rounds("hdf5", [10, 60, 25], **LIMITED)
    warm = two([40] * 3, [11] * 3, cache="warm", compute="none", model="none")
    first, second, last = recommend(facts_of(undecided + limited + warm))[:3]
    assert first.rule.startswith("R9")
    assert ", limited to 128 MiB: PNG files: 2.00 [2.00, 2.00] times as fast as LMDB." in first.text
    assert ", warm: use LMDB. It is 3.6" in second.text
    assert last.rule.startswith("R0")


def test_who_beats_a_store_beats_those_that_it_beats() -> None:
    # LMDB and LevelDB never ran in the same round, but both ran beside HDF5.
    later = [dataclasses.replace(one, replicate=one.replicate + 3) for one in rounds("leveldb", [90] * 3)]
    records = rounds("hdf5", [60] * 6) + rounds("lmdb", [20] * 3) + later
    advice = rules_of(records)
    assert "use LMDB. It is 3.00 [" in advice["R2"]
    assert "the next, HDF5" in advice["R2"]


def test_nothing_measured_is_said() -> None:
    failed = make_record("lmdb", status=Status.FAILED, failure="no memory")
    assert headline(facts_of([failed])).answer == "Nothing was measured: every cell failed."


# The advice


def advice_of(records: list[Record]) -> dict[str, Advice]:
    return {one.rule[:2]: one for one in recommend(facts_of(records))}


def rules_of(records: list[Record]) -> dict[str, str]:
    return {rule: one.text for rule, one in advice_of(records).items()}


def test_the_fastest_is_advised_when_it_is_proven() -> None:
    records = rounds("png", [60, 61, 60]) + rounds("hdf5", [30, 30.1, 30.2]) + rounds("lmdb", [20, 20.1, 20])
    advice = rules_of(records)
    assert "use LMDB. It is 1.50 [" in advice["R2"]
    assert "the next, HDF5" in advice["R2"]
    assert "R4" not in advice, "no conversion was measured"


def test_it_does_not_matter_when_the_loop_is_proven_to_hardly_wait() -> None:
    records = rounds("png", [10.6] * 3, fetch_ms=0.5) + rounds("lmdb", [10.2] * 3, fetch_ms=0.1)
    advice = rules_of(records)
    assert (
        "it does not matter here: the loop waits less than 10% of its time with every store" in advice["R1"]
    )
    assert "R2" not in advice


def test_one_store_that_is_fed_does_not_make_all_of_them_fed() -> None:
    records = rounds("png", [14.0, 14.1, 14.0]) + rounds("lmdb", [10.2] * 3, fetch_ms=0.1)
    advice = rules_of(records)
    assert "R1" not in advice
    assert "use LMDB" in advice["R2"]


def test_a_loop_that_waits_little_on_average_is_not_proven_to_be_fed() -> None:
    assert "R1" not in rules_of(rounds("png", [10.1, 11.9, 10.3]) + rounds("lmdb", [10.2, 12.0, 10.1]))


def test_it_does_not_matter_when_every_two_stores_are_proven_equal() -> None:
    records = rounds("png", [20, 20.1, 20]) + rounds("hdf5", [20.1, 20, 20]) + rounds("lmdb", [20, 20, 20.1])
    advice = advice_of(records)
    assert "every two stores are proven to differ by less than 10%" in advice["R1"].text
    assert {one.kind for one in advice["R1"].claims} == {ClaimKind.EQUAL}
    assert "PNG files are the smallest on disk" in advice["R1"].text


def test_what_is_not_proven_is_unknown_with_the_rounds_needed() -> None:
    advice = rules_of(rounds("png", [20, 30, 16]) + rounds("lmdb", [22, 18, 25]))
    assert set(advice) == {"R0"}
    assert "which of PNG files, LMDB is the fastest cannot be told yet: " in advice["R0"]
    assert "more rounds would be enough to see a difference of 1.25 times, if there is one" in advice["R0"]


def test_a_store_is_never_advised_because_its_interval_is_wide() -> None:
    # LMDB 846 samples/s, JPEG files 569, and LMDB+JPEG 560 with a wide interval and the least space.
    records = rounds("lmdb", [20, 20.1, 20]) + rounds("jpeg", [29.8, 29.9, 29.8], bytes_on_disk=90)
    records += rounds("lmdb+jpeg", [30.2, 21.0, 43.0], bytes_on_disk=80)
    advice = rules_of(records)
    assert not {"R1", "R2", "R3"} & set(advice)
    assert "Which of LMDB, LMDB+JPEG (lossy) is the fastest cannot be told yet: " in advice["R0"]
    assert "warm: another store is proven faster than JPEG files (lossy). Which of" in advice["R0"]


def test_of_proven_equals_the_smallest_is_advised() -> None:
    slow, big = rounds("png", [90, 90, 91]), rounds("hdf5", [20, 20.1, 20], bytes_on_disk=900)
    small = rounds("lmdb", [20.1, 20, 20.05], bytes_on_disk=800)
    assert "of these LMDB is the smallest on disk" in rules_of(slow + big + small)["R3"]


def test_one_round_is_no_ground_for_advice() -> None:
    advice = recommend(facts_of(rounds("png", [60]) + rounds("lmdb", [20])))
    assert [one.rule[:2] for one in advice] == ["R0"]
    assert "at least 3 are needed" in advice[0].text


def test_decided_workers_and_memory_get_advice() -> None:
    records = rounds("png", [60, 61, 60]) + rounds("lmdb", [30, 30.1, 30])
    records += rounds("lmdb", [15, 15.1, 15], workers=2) + rounds("lmdb", [60, 60.2, 60], cache="cold")
    advice = rules_of(records)
    assert "with 2 workers it is 2.00 [" in advice["R6"]
    assert "times as fast as with 0" in advice["R6"]
    assert "2.00 [" in advice["R7"]


def test_workers_that_were_never_compared_are_not_called_equal() -> None:
    def of(workers: int, first: int = 0) -> list[Record]:
        return [
            make_record("lmdb", replicate=first + n, wait_ms=30 + n / 10, workers=workers) for n in range(4)
        ]

    records = rounds("png", [60, 61, 60, 60]) + of(0) + of(2)
    assert "more workers than 0 change the rate by less than 10%" in rules_of(records)["R6"]
    assert "R6" not in rules_of(records + of(4, first=4))


def test_undecided_workers_and_memory_get_none() -> None:
    lmdb = [
        make_record("lmdb", replicate=n, wait_ms=20, amplification=a) for n, a in enumerate((2.1, 1.2, 4))
    ]
    records = rounds("png", [60, 61, 60]) + lmdb
    records += rounds("lmdb", [25, 40, 28], workers=2) + rounds("lmdb", [25, 40, 28], cache="cold")
    advice = set(rules_of(records))
    assert "R2" in advice
    assert not {"R6", "R7", "R8"} & advice


@pytest.mark.parametrize(("times", "told"), [(2.3, True), (1.9, False)])
def test_amplification_is_told_above_two(times: float, told: bool) -> None:
    records = rounds("png", [60, 61, 60], amplification=times, cache="cold")
    records += rounds("lmdb", [30, 30.1, 30], cache="cold")
    assert ("R8" in rules_of(records)) is told


def test_memory_is_not_advised_where_warm_is_slower() -> None:
    warm = rounds("png", [60, 61, 60]) + rounds("lmdb", [30, 30.1, 30])
    assert "R7" not in rules_of(warm + rounds("lmdb", [15, 15.1, 15], cache="cold"))


@pytest.mark.parametrize("noise", [(1.0, 1.0, 1.0), (1.0, 1.3, 0.8), (0.97, 1.0, 1.02), (1.0, 1.001, 1.0)])
def test_no_two_sentences_of_a_page_contradict_each_other(noise: tuple[float, ...]) -> None:
    records = [
        record
        for backend, cost in (("png", 60), ("hdf5", 24), ("leveldb", 26), ("lmdb", 25))
        for record in rounds(
            backend, [cost * one for one in (noise if backend == "hdf5" else reversed(noise))]
        )
    ]
    cells = cells_of(records)
    said: list[Claim] = [*headline(derive(cells)).claims]
    said += [one for advice in recommend(derive(cells)) for one in advice.claims]
    assert said
    assert not [pair for pair in itertools.combinations(said, 2) if pair[0].contradicts(pair[1])]


# The paper


def test_the_papers_claims_stand_beside_what_was_measured() -> None:
    claims = {one.claim: one for one in then_and_now(facts_of(paper_records("cold") + paper_records("warm")))}
    slow = claims["On ImageNet, image files are much slower than LMDB"]
    assert slow.then == "more than 17 times"
    assert [one.where.split(", ")[-1] for one in slow.now] == ["cold start", "warm"]
    assert slow.now[0].figure.startswith("8.00 [")
    assert "3 of 3" not in claims["Key-value stores are reliable"].now[0].figure
    assert claims["Key-value stores are reliable"].now[0].figure.startswith("6 of 6 epochs")


def test_a_part_and_several_passes_are_not_called_every_sample_once() -> None:
    records = replicates("lmdb", [20.0, 21.0, 22.0, 23.0])
    for number, (unique, served) in enumerate([(4000, 4000), (1280, 1280), (160, 160), (4000, 40_000)]):
        coverage = records[number].coverage
        assert coverage is not None
        proof = dataclasses.replace(coverage, unique=unique, served=served, expected=served)
        records[number] = dataclasses.replace(records[number], coverage=proof)
    (claim,) = [
        one for one in then_and_now(facts_of(records)) if one.claim == "Key-value stores are reliable"
    ]
    assert claim.now[0].figure == (
        "4 of 4 epochs served exactly the samples of their plan, and no wrong pixel was found (1 served the whole"
        " dataset once; 2 served a part of the dataset, at most 32%; 1 served the whole dataset 10 times)"
    )


def test_a_claim_that_nothing_speaks_to_is_left_out() -> None:
    assert then_and_now(facts_of([make_record("png", dataset="mnist", size=None)])) == []
