"""The sentence beside each plot, and what a plot is drawn from, checked with planted records."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.report.ceilings import ceilings
from storebench.report.cells import CellSummary, summarise
from storebench.report.claims import Claim, ClaimKind, reads_device
from storebench.report.facts import derive
from storebench.report.frame import to_frame
from storebench.report.intervals import Estimate
from storebench.report.plots.amplification import read_answer
from storebench.report.plots.container_codec import best_times, codec_answer, crossed
from storebench.report.plots.curve import reading
from storebench.report.plots.loss import loss_answer
from storebench.report.plots.selection import Selection
from storebench.report.plots.size import size_answer
from storebench.report.plots.steady_state import limit_frac
from storebench.report.plots.step_lines import MOST_POINTS
from storebench.report.plots.step_time import step_answer
from storebench.report.plots.style import backend_look, shown_end, whiskers
from storebench.report.plots.wait_distribution import worst_answer
from storebench.report.plots.wait_over_epoch import tail_answer, thinned
from storebench.report.plots.workers import workers_answer
from storebench.report.texts.roofline import roofline_answer
from storebench.report.texts.verdicts import limit_figure
from storebench.results import Ceilings, Counters, Digests, Percentiles, Record
from storebench.settings.words import CacheState
from tests.support.planted import make_record, portion_of, replicates


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def workers(backend: str, fewer_ms: float, more_ms: float, count: int = 3) -> list[Record]:
    """Plant a cell without workers, and one with four whose steps take another time."""
    pairs = ((0, fewer_ms), (4, more_ms))
    return [record for number, ms in pairs for record in replicates(backend, [ms] * count, workers=number)]


def test_workers_that_help_are_counted_and_the_largest_gain_is_named() -> None:
    cells = cells_of(*workers("png", 90.0, 15.0), *workers("lmdb", 10.0, 10.0))
    told = workers_answer(cells, derive(cells).claims)
    assert told.text == (
        "1 of 2 backends is proven to gain from more workers; the largest gain is 4.00 [4.00, 4.00] times with 4"
        " workers instead of 0 (PNG files)."
    )
    assert [claim.kind for claim in told.claims] == [ClaimKind.FASTER]


@pytest.mark.parametrize("rounds", [1, 3])
def test_workers_that_are_not_proven_to_help_are_said_not_to(rounds: int) -> None:
    cells = cells_of(
        *workers("lmdb", 10.0, 9.5 if rounds > 1 else 2.0, rounds), *workers("png", 90.0, 90.0, rounds)
    )
    told = workers_answer(cells, derive(cells).claims)
    assert told.text == "No backend is proven to gain from more workers than 0."


def test_the_largest_store_is_held_against_the_smallest() -> None:
    cells = cells_of(
        make_record("png", bytes_on_disk=400),
        make_record("hdf5", bytes_on_disk=900),
        make_record("lmdb", bytes_on_disk=1000),
    )
    facts = derive(cells)
    (largest,) = facts.claims.each(ClaimKind.LARGER, cells)
    assert size_answer(largest).text == "LMDB takes 2.50 times the space of PNG files."


def test_amplification_is_told_from_the_least_to_the_most() -> None:
    cells = cells_of(
        make_record("png", amplification=1.1, cache="cold"),
        make_record("lmdb", amplification=8.0, cache="cold"),
    )
    found = derive(cells).claims.each(ClaimKind.AMPLIFIED, cells)
    assert read_answer(found).text == (
        "The device delivered between 1.10 times (PNG files) and 8.00 times (LMDB) the requested bytes."
    )


def test_an_amplification_that_all_share_is_told_once() -> None:
    cells = cells_of(
        make_record("png", amplification=1.02, cache="cold"),
        make_record("lmdb", amplification=1.02, cache="cold"),
    )
    found = derive(cells).claims.each(ClaimKind.AMPLIFIED, cells)
    assert (
        read_answer(found).text == "With every backend, the device delivered 1.02 times the requested bytes."
    )


def test_only_cells_that_read_a_device_have_an_amplification() -> None:
    cells = cells_of(
        make_record("png", cache="cold"),
        make_record("lmdb", cache="warm"),
        make_record("memory:native"),
        make_record("null"),
        make_record("hdf5", counters=Counters()),
    )
    assert [cell.backend for cell in cells if reads_device(cell)] == ["png"]


def test_the_waits_of_the_best_and_the_worst_backend_are_told() -> None:
    cells = cells_of(
        make_record("png", wait_ms=30.0), make_record("lmdb", wait_ms=2.5), make_record("hdf5", wait_ms=10.0)
    )
    assert step_answer(cells) == "With PNG files the loop waits 75% of its time, with LMDB 20%."
    assert step_answer(cells[:1]) == "With PNG files the loop waits 75% of its time."
    assert step_answer([]) == ""


def test_a_loop_that_computes_nothing_is_told_by_what_it_waits_for() -> None:
    png = make_record("png", compute="none", compute_ms=0.0, wait_ms=40.0, fetch_ms=9.0, decode_ms=30.0)
    lmdb = make_record("lmdb", compute="none", compute_ms=0.0, wait_ms=8.0, fetch_ms=6.7)
    assert step_answer(cells_of(png, lmdb)) == (
        "The loop computes nothing and waits for the producers: decode is 75% of their work with PNG files, and fetch is"
        " 87% of their work with LMDB."
    )


def test_of_few_steps_the_longest_wait_is_told_and_not_one_in_a_hundred() -> None:
    long = Percentiles(p50=1, p95=2, p99=3_000_000, max=4_000_000)
    cells = cells_of(make_record("png", steps=24, data_wait_ns=long))
    assert worst_answer(cells) == "The longest of 24 waits took 4.00 ms with PNG files."
    many = cells_of(make_record("png", steps=100, data_wait_ns=long))
    assert worst_answer(many) == "One step in a hundred waits at least 3.00 ms with PNG files."


def test_medians_beside_the_lines_of_one_replicate_are_called_so() -> None:
    long = Percentiles(p50=1_000_000, p95=2, p99=3_000_000, max=4_000_000)
    records = [make_record("png", steps=24, data_wait_ns=long, replicate=number) for number in range(5)]
    records += [make_record("lmdb", steps=24, data_wait_ns=long, replicate=number) for number in range(3)]
    cells = cells_of(*records)
    medians = " (medians of 3 to 5 replicates; the lines are of the first)."
    assert worst_answer(cells).endswith(f" with LMDB{medians}")
    assert tail_answer(spikes(cells)).text.endswith(f" with LMDB{medians}")
    assert Selection(facts=derive(cells)).step_note.endswith(". Lines: the first replicate of each")
    assert "replicate" not in Selection(facts=derive(cells_of(records[0]))).step_note


def test_the_share_of_decoding_is_one_figure_wherever_it_is_told() -> None:
    alone: dict[str, Any] = {"compute": "none", "compute_ms": 0.0, "workers": 2, "model": "none"}
    parts: dict[str, Any] = {"fetch_ms": 4.0, "decode_ms": 30.0, "prep_ms": 3.0, "handoff_ms": 0.6}
    cells = cells_of(*(make_record("png", wait_ms=40.0, replicate=n, **parts, **alone) for n in range(5)))
    facts = derive(cells)
    told = "81% of the producers' work"
    assert told in (roofline_answer(facts.rooflines) or "")
    assert told in limit_figure(facts.verdicts[cells[0].key])
    assert "decode is 81% of their work" in step_answer(cells)


def spikes(cells: list[CellSummary]) -> list[Claim]:
    return derive(cells).claims.each(ClaimKind.SPIKE, cells)


def waiting(backend: str, p50_ms: float, p99_ms: float, max_ms: float) -> Record:
    p50, p99, longest = (round(1e6 * one) for one in (p50_ms, p99_ms, max_ms))
    return make_record(backend, data_wait_ns=Percentiles(p50=p50, p95=p99, p99=p99, max=longest))


def test_spikes_are_told_as_multiples_of_the_median_wait() -> None:
    cells = cells_of(
        waiting("png", 10.0, 12.0, 20.0), waiting("lmdb", 1.0, 5.0, 50.0), waiting("hdf5", 0.0, 0.0, 1.0)
    )
    assert tail_answer(spikes(cells)).text == (
        "The longest wait of an epoch is 2.00 times the median one with PNG files, and 50.0 times with LMDB."
    )
    nothing = tail_answer(spikes(cells[1:2])).text
    assert nothing.startswith("The waits are too short"), "a median of nothing has no multiple"
    assert (
        worst_answer(cells)
        == "One step in a hundred waits at least 0 ns with HDF5 and 12.0 ms with PNG files."
    )
    assert worst_answer([]) == ""


def trained(backend: str, loss: str | None, **changes: Any) -> Record:
    return make_record(backend, digests=Digests(order="bb", loss=loss), **changes)


def test_equal_losses_of_lossless_backends_are_no_effect_of_the_format() -> None:
    same = cells_of(trained("png", "cc"), trained("lmdb", "cc"), trained("jpeg", "dd"))
    assert loss_answer(same) == "No: the losses of 2 lossless backends are equal bit by bit at every step."
    assert loss_answer(cells_of(trained("png", "cc"), trained("lmdb", "dd"))).startswith(
        "Yes, and it should not"
    )
    next_round = (trained("png", "ee", replicate=1), trained("lmdb", "ee", replicate=1))
    rounds = cells_of(trained("png", "cc"), trained("lmdb", "cc"), *next_round)
    assert loss_answer(rounds) == "No: the losses of 2 lossless backends are equal bit by bit at every step."


def test_losses_of_one_backend_are_not_compared() -> None:
    assert loss_answer(cells_of(trained("lmdb", "cc"))) == "Unknown: LMDB alone was trained."
    lossy = cells_of(trained("lmdb", "cc"), trained("jpeg", "dd"))
    assert loss_answer(lossy) == "Unknown: no two of these backends serve the same pixels."


def test_losses_of_original_files_are_compared_among_themselves() -> None:
    files = [trained(name, "dd") for name in ("original", "lmdb+original")]
    assert loss_answer(cells_of(*files)) == (
        "No: the losses of 2 backends of original files are equal bit by bit at every step."
    )
    both = cells_of(trained("png", "cc"), trained("lmdb", "cc"), *files, trained("original?scale=dct", "ee"))
    assert loss_answer(both) == (
        "No: the losses of 2 lossless backends and of 3 backends of original files are equal bit by bit at every step."
    )
    differing = cells_of(*files, trained("hdf5+original", "ee"))
    assert loss_answer(differing).startswith("Yes, and it should not")


def test_losses_of_another_device_need_not_be_equal() -> None:
    cells = cells_of(trained("png", "cc", device="cuda"), trained("lmdb", "dd", device="cuda"))
    assert loss_answer(cells).startswith("The curves lie together; on this device")


def timed(backend: str, step_ms: float, **changes: Any) -> Record:
    return make_record(backend, wait_ms=step_ms - 10, cache="warm", **changes)


def test_the_fastest_reader_stands_for_a_container_and_codec() -> None:
    times = best_times(cells_of(timed("lmdb", 20.0), timed("lmdb:direct", 16.0), timed("png", 64.0)))
    assert times == pytest.approx({("lmdb", "raw"): 0.5e-3, ("files", "png"): 2e-3})


def test_codec_and_container_are_told_by_the_largest_proven_factor() -> None:
    planted = {"png": 60.0, "files+raw": 20.0, "lmdb+png": 50.0, "lmdb": 12.0}
    cells = cells_of(*(timed(name, ms, replicate=n) for name, ms in planted.items() for n in range(3)))
    assert crossed(cells)
    told = codec_answer(cells, derive(cells).claims)
    assert told.text == (
        "Within one container the codec changes the time by up to 4.17 [4.17, 4.17] times (LMDB+PNG against LMDB);"
        " within one codec the container changes the time by up to 1.67 [1.67, 1.67] times (raw files against LMDB)."
    )
    once = cells_of(*(timed(name, ms) for name, ms in planted.items()))
    assert codec_answer(once, derive(once).claims).text == (
        "Within one container no difference by the codec is proven;"
        " within one codec no difference by the container is proven."
    )


@pytest.mark.parametrize("backends", [(), ("png", "lmdb"), ("lmdb", "lmdb+png"), ("lmdb", "hdf5")])
def test_a_row_or_a_column_alone_is_not_crossed(backends: tuple[str, ...]) -> None:
    assert not crossed(cells_of(*map(make_record, backends)))


def test_a_ceiling_is_the_highest_rate_of_any_replicate() -> None:
    measured = [
        Ceilings(
            copy_ceiling_samples_per_s=copied,
            device_random_1_bytes_per_s=10.0 * 196_608,
            device_random_16_bytes_per_s=50.0 * 196_608,
            device_best_bytes_per_s=best * 196_608,
        )
        for copied, best in ((4000.0, 80.0), (5000.0, 70.0))
    ]
    records = [make_record("lmdb", replicate=n, ceilings=one, cache="cold") for n, one in enumerate(measured)]
    null = make_record("null", wait_ms=0.0, fetch_ms=0.0, prep_ms=0.0)
    found = ceilings(cells_of(*records, null))
    assert found == pytest.approx(
        {
            "compute alone": 3200.0,
            "one copying thread": 5000.0,
            "device at its best": 80.0,
            "device, one read per sample (a yardstick)": 50.0,
        }
    )
    assert set(ceilings(cells_of(make_record("png", ceilings=Ceilings()))).values()) == {None}
    warm = ceilings(cells_of(*(make_record("lmdb", cache="warm", ceilings=one) for one in measured[:1])))
    assert {name: rate for name, rate in warm.items() if rate} == {"one copying thread": 4000.0}


def test_a_limit_is_a_share_of_the_store() -> None:
    limit: dict[str, Any] = {"cache": "limited", "memory_bytes": 250, "bytes_on_disk": 1000}
    (limited,) = cells_of(make_record("lmdb", **limit))
    (cold,) = cells_of(make_record("lmdb"))
    assert limit_frac(limited) == pytest.approx(0.25)
    assert limit_frac(cold) is None


def test_only_cells_that_read_their_store_in_a_state_have_a_curve() -> None:
    cells = cells_of(
        make_record("lmdb", cache="cold"), make_record("png"), make_record("memory:native", cache="cold")
    )
    assert [cell.backend for cell in reading(cells, CacheState.COLD)] == ["lmdb"]
    assert reading(cells, CacheState.WARM) == []


def test_a_backend_looks_like_its_format_and_its_codec() -> None:
    raw, png = backend_look("lmdb", "lmdb", "raw"), backend_look("lmdb+png", "lmdb", "png")
    assert raw.colour == png.colour
    assert (raw.hatch, raw.line) != (png.hatch, png.line)
    assert backend_look("png", "files", "png").hatch == ""
    assert backend_look("files+raw", "files", "raw").hatch == "//"
    assert backend_look("zarr", "zarr", "raw").colour not in {
        raw.colour,
        backend_look("png", "files", "png").colour,
    }


def test_whiskers_are_distances_and_never_negative() -> None:
    ends = whiskers(
        [Estimate(mid=2.0, lo=1.5, hi=4.0, n=3), Estimate(mid=1.0), Estimate(mid=3.0, lo=3.1, hi=3.5, n=3)]
    )
    assert ends is not None
    np.testing.assert_allclose(ends, [[0.5, 0.0, 0.0], [2.0, 0.0, 0.5]])
    assert whiskers([Estimate(mid=1.0), Estimate(mid=2.0)]) is None


@pytest.mark.parametrize(
    ("intervals", "end"),
    [
        ([], 1.0),
        ([Estimate(mid=10.0)], 10.0),
        ([Estimate(mid=10.0, lo=9.0, hi=12.0)], 12.0),
        ([Estimate(mid=10.0, lo=1.0, hi=99.0)], 16.0),
        ([Estimate(mid=0.0)], 1.0),
    ],
)
def test_an_axis_ends_near_its_largest_figure(intervals: list[Estimate], end: float) -> None:
    assert shown_end(intervals) == pytest.approx(end)


def test_a_long_epoch_is_thinned_without_losing_a_spike() -> None:
    waits = np.ones(10 * MOST_POINTS + 7)
    waits[12_345] = 99.0
    places, highest = thinned(waits)
    assert len(places) == len(highest) == MOST_POINTS
    assert highest.max() == 99.0
    assert places[highest.argmax()] <= 12_345 < places[highest.argmax() + 1]
    short, same = thinned(waits[:5])
    assert (list(short), list(same)) == ([0, 1, 2, 3, 4], [1.0] * 5)


def bounded(name: str, **changes: Any) -> Record:
    """Plant a cold cell whose rate is only an upper bound."""
    record = make_record(name, **changes)
    return dataclasses.replace(record, portion=portion_of(record, upper_bound=True))
