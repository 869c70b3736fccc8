"""The verdict on each cell: lacking sides, equal work, its counters, and the times of paired rounds."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.analysis.comparison import compare
from storebench.check.judge import CellState, judge
from storebench.check.sides import Side, read_side
from storebench.record.lines import PAIRING_NAME
from storebench.record.schema import Counters, Record
from storebench.units import Better
from tests.support.checked import check, run
from tests.support.planted_sides import failed, paired, record, run_of, slower, with_, write_run

Change = Callable[[Record], Record | None]


def in_rounds(*factors: float) -> Change:
    return lambda one: slower(factors[one.replicate % len(factors)])(one)


VERDICTS: dict[str, tuple[Change, CellState, str]] = {
    # name: (what is changed of LMDB, its state, words of its reason)
    "half as fast again": (slower(1.5), CellState.WORSE, "% slower"),
    "twice as fast": (slower(0.5), CellState.BETTER, "% less time"),
    "the same": (slower(1.0), CellState.WITHIN_NOISE, ""),
    "6% slower": (slower(1.06), CellState.WITHIN_NOISE, ""),
    "12% faster": (slower(0.91), CellState.WITHIN_NOISE, "no slow-down of 10%; it may be faster"),
    "sometimes ten times as slow": (in_rounds(1, 10), CellState.INCONCLUSIVE, "probably slower: 3.1"),
    "sometimes faster": (in_rounds(1, 0.7), CellState.INCONCLUSIVE, "no sign of change; "),
    "sometimes a quarter slower": (
        in_rounds(1, 1.25), CellState.INCONCLUSIVE, "more replicates on each side would decide it",
    ),
    "erratic": (in_rounds(1, 30, 2, 1.2), CellState.INCONCLUSIVE, "200 replicates on each side would not decide"),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_interleaved_times_get_a_verdict(name: str, tmp_path: Path) -> None:
    change, state, reason = VERDICTS[name]
    found = check(*paired(tmp_path, change, noise=0.005))
    assert (found["lmdb"].state, reason in found["lmdb"].reason) == (state, True), found["lmdb"]
    assert {found["hdf5"].state, found["png"].state} == {CellState.WITHIN_NOISE}


def test_the_same_code_is_green_and_a_slower_reader_is_not(tmp_path: Path) -> None:
    assert run(*paired(tmp_path / "same"))[0] == 0
    assert run(*paired(tmp_path / "slower", slower(1.5)))[0] == 1
    code, text = run(*paired(tmp_path / "sometimes", in_rounds(3, 1)))
    assert (code, text.startswith("LMDB probably slower: 1.7")) == (4, True), text
    code, text = run(*paired(tmp_path / "faster", in_rounds(0.7, 1)))
    assert (code, text) == (0, "3 cells without a sign of change\n")


DISAGREEING: dict[str, tuple[tuple[float, ...], float, CellState, float, str]] = {
    # name: (LMDB's time in each round, its quickest batches, its state, the ratio that decides, words of its reason)
    "a busy machine": ((1, 4, 1, 5, 2, 3), 1.0, CellState.WITHIN_NOISE, 1.0, ""),
    "a busy machine, slower": ((1, 4, 1, 5, 2, 3), 1.5, CellState.WORSE, 1.5, "50% slower"),
    "a wait": ((1.5,), 1.0, CellState.WORSE, 1.5, "its quickest batches are not: a wait"),
    "hidden": ((1.0,), 1.5, CellState.WORSE, 1.5, "in its quickest batches; all of its time is not"),
    "both": ((1.4,), 1.5, CellState.WORSE, 1.4, "40% slower"),
    "faster": ((0.6,), 0.5, CellState.BETTER, 0.6, "40% less time"),
}


@pytest.mark.parametrize("name", DISAGREEING)
def test_the_quickest_batches_decide_where_time_does_not(name: str, tmp_path: Path) -> None:
    factors, quick, state, ratio, reason = DISAGREEING[name]
    folders = paired(tmp_path, in_rounds(*factors), noise=0.0)
    first, second = (read_side(folder, baseline=True) for folder in folders)

    def with_quickest(side: Side, factor: float) -> Side:
        cells = {
            key: dataclasses.replace(data, quickest=dict.fromkeys(data.seconds, 1e-06 * factor))
            for key, data in side.cells.items()
        }
        return dataclasses.replace(side, cells=cells)

    lmdb, *_ = judge(with_quickest(first, 1.0), with_quickest(second, quick))
    assert lmdb.ratio is not None
    assert (lmdb.state, lmdb.ratio.mid) == (state, pytest.approx(ratio)), lmdb
    assert reason in lmdb.reason
    assert lmdb.time is not None
    assert lmdb.quickest is not None


def test_a_cell_for_which_the_budget_had_no_time_passes_by_its_counters(tmp_path: Path) -> None:
    for calls, states in ((1000, CellState.NOT_GATED), (2000, CellState.WORSE)):
        first, second = paired(tmp_path / str(calls), in_rounds(3), seconds={"lmdb": 1e-6}, replicates=1)
        for one in (first, second):
            [cell] = read_side(one, baseline=True).cells
            (one / PAIRING_NAME).write_text(json.dumps({"pairing": "p", "ended": [cell]}))
        [row] = (second / "records.jsonl").read_text().splitlines()
        more = json.loads(row)
        more["counters"]["read_calls"] = calls
        (second / "records.jsonl").write_text(json.dumps(more) + "\n")
        assert check(first, second)["lmdb"].state is states
        assert run(first, second)[0] == int(states is CellState.WORSE)


def test_a_verdict_is_that_of_the_one_comparison_of_paired_rounds(tmp_path: Path) -> None:
    """The machine changes a lot from round to round, for both sides alike."""
    rng = np.random.default_rng(0)
    drift, noise = np.exp(rng.normal(0, 1.0, 6)), np.exp(rng.normal(0, 0.01, 6))
    costs = (1e-6 * drift, 1.2e-6 * drift * noise)
    for name, side in zip("ab", costs, strict=True):
        records = [record("lmdb", number, float(cost)) for number, cost in enumerate(side)]
        (write_run(tmp_path / name, records) / PAIRING_NAME).write_text('{"pairing": "p"}')
    result = check(tmp_path / "a", tmp_path / "b")["lmdb"]
    expected = compare(*costs, better=Better.LOWER)
    assert (result.state, expected.level) == (CellState.WORSE, 0.95)
    assert result.ratio is not None
    assert dataclasses.asdict(result.ratio) == pytest.approx(dataclasses.asdict(expected))
    (tmp_path / "b" / PAIRING_NAME).write_text('{"pairing": "another"}')
    assert check(tmp_path / "a", tmp_path / "b")["lmdb"].state is CellState.INCONCLUSIVE


def test_fewer_than_five_rounds_decide_nothing(tmp_path: Path) -> None:
    for count, more in ((4, 1), (3, 2), (1, 4)):
        found = check(*paired(tmp_path / str(count), slower(3.0), replicates=count))["lmdb"]
        assert found.state is CellState.INCONCLUSIVE
        assert f"a verdict needs 5; {more} more replicate" in found.reason


def test_separate_runs_give_a_ratio_and_no_verdict_on_time(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a")
    for number, factor in enumerate((1.0, 1.5, 0.5)):
        second = run_of(tmp_path / f"b{number}", seed=1, change=slower(factor))
        found = check(first, second)["lmdb"]
        assert found.ratio is not None
        assert (found.state, found.ratio.low) == (CellState.INCONCLUSIVE, None)
        assert found.ratio.mid == pytest.approx(factor, rel=0.02)
        assert found.reason == "not interleaved"
        code, text = run(first, second)
        assert code == 4
        assert "times as long: 'storebench bench --against' runs both sides in turn" in text


def test_separate_runs_pass_by_their_counters_if_no_time_is_asked_for(tmp_path: Path) -> None:
    first, second = run_of(tmp_path / "a"), run_of(tmp_path / "b", seed=1, change=slower(3.0))
    code, text = run(first, second, "--counters-only")
    assert (code, text.startswith("3 cells without a sign of change; 3 of them by their")) == (0, True), text
    more = run_of(tmp_path / "c", change=with_(counters=Counters(read_calls=2000, major_faults=0)))
    assert run(first, more, "--counters-only")[0] == 1


def edited(one: Record, part: str, **changes: Any) -> Record:
    return dataclasses.replace(one, **{part: dataclasses.replace(getattr(one, part), **changes)})


NOT_COMPARABLE: dict[str, tuple[Change, str]] = {
    "other samples": (
        lambda one: edited(one, "store", samples_digest="beef"), "the two sides read different samples",
    ),
    "fewer samples": (lambda one: edited(one, "store", count=10), "the two sides read different samples"),
    "another machine": (
        lambda one: edited(one, "environment", key="there", match={"kernel": "there"}),
        "another environment: kernel here -> there",
    ),
    "an unknown machine": (with_(environment=None), "the environment of one side is unknown or not unique"),
    "a lost replicate": (
        lambda one: None if one.replicate == 2 else one,
        "the contender lacks replicate 2, although it has later ones",
    ),
    "other replicates": (
        lambda one: with_(replicate=one.replicate + 7)(one),
        "no replicate ran on both sides: the baseline has 0, 1, 2, 3, 4, the contender 7, 8, 9, 10, 11",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_COMPARABLE)
def test_what_is_not_the_same_work_on_one_machine_is_not_compared(name: str, tmp_path: Path) -> None:
    change, reason = NOT_COMPARABLE[name]
    sides = paired(tmp_path, change, seconds={"lmdb": 1e-6})
    found = check(*sides)["lmdb"]
    assert (found.state, found.reason, found.ratio) == (CellState.NOT_COMPARABLE, reason, None)
    code, text = run(*sides)
    assert (code, text.splitlines()[0]) == (3, f"LMDB: {reason}")


def test_a_side_that_was_interrupted_is_compared_by_what_both_have(tmp_path: Path) -> None:
    found = check(*paired(tmp_path, lambda one: None if one.replicate == 5 else one))["lmdb"]
    assert (found.state, found.replicates) == (CellState.WITHIN_NOISE, (6, 5))


def counted(**values: Any) -> Change:
    return with_(counters=Counters(**({"read_calls": 1000, "major_faults": 0} | values)))


def with_payload(one: Record, size: int) -> Record:
    return edited(dataclasses.replace(one, payload_bytes=size), "store", payload_bytes=size)


def a_sample_less(one: Record) -> Record:
    fewer = dataclasses.replace(one, samples=999, timed_samples=999, payload_bytes=999 * 3072)
    return edited(fewer, "coverage", expected=999, served=999, unique=999)


COUNTED: dict[str, tuple[Change, bool]] = {
    # At most 1% and 16 calls more.
    "26 read calls more": (counted(read_calls=1026), False),
    "27 read calls more": (counted(read_calls=1027), True),
    "hardly a read call": (counted(read_calls=10), False),
    "1% more on disk": (lambda one: edited(one, "store", bytes_on_disk=4_040_000), False),
    "5% more on disk": (lambda one: edited(one, "store", bytes_on_disk=4_200_000), True),
    "a byte of payload more": (lambda one: with_payload(one, 3_072_001), True),
    "a byte of payload less": (lambda one: with_payload(one, 3_071_999), True),
    "a sample less": (a_sample_less, True),
    "a slow opening": (with_(open_s=3.0), True),
    "a slightly slower opening": (with_(open_s=0.4), False),
}
BEFORE: dict[str, Any] = {
    "open_s": 0.01,
    "counters": Counters(read_calls=1000, major_faults=0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_counter_outside_its_band_is_a_regression(name: str, tmp_path: Path) -> None:
    change, worse = COUNTED[name]
    kept = {**BEFORE["counters"].__dict__}

    def changed(one: Record) -> Record:
        new = change(one)
        assert new is not None
        given = {key: value for key, value in new.counters.__dict__.items() if value is not None}
        return dataclasses.replace(new, counters=Counters(**(kept | given)))

    sides = paired(tmp_path, changed, **BEFORE)
    found = check(*sides)
    assert [one.state is CellState.WORSE for one in found.values()] == [worse, False, False]
    assert run(*sides)[0] == int(worse)


def test_a_counter_that_the_contender_lacks_fails_its_cell(tmp_path: Path) -> None:
    found = check(*paired(tmp_path, with_(counters=Counters())))["lmdb"]
    assert (found.state, found.reason) == (
        CellState.FAILED,
        "the baseline counted read_calls, major_faults, the contender did not",
    )


def test_the_baselines_own_spread_widens_a_band_once(tmp_path: Path) -> None:
    """One replicate of 1,100 read calls among five of 1,000: at most 1,000 + 10 + 16 + 100 pass."""

    def some(one: Record) -> Record:
        return edited(one, "counters", read_calls=1100 if one.replicate == 1 else 1000)

    first = run_of(tmp_path / "a", change=some)
    states = []
    for calls in (1126, 1127):
        second = run_of(tmp_path / str(calls), change=counted(read_calls=calls))
        states.append(check(first, second)["lmdb"].state is CellState.WORSE)
    assert states == [False, True]


def test_counters_of_another_machine_count_where_they_mean_the_same(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a")
    calls = run_of(tmp_path / "b", key="there", change=counted(read_calls=2000))
    assert check(first, calls)["lmdb"].state is CellState.NOT_COMPARABLE
    served = check(first, run_of(tmp_path / "c", key="there", change=a_sample_less))["lmdb"]
    assert served.state is CellState.WORSE
    assert served.reason.startswith("samples_served 1,000 -> 999 (-0.1%); payload_bytes")
    assert served.reason.endswith("; time not comparable: another environment: kernel here -> there")


def test_a_worse_counter_stays_worse_beside_any_time(tmp_path: Path) -> None:
    def change(one: Record) -> Record:
        return slower(0.5)(edited(one, "counters", read_calls=2000))

    found = check(*paired(tmp_path, change))["lmdb"]
    assert (found.state, found.reason) == (CellState.WORSE, "read_calls 1,000 -> 2,000 (+100.0%)")
    assert found.ratio is not None
    assert found.ratio.mid == pytest.approx(0.5, rel=0.05)


def test_a_cell_of_which_no_replicate_held_its_state_fails(tmp_path: Path) -> None:
    code, text = run(*paired(tmp_path, with_(counters=Counters(device_read_bytes=9 << 20))))
    assert (code, "called warm, but the device delivered 9 MiB" in text) == (5, True), text


def test_a_cell_that_failed_on_one_side_is_told_with_its_reason(tmp_path: Path) -> None:
    sound = run_of(tmp_path / "a")
    broken = run_of(tmp_path / "b", change=lambda one: failed(one, "wrong samples: 3 missing"))
    code, text = run(sound, broken)
    assert (code, "wrong samples: 3 missing" in text) == (5, True)
    code, text = run(broken, sound)
    assert (code, "it failed in the baseline: wrong samples: 3 missing" in text) == (3, True)
