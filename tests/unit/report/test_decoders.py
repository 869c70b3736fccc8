"""By how much a faster decoder closes the gap to raw pixels: said with its interval where it is proven, and only there."""

from pathlib import Path
from typing import Any

import pytest

from storebench.report.build import content_of
from storebench.report.cells import summarise
from storebench.report.claims import ClaimKind
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.page import PageContent
from storebench.report.texts.decoders import closing
from storebench.results import Record
from tests.support.planted import replicates

MS = {"lmdb": 10.0, "lmdb+jpeg": 110.0, "lmdb+jpeg:simplejpeg": 50.0, "lmdb+jpeg:opencv": 80.0}
"""Milliseconds of a step: simplejpeg closes 60% of the gap, OpenCV 30%."""

NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)


def with_steps(**changes: float) -> list[Record]:
    names = {
        "raw": "lmdb",
        "pillow": "lmdb+jpeg",
        "simplejpeg": "lmdb+jpeg:simplejpeg",
        "opencv": "lmdb+jpeg:opencv",
    }
    steps = MS | {names[name]: value for name, value in changes.items()}
    return [
        record
        for number, (backend, step_ms) in enumerate(steps.items())
        if step_ms
        for record in replicates(
            backend,
            # Rounds of different cells differ a little, so that no interval has a width of 0.
            [step_ms * NOISE[(number + turn) % len(NOISE)] for turn in range(6)],
            compute_ms=0.0,
            compute="none",
            model="none",
            cache="warm",
        )
    ]


def content(records: list[Record]) -> PageContent:
    return content_of([(record, Path("run/records.jsonl")) for record in records])


def facts(records: list[Record]) -> Facts:
    return derive(summarise(to_frame((record, Path("run/records.jsonl")) for record in records)))


def test_the_headline_says_what_each_decoder_closes() -> None:
    page = content(with_steps())
    [sentence] = [sentence for sentence in page.headline.sentences if "closes" in sentence.text]
    assert sentence.text.startswith(
        "A faster decoder closes a part of the gap from LMDB+JPEG (lossy) to raw pixels in LMDB: simplejpeg 60% ["
    )
    assert "], OpenCV 30% [" in sentence.text
    assert {claim.kind for claim in sentence.claims} == {ClaimKind.CLOSES}
    assert all(claim.decided and claim.fair for claim in sentence.claims)
    assert any(sentence.text in line for line in page.factors)


def test_a_share_is_taken_round_by_round_and_has_an_interval() -> None:
    found = facts(with_steps())
    shares = {
        one.subject.backend: one.figure
        for one in found.claims.found
        if one.kind is ClaimKind.CLOSES and one.figure
    }
    assert shares["lmdb+jpeg:simplejpeg"].mid == pytest.approx(0.6, abs=0.01)
    assert shares["lmdb+jpeg:opencv"].mid == pytest.approx(0.3, abs=0.02)
    low, high = shares["lmdb+jpeg:opencv"].lo, shares["lmdb+jpeg:opencv"].hi
    assert low is not None
    assert high is not None
    assert low < 0.3 < high
    alone = facts([one for one in with_steps() if one.cell.backend.name != "lmdb+jpeg:simplejpeg"])
    [single] = (one.figure for one in alone.claims.found if one.kind is ClaimKind.CLOSES)
    assert single is not None
    assert single.mid == shares["lmdb+jpeg:opencv"].mid
    assert (single.lo or 0.0) > low, "two shares of a panel hold at once, so each is wider"


def test_a_share_rests_on_the_comparison_of_the_two_decoders() -> None:
    found = facts(with_steps())
    for one in found.claims.found:
        if one.kind is ClaimKind.CLOSES:
            assert one.object is not None
            change = found.claims.between(one.subject, one.object)
            assert change is not None
            assert one.decision is change.decision is not None


def told(**changes: float) -> str:
    found = facts(with_steps(**changes))
    assert found.main is not None
    sentence = closing(found.main, found.claims)
    return "" if sentence is None else sentence.text


def test_a_decoder_that_is_not_proven_faster_is_said_to_be_so() -> None:
    assert told(opencv=110.5).endswith("]; not proven to: OpenCV.")
    assert told(opencv=112.0, simplejpeg=109.5) == (
        "No faster decoder is proven to close the gap from LMDB+JPEG (lossy) to raw pixels in LMDB: "
        "OpenCV, simplejpeg."
    )


@pytest.mark.parametrize("missing", ["raw", "pillow"])
def test_without_both_ends_of_a_gap_nothing_is_said(missing: str) -> None:
    without: dict[str, Any] = {missing: 0.0}
    assert told(**without) == ""


def test_where_jpeg_is_not_slower_than_raw_pixels_there_is_no_gap() -> None:
    assert told(raw=300.0) == ""
