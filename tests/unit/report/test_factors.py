"""Differences taken apart: both sides of a square, signed shares round by round, and conversions that pay."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench import stats
from storebench.report.cells import CellSummary, summarise
from storebench.report.claims import refusal
from storebench.report.factors import BreakEven, shares
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.texts.advice import recommend
from storebench.report.texts.papers import factor_sentence
from storebench.results import Record, Status
from storebench.runs.conversions import append_conversion
from storebench.settings.words import ComputeKind
from tests.support.planted import make_conversion, make_record, portion_of, replicates


def cells_of(records: list[Record], run: Path = Path("run")) -> list[CellSummary]:
    return summarise(to_frame((record, run / "records.jsonl") for record in records))


def facts_of(records: list[Record], run: Path = Path("run")) -> Facts:
    return derive(cells_of(records, run))


def pair(records: list[Record], slow: str = "png", fast: str = "lmdb") -> tuple[CellSummary, CellSummary]:
    cells = {cell.backend: cell for cell in cells_of(records)}
    return cells[slow], cells[fast]


# The square. Microseconds per sample: files cost 40 with raw pixels; PNG costs 100 in files, 300 in LMDB.

SQUARE_US = {"png": 240.0, "files+raw": 140.0, "lmdb+png": 400.0, "lmdb": 100.0}


def square(cache: str = "warm", **noise: tuple[float, ...]) -> list[Record]:
    return [
        record
        for backend, cost in SQUARE_US.items()
        for record in replicates(
            backend,
            [32e-3 * (cost + one) for one in noise.get(backend.replace("+", "_"), (0.0, 0.0, 0.0))],
            compute_ms=0.0,
            compute="none",
            cache=cache,
        )
    ]


def test_both_sides_of_a_square_are_shown_and_what_they_disagree_by() -> None:
    (found,) = facts_of(square()).squares
    sides = (
        found.whole,
        found.codec_in_files,
        found.codec_in_container,
        found.container_raw,
        found.container_encoded,
        found.interaction,
    )
    assert (found.slow.backend, found.fast.backend) == ("png", "lmdb")
    assert found.raw_files is not None
    assert found.encoded is not None
    assert (found.raw_files.backend, found.encoded.backend) == ("files+raw", "lmdb+png")
    assert [side and side.mid * 1e6 for side in sides] == pytest.approx([140, 100, 300, 40, -160, -200])
    sentence = factor_sentence(found).replace(".0", "")
    assert "PNG instead of raw pixels costs 100 [100, 100] in files; 300 [300, 300] in LMDB" in sentence
    assert "interaction -200 [-200, -200]" in sentence


def test_costs_of_a_single_round_are_told_without_intervals() -> None:
    (found,) = facts_of([one for one in square() if one.replicate == 0]).squares
    sentence = factor_sentence(found)
    assert "in microseconds per sample: 140 in all; " in sentence.replace(".0", "")
    assert "[" not in sentence


def test_each_side_has_the_interval_of_its_differences_round_by_round() -> None:
    # PNG files are 10, 20 and 30 slower than planted, raw files as much: paired, the codec's cost does not vary.
    slower = (10.0, 20.0, 30.0)
    (found,) = facts_of(square(png=slower, files_raw=slower)).squares
    codec, container = found.codec_in_files, found.container_encoded
    assert codec is not None
    assert container is not None
    assert (codec.lo, codec.hi) == pytest.approx((100e-6, 100e-6))
    assert container.mid == pytest.approx(-140e-6)
    assert container.hi is not None
    assert container.hi - container.mid > 50e-6, "wider than a single interval of three rounds: six figures"


def test_with_one_corner_missing_no_interaction_is_shown() -> None:
    (found,) = facts_of([r for r in square() if r.cell.backend.name != "files+raw"]).squares
    assert (found.codec_in_files, found.container_raw, found.interaction) == (None, None, None)
    assert found.codec_in_container is not None
    assert found.codec_in_container.mid == pytest.approx(300e-6)
    assert "in files" not in factor_sentence(found)


@pytest.mark.parametrize("options", [(), (("depth", "4"),)])
def test_no_corner_of_another_reader_stands_in_for_an_unmeasured_one(
    options: tuple[tuple[str, str], ...],
) -> None:
    plain = {"compute_ms": 0.0, "compute": "none", "cache": "warm", "reader_options": options}
    other = replicates("lmdb" if options else "lmdb:direct", [32e-3 * 60.0] * 3, **plain)
    squares = {one.fast.backend: one for one in facts_of(square() + other).squares}
    name = squares.keys() - {"lmdb"}
    assert len(name) == 1
    found = squares[name.pop()]
    assert squares["lmdb"].interaction is not None
    assert (found.codec_in_container, found.container_encoded, found.interaction) == (None, None, None)
    assert found.container_raw is not None
    assert found.container_raw.mid == pytest.approx(80e-6)


def test_without_a_corner_nothing_is_taken_apart() -> None:
    assert facts_of([r for r in square() if r.cell.backend.name in ("png", "lmdb")]).squares == ()


# Shares


def test_shares_are_signed_and_taken_round_by_round() -> None:
    decode, fetch = (40.0, 44.0, 36.0, 42.0), (5.0, 4.0, 6.0, 5.5)
    png = [
        make_record("png", replicate=n, wait_ms=d + f + 1, fetch_ms=f, decode_ms=d, prep_ms=1)
        for n, (d, f) in enumerate(zip(decode, fetch, strict=True))
    ]
    lmdb = [make_record("lmdb", replicate=n, wait_ms=10, fetch_ms=9, prep_ms=1) for n in range(4)]
    found = {share.part: share for share in shares(*pair(png + lmdb))}
    whole = np.array(decode) + np.array(fetch) + 1 - 10
    assert found["decoding"].share.mid == pytest.approx(np.mean(np.array(decode) / whole))
    assert found["decoding"].share.mid > 1
    assert found["fetching"].share.mid == pytest.approx(np.mean((np.array(fetch) - 9) / whole))
    assert found["fetching"].proven
    assert not found["preparing"].proven
    lo, hi = found["decoding"].share.lo, found["decoding"].share.hi
    interval = stats.mean_interval(np.array(decode) / whole, stats.ALPHA / 4)
    assert interval is not None
    assert (lo, hi) == pytest.approx((interval.low, interval.high)), "four parts hold together"
    assert lo is not None
    assert hi is not None
    assert lo < np.min(np.array(decode) / whole) < np.max(np.array(decode) / whole) < hi


def test_only_shares_whose_interval_leaves_out_zero_are_told() -> None:
    fetch = (12.0, 2.0, 9.0)
    png = [
        make_record("png", replicate=n, wait_ms=41 + one, fetch_ms=one, decode_ms=40, prep_ms=1)
        for n, one in enumerate(fetch)
    ]
    facts = facts_of(png + replicates("lmdb", [5.0] * 3, fetch_ms=4, prep_ms=1))
    sides = {cell.backend: cell for cell in facts.cells}
    claim = facts.claims.between(sides["png"], sides["lmdb"])
    assert claim is not None
    mids = {share.part: share.share.mid for share in shares(sides["png"], sides["lmdb"])}
    assert mids["fetching"] > 0.05
    assert [share.part for share in facts.claims.shares(claim)] == ["decoding"]


def test_with_workers_shares_are_of_the_producers_work() -> None:
    png = replicates("png", [20.0] * 3, workers=4, fetch_ms=10, decode_ms=70, prep_ms=1, handoff_ms=5)
    lmdb = replicates("lmdb", [2.0] * 3, workers=4, fetch_ms=20, decode_ms=0, prep_ms=1, handoff_ms=1)
    found = {share.part: share.share.mid for share in shares(*pair(png + lmdb))}
    assert found == pytest.approx({"decoding": 70 / 60, "fetching": -10 / 60, "preparing": 0.0})


# The break-even


def converted(run: Path, seconds: list[float], **changes: Any) -> None:
    for n, one in enumerate(seconds):
        append_conversion(run, make_conversion("lmdb", n, one, **changes))


def paid(records: list[Record], run: Path) -> list[BreakEven]:
    return list(facts_of(records, run).paying)


def steps(backend: str, step_ms: list[float], **changes: Any) -> list[Record]:
    fields = {"cache": "warm"} | changes
    return replicates(backend, [ms - 10 for ms in step_ms], **fields)


# 4,000 images in steps of 32: 125 steps. PNG 60 ms a step: 7.5 s; LMDB 20 ms: 2.5 s; saved 5 s an epoch.


def test_a_conversion_pays_after_its_own_time_over_what_it_saves(tmp_path: Path) -> None:
    converted(tmp_path, [12.0, 12.0, 12.0])
    (one,) = paid(steps("png", [60] * 3) + steps("lmdb", [20] * 3, build_s=1.0), tmp_path)
    assert one.saved_s.mid == pytest.approx(5.0)
    assert one.epochs is not None
    assert (one.epochs.mid, one.epochs.lo, one.epochs.hi) == pytest.approx((2.4, 2.4, 2.4))


def test_the_epochs_carry_both_uncertainties(tmp_path: Path) -> None:
    converted(tmp_path, [11.0, 12.0, 13.0, 12.0])
    (one,) = paid(steps("png", [58, 60, 62, 60]) + steps("lmdb", [20] * 4), tmp_path)
    assert one.epochs is not None
    assert one.epochs.n == 4
    assert one.convert_s.lo is not None
    assert one.convert_s.hi is not None
    assert one.saved_s.lo is not None
    assert one.saved_s.hi is not None
    assert one.epochs.lo == pytest.approx(one.convert_s.lo / one.saved_s.hi)
    assert one.epochs.hi == pytest.approx(one.convert_s.hi / one.saved_s.lo)
    assert one.epochs.hi > 1.1 * one.epochs.mid > 1.2 * (one.epochs.lo or 0)
    converted(tmp_path, [12.0])
    [again] = paid(steps("png", [58, 60, 62, 60]) + steps("lmdb", [20] * 4), tmp_path)
    assert again.epochs is not None
    assert (again.convert_s.n, again.saved_s.n, again.epochs.n) == (5, 4, 4), "those of the shorter side"


def test_a_saving_that_is_not_proven_pays_for_nothing(tmp_path: Path) -> None:
    converted(tmp_path, [12.0, 12.0, 12.0])
    (one,) = paid(steps("png", [30, 40, 26]) + steps("lmdb", [22, 28, 25]), tmp_path)
    assert one.epochs is None


def test_a_saving_that_the_page_does_not_call_proven_pays_for_nothing(tmp_path: Path) -> None:
    converted(tmp_path, [12.0, 12.0, 12.0])
    limit = {"cache": "limited", "memory_bytes": 2**20}
    moving = [
        dataclasses.replace(step, portion=portion_of(step, drift=1.5))
        for step in steps("lmdb", [20] * 3, **limit)
    ]
    (one,) = paid(steps("png", [60] * 3, **limit) + moving, tmp_path)
    assert one.saved_s.lo == pytest.approx(5.0)
    assert one.epochs is None


def why_not(records: list[Record], run: Path) -> str:
    """Return why nothing is said of the one conversion of a run."""
    facts = facts_of(records, run)
    (one,) = facts.paying
    told = any(advice.rule.startswith("R4") for advice in recommend(facts))
    reason = refusal(one, facts.ordered, facts.claims)
    assert told is not bool(reason)
    return reason


@pytest.mark.parametrize(("count", "words"), [(2, "fewer than 3 conversions"), (3, "")])
def test_two_conversions_have_no_interval_and_prove_nothing(tmp_path: Path, count: int, words: str) -> None:
    converted(tmp_path, [12.0, 12.1, 12.2][:count])
    assert why_not(steps("png", [60] * 3) + steps("lmdb", [20] * 3), tmp_path).startswith(words)


@pytest.mark.parametrize(("step_ms", "told"), [((60, 66, 54), True), ((60, 69, 51), False)])
def test_epochs_whose_interval_spans_a_factor_of_three_are_not_told(
    tmp_path: Path, step_ms: tuple[float, ...], told: bool
) -> None:
    converted(tmp_path, [12.0] * 3)
    records = steps("png", list(step_ms)) + steps("lmdb", [5 + one / 4 for one in step_ms])
    (one,) = paid(records, tmp_path)
    assert one.epochs is not None
    assert (one.epochs.hi or 0.0) < 6 * (one.epochs.lo or 0.0)
    assert (why_not(records, tmp_path) == "") is told


@pytest.mark.parametrize(("png_ms", "gains"), [(11.1, False), (11.2, True)])
def test_a_conversion_for_a_loop_that_is_fed_already_pays_for_nothing(
    tmp_path: Path, png_ms: float, gains: bool
) -> None:
    converted(tmp_path, [12.0] * 3)
    records = steps("png", [png_ms] * 3) + steps("lmdb", [10.001] * 3)
    words = "" if gains else "training gains nothing from it on this machine"
    assert why_not(records, tmp_path) == words


@pytest.mark.parametrize(("png_ms", "gains"), [(10.0, False), (40.0, True)])
def test_faster_loading_pays_for_nothing_where_training_is_as_fast(
    tmp_path: Path, png_ms: float, gains: bool
) -> None:
    converted(tmp_path, [12.0] * 3)
    alone = {"compute": "none", "compute_ms": 0.0, "cache": "warm"}
    loading = replicates("png", [60] * 3, **alone) + replicates("lmdb", [20] * 3, **alone)
    training = replicates("png", [png_ms] * 3, cache="warm") + replicates("lmdb", [10.0] * 3, cache="warm")
    facts = facts_of(loading + training, tmp_path)
    (one,) = (even for even in facts.break_evens if even.cell.cell.compute.kind is ComputeKind.NONE)
    words = "" if gains else "training gains nothing from it on this machine"
    assert refusal(one, facts.ordered, facts.claims) == words


def test_a_conversion_that_was_not_measured_is_not_spoken_of(tmp_path: Path) -> None:
    records = steps("png", [60] * 3) + steps("lmdb", [20] * 3, build_s=12.0)
    assert paid(records, tmp_path) == []
    assert "onvert" not in " ".join(advice.text for advice in recommend(facts_of(records, tmp_path)))


@pytest.mark.parametrize(
    "other",
    [
        {"target": "hdf5+raw"},
        {"size": 5000},
        {"source": "files+jpeg"},
        {"status": Status.FAILED},
        {"limit": 9},
    ],
)
def test_conversions_that_failed_or_are_of_other_stores_do_not_count(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    converted(tmp_path, [12.0] * 3, **other)
    assert paid(steps("png", [60] * 3) + steps("lmdb", [20] * 3), tmp_path) == []


def test_the_advice_names_the_conversion_its_saving_and_the_epochs(tmp_path: Path) -> None:
    converted(tmp_path, [12.0, 12.1, 12.2])
    with (tmp_path / "conversions.jsonl").open("a") as file:
        file.write(json.dumps({"schema_version": 99}) + "\n" + '{"half a li')
    advice = recommend(facts_of(steps("png", [60] * 3) + steps("lmdb", [20] * 3), tmp_path))
    (text,) = [one.text for one in advice if one.rule.startswith("R4")]
    assert text.startswith("Converting PNG files into LMDB took 12.1 [")
    assert "it pays after 2.42 [" in text


def test_a_cold_rate_pays_for_no_conversion(
    tmp_path: Path,
) -> None:
    converted(tmp_path, [12.0, 12.0, 12.0])
    cold = steps("png", [90] * 3, cache="cold") + steps("lmdb", [20] * 3, cache="cold")
    assert paid(cold, tmp_path) == []
    assert facts_of(cold, tmp_path).break_evens == ()
    assert not any(advice.rule.startswith("R4") for advice in recommend(facts_of(cold, tmp_path)))
    limit = {"cache": "limited", "memory_bytes": 2**20}
    for state, words in ({"cache": "warm"}, "warm"), (limit, "limited to 1.00 MiB"):
        whole = steps("png", [60] * 3, **state) + steps("lmdb", [20] * 3, **state)
        advice = recommend(facts_of(cold + whole, tmp_path))
        (text,) = [one.text for one in advice if one.rule.startswith("R4")]
        assert f"s per epoch ({words}): it pays after 2.40 [" in text
