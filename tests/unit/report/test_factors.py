"""Differences taken apart: both sides of a square, signed shares round by round, and conversions that pay."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench import stats
from storebench.report.cells import CellSummary, summarise
from storebench.report.factors import shares
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.texts.papers import factor_sentence
from storebench.results import Record
from tests.support.planted import make_record, replicates


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


def steps(backend: str, step_ms: list[float], **changes: Any) -> list[Record]:
    fields = {"cache": "warm"} | changes
    return replicates(backend, [ms - 10 for ms in step_ms], **fields)


# 4,000 images in steps of 32: 125 steps. PNG 60 ms a step: 7.5 s; LMDB 20 ms: 2.5 s; saved 5 s an epoch.
