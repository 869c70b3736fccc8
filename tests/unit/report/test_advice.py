"""The words of the advice: where it holds, which stores it names, and what it asserts."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import summarise
from storebench.report.claims import ClaimKind
from storebench.report.decisions import Topic
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.texts.advice import recommend
from storebench.report.texts.choosing import Advice
from storebench.report.texts.headline import headline
from storebench.results import Record
from tests.support.planted import replicates

EQUAL = ([20.0, 20.1, 20.0], [20.1, 20.0, 20.0])
NOISY = ([20.0, 30.0, 16.0], [22.0, 18.0, 25.0])


def facts_of(records: list[Record], run: Path = Path("run")) -> Facts:
    return derive(summarise(to_frame((record, run / "records.jsonl") for record in records)))


def rounds(backend: str, step_ms: Sequence[float], **changes: Any) -> list[Record]:
    """Plant a cell whose steps take so long: 10 ms of compute, the rest data wait."""
    return replicates(backend, [ms - 10 for ms in step_ms], **changes)


def two(step_ms: tuple[list[float], list[float]], **changes: Any) -> list[Record]:
    return rounds("png", step_ms[0], **changes) + rounds("lmdb", step_ms[1], **changes)


def advice_of(records: list[Record], run: Path = Path("run")) -> dict[str, Advice]:
    return {advice.rule[:2]: advice for advice in recommend(facts_of(records, run))}


WHERE = "ImageNet, 4,000 images, 0 workers, batch 32, CaffeNet, on the CPU, warm"


def test_every_choice_says_where_it_holds() -> None:
    fed = two(([10.6] * 3, [10.2] * 3), fetch_ms=0.1)
    told = {
        "R0": two(NOISY),
        "R1": two(EQUAL),
        "R2": two(([60.0] * 3, [20.0] * 3)),
        "R3": two(EQUAL) + rounds("hdf5", [60.0] * 3),
    }
    for rule, records in told.items():
        assert advice_of(records)[rule].text.startswith(f"{WHERE}: "), rule
    assert advice_of(fed)["R1"].text.startswith(f"{WHERE}: it does not matter here: the loop waits")


def test_another_setting_is_told_with_what_distinguishes_it() -> None:
    decided = two(([60.0] * 3, [20.0] * 3), seed=7)
    first = recommend(facts_of(two(NOISY) + decided))[0]
    assert first.rule == "R9 another setting"
    assert (
        first.text
        == f"{WHERE.replace('warm', 'seed 7, warm')}: LMDB: 3.00 [3.00, 3.00] times as fast as PNG files."
    )


def test_equality_in_another_setting_is_told_as_such() -> None:
    equal = two(EQUAL, batch_size=64)
    first = recommend(facts_of(two(NOISY) + equal))[0]
    assert first.rule == "R9 another setting"
    assert first.text == (
        f"{WHERE.replace('batch 32', 'batch 64')}: LMDB and PNG files are proven to differ by less than 10%."
    )
    assert [claim.kind for claim in first.claims] == [ClaimKind.EQUAL]


def test_the_bottleneck_is_told_of_the_chosen_store_with_its_claims() -> None:
    png = two(([20.0] * 3, [60.0] * 3), cache="warm", compute_ms=2.0, fetch_ms=9.0)
    advice = advice_of(png)["R5"]
    assert advice.text.startswith("PNG files are reader-bound: ")
    [limit] = advice.claims
    assert (limit.kind, limit.subject.backend, limit.part) == (ClaimKind.LIMITED, "png", "reader-bound")
    lmdb = advice_of(two(([60.0] * 3, [20.0] * 3), cache="warm", compute_ms=2.0, fetch_ms=9.0))["R5"]
    assert lmdb.text.startswith("LMDB is reader-bound: ")
    assert [claim.subject.backend for claim in lmdb.claims] == ["lmdb"]


def test_lossy_stores_are_named_among_equals() -> None:
    lossy = rounds("png", EQUAL[0]) + rounds("jpeg", EQUAL[1], bytes_on_disk=90)
    text = advice_of(lossy)["R1"].text
    assert text.endswith("JPEG files (lossy) are the smallest on disk. Lossy among them: JPEG files.")
    assert "Lossy among them" not in advice_of(two(EQUAL))["R1"].text
    all_lossy = rounds("jpeg", EQUAL[0]) + rounds("lmdb+jpeg", EQUAL[1])
    assert "lossy" not in advice_of(all_lossy)["R1"].text.lower()


def test_of_equals_the_smallest_is_told_with_its_size() -> None:
    slow = rounds("hdf5", [60.0] * 3)
    advice = advice_of(
        rounds("png", EQUAL[0], bytes_on_disk=3 << 20)
        + rounds("lmdb", EQUAL[1], bytes_on_disk=5 << 20)
        + slow
    )["R3"]
    assert advice.text == (
        f"{WHERE}: PNG files, LMDB are proven to differ by less than 10% from the first; of these PNG files are the"
        " smallest on disk (3.00 MiB). Use it."
    )
    assert {claim.kind for claim in advice.claims} == {ClaimKind.EQUAL, ClaimKind.FASTER}
    readers = [
        *rounds("lmdb", EQUAL[0], reader_options=(("readahead", "off"),), bytes_on_disk=3 << 20),
        *rounds("lmdb", EQUAL[1], bytes_on_disk=3 << 20),
    ]
    assert advice_of(readers + slow)["R3"].text.endswith(
        "from the first; they take the same space on disk (3.00 MiB), and LMDB is the one with the fewest options. Use it."
    )
    lossy = rounds("jpeg", EQUAL[0], bytes_on_disk=1 << 20)
    lossy += rounds("lmdb+jpeg", EQUAL[1], bytes_on_disk=2 << 20)
    assert advice_of(rounds("png", [60.0] * 3) + lossy)["R3"].text == (
        f"{WHERE}: JPEG files (lossy), LMDB+JPEG (lossy) are proven to differ by less than 10% from the first; of these JPEG"
        " files (lossy) are the smallest on disk (1.00 MiB). Use it. Its pixels are not those of the originals: the codec"
        " loses some."
    )


def test_a_lossy_store_that_is_faster_is_told_beside_the_choice() -> None:
    records = two(([60.0] * 3, [40.0] * 3)) + rounds("jpeg", [20.0] * 3)
    advice = advice_of(records)["R2"]
    assert "use LMDB. It is 1.50 [1.50, 1.50] times as fast as the next, PNG files." in advice.text
    assert advice.text.endswith(
        " If losing pixels is acceptable: JPEG files (lossy), 2.00 [2.00, 2.00] times as fast as LMDB."
    )
    assert {claim.kind for claim in advice.claims} == {ClaimKind.FASTER}
    equal = advice_of(two(EQUAL) + rounds("jpeg", [11.0] * 3))["R1"]
    assert "every two lossless stores are proven to differ by less than 10%" in equal.text
    assert " If losing pixels is acceptable: JPEG files (lossy), 1.8" in equal.text
    assert [claim.kind for claim in equal.claims] == [ClaimKind.EQUAL, ClaimKind.FASTER]
    fed = advice_of(two(([10.6] * 3, [10.2] * 3), fetch_ms=0.1) + rounds("jpeg", [10.0] * 3))["R1"]
    assert fed.text.endswith(" the smallest on disk."), "a loop that hardly waits gains nothing"
    only = advice_of(rounds("png", [60.0] * 3) + rounds("jpeg", [20.0] * 3))["R2"].text
    assert "use JPEG files (lossy). They are 3.00 [" in only
    assert only.endswith(" Its pixels are not those of the originals: the codec loses some.")
    assert "acceptable" not in only


def test_stores_that_never_met_in_a_round_are_said_to_have_not() -> None:
    later = [dataclasses.replace(one, replicate=one.replicate + 3) for one in rounds("lmdb", [20.0] * 3)]
    text = advice_of(rounds("png", [60.0] * 3) + later)["R0"].text
    assert text.endswith(
        "which of PNG files, LMDB is the fastest cannot be told yet: some of them never ran in the same round."
    )


def test_an_open_choice_rests_on_what_is_beaten_and_on_what_is_open() -> None:
    records = rounds("lmdb", [20, 20.1, 20]) + rounds("jpeg", [29.8, 29.9, 29.8])
    claims = advice_of(records + rounds("lmdb+jpeg", [30.2, 21.0, 43.0]))["R0"].claims
    told = [(claim.kind, {claim.subject.backend, claim.object and claim.object.backend}) for claim in claims]
    assert told == [
        (ClaimKind.FASTER, {"lmdb", "jpeg"}),
        (ClaimKind.UNDECIDED, {"lmdb", "lmdb+jpeg"}),
    ]


def test_advice_on_workers_rests_on_the_comparisons_that_it_tells() -> None:
    base = rounds("png", [60.0] * 3) + rounds("lmdb", [30.0, 30.1, 30.0])
    faster = advice_of(base + rounds("lmdb", [15.0, 15.1, 15.0], workers=2))["R6"]
    [claim] = faster.claims
    assert (claim.kind, claim.topic, claim.subject.cell.workers) == (ClaimKind.FASTER, Topic.WORKERS, 2)
    equal = advice_of(base + rounds("lmdb", [30.1, 30.0, 30.0], workers=2))["R6"]
    assert [(claim.kind, claim.topic) for claim in equal.claims] == [(ClaimKind.EQUAL, Topic.WORKERS)]


def test_what_keeps_a_choice_open_is_told_before_the_number_of_rounds() -> None:
    text = advice_of(two(NOISY, cache="cold"))["R0"].text
    assert "a cold start ranks no stores" in text
    assert "more round" not in text


# The headline


def test_an_undecided_comparison_is_told_after_one_that_is_decided() -> None:
    records = two(([20.0, 20.1, 20.0], [16.0, 25.0, 19.5])) + rounds("hdf5", [90.0] * 3)
    answer = headline(facts_of(records)).answer
    assert ": PNG files feed CaffeNet" in answer
    assert "as fast as HDF5. There: LMDB and PNG files cannot be told apart yet" in answer
    decided = headline(facts_of(two(([60.0] * 3, [20.0] * 3)) + rounds("hdf5", [90.0] * 3))).answer
    assert "There: " not in decided


@pytest.mark.parametrize(("backend", "words"), [("lmdb", "LMDB gives"), ("png", "PNG files give")])
def test_a_single_store_is_told_with_its_rate(backend: str, words: str) -> None:
    records = rounds(backend, [20.0] * 3)
    told = f"On this machine, warm, ImageNet, 4,000 images: {words} "
    rate = "1,600 [1,600, 1,600] samples/s; there is nothing to compare it with."
    assert headline(facts_of(records)).answer.startswith(told + rate)


def test_two_stores_that_never_met_in_a_round_have_no_ratio() -> None:
    later = [dataclasses.replace(one, replicate=one.replicate + 3) for one in rounds("lmdb", [20.0] * 3)]
    answer = headline(facts_of(rounds("png", [60.0] * 3) + later)).answer
    assert answer.startswith(
        "On this machine, warm, ImageNet, 4,000 images: LMDB and PNG files never ran in the same round, so no ratio is"
        " given."
    )


def test_an_emulated_accelerator_is_not_called_by_the_networks_name() -> None:
    emulated: dict[str, Any] = {"compute": "emulated:10", "model": "none"}
    answer = headline(facts_of(two(([60.0] * 3, [20.0] * 3), **emulated))).answer
    assert "LMDB feeds an emulated accelerator 3.0 times [3.0, 3.0] as fast as PNG files" in answer
    assert "(compute EMULATED by a sleep of 10 ms)" in answer
    turned = headline(facts_of(two(([20.0] * 3, [60.0] * 3), **emulated))).answer
    assert "PNG files feed an emulated accelerator 3.0 times" in turned


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "Training CaffeNet, warm, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times"),
        ({"cache": "warm"}, "Training CaffeNet, warm, ImageNet, 4,000 images: LMDB feeds CaffeNet 3.0 times"),
        (
            {"model": "squeezenet"},
            "Training squeezenet, warm, ImageNet, 4,000 images: LMDB feeds squeezenet 3.0 times",
        ),
        (
            {"model": "tiny"},
            "Training the tiny network, warm, ImageNet, 4,000 images: LMDB feeds the tiny network 3.0 times",
        ),
        ({"dataset": "mnist", "size": None}, ""),
    ],
)
def test_training_of_the_same_images_is_told_beside_loading(changes: dict[str, Any], told: str) -> None:
    memory: dict[str, Any] = {"cache": "limited", "memory_bytes": 128 * 2**20}
    loading = two(([60.0] * 3, [24.0] * 3), compute="none", model="none", **memory)
    answer = headline(facts_of(loading + two(([60.0] * 3, [20.0] * 3), **changes))).answer
    assert "reader and decoder alone: LMDB loads 2.5 times" in answer
    if told:
        assert told in answer
    else:
        assert "Training" not in answer


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("none", "Reading and decoding alone"),
        ("caffenet", "With nothing to do but the network's augmentation"),
    ],
)
def test_loading_alone_is_told_with_the_work_that_is_left(model: str, words: str) -> None:
    loading = two(([60.0] * 3, [24.0] * 3), compute="none", model=model)
    answer = headline(facts_of(two(([60.0] * 3, [20.0] * 3)) + loading)).answer
    assert f" {words}: LMDB loads 2.5 times [2.5, 2.5] as fast as PNG files." in answer
    alone = headline(facts_of(loading)).answer
    drained = {"none": "reader and decoder alone", "caffenet": "with the network's augmentation alone"}
    assert f"warm, ImageNet, 4,000 images, {drained[model]}: LMDB loads 2.5 times" in alone
