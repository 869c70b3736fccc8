"""Two cells beside each other: whether they did the same work, on what basis, and what counters may differ by."""

import dataclasses
import re
from typing import Any

import pytest

from storebench.check.calibration import VALIDATED, LimitingWork, carries_over
from storebench.check.counters import CounterResult, compare_counters, uncounted
from storebench.check.pairs import INTERLEAVED, UNCALIBRATED, CellPair, basis_of, other_work, resembling
from storebench.check.policy import CellPolicy, CounterGate, Policy
from storebench.check.sides.model import CellData, MachineAndStorage, Replicate, slowest_tenth
from storebench.check.sides.records import label_of
from storebench.check.sides.rules import cell_of
from storebench.errors import CorruptDataError
from tests.support.planted_sides import record

HERE = MachineAndStorage(key="here", match={"cpu": "planted", "kernel": "6.8"})
THERE = MachineAndStorage(key="there", match={"cpu": "another", "kernel": "6.8"})


def cell(**changes: Any) -> CellData:
    fields: dict[str, Any] = {
        "cell_id": "read/lmdb",
        "label": "read/lmdb/warm",
        "samples_of": "f00d",
        "environment": HERE,
        "samples": 1000,
        "rounds": 8,
        "calibration": LimitingWork.MEMORY,
        "replicates": (Replicate(number=0, seconds=1.0),),
    }
    return CellData(**(fields | changes))


def pair(first: CellData, second: CellData, *, paired: bool = False, **policy: Any) -> CellPair:
    return CellPair(baseline=first, contender=second, paired=paired, policy=Policy(**policy))


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({}, {}, ""),
        ({}, {"samples_of": "beef"}, "the two sides read different samples"),
        ({}, {"samples_of": ""}, "the contender does not say which samples it read"),
        ({"samples_of": ""}, {}, "the baseline does not say which samples it read"),
        ({}, {"samples": 900}, "a round of the baseline serves 1000 samples, of the contender 900"),
        ({"samples": None}, {"samples": 900}, ""),
    ],
)
def test_other_work_is_named(first: dict[str, Any], second: dict[str, Any], reason: str) -> None:
    assert other_work(pair(cell(**first), cell(**second))) == reason


@pytest.mark.parametrize(
    ("second", "options", "basis"),
    [
        ({}, {}, "seconds"),
        ({}, {"paired": True}, INTERLEAVED),
        ({"calibration": ""}, {}, UNCALIBRATED),
        ({"calibration": ""}, {"basis": "seconds"}, "seconds"),
        ({}, {"basis": "ratio"}, "ratio to memory"),
        ({"environment": THERE}, {"trust_calibration": ["memory"]}, "ratio to memory"),
    ],
)
def test_seconds_hold_on_one_machine_and_trusted_ratios_on_two(
    second: dict[str, Any], options: dict[str, Any], basis: str
) -> None:
    assert basis_of(pair(cell(), cell(**second), **options)) == (basis, "")


@pytest.mark.parametrize(
    ("first", "second", "policy", "reason"),
    [
        ({}, {"environment": THERE}, {}, "have not been shown to carry over to another machine"),
        ({}, {"environment": THERE}, {"basis": "seconds"}, "another environment: cpu planted -> another"),
        (
            {},
            {"environment": MachineAndStorage()},
            {},
            "the environment of one side is unknown or not unique",
        ),
        (
            {},
            {"calibration": ""},
            {"basis": "ratio"},
            "no calibration on both sides, and the policy allows ratios",
        ),
        ({"figure": "lower quartile"}, {}, {}, "make a new baseline"),
        ({}, {"rounds": 7}, {}, "a session of the baseline has 8 rounds, of the contender 7"),
    ],
)
def test_why_times_cannot_be_compared_is_said(
    first: dict[str, Any], second: dict[str, Any], policy: dict[str, Any], reason: str
) -> None:
    basis, why_not = basis_of(pair(cell(**first), cell(**second), **policy))
    assert basis == ""
    assert reason in why_not


def test_two_environments_differ_by_each_fact_that_is_not_the_same() -> None:
    there = MachineAndStorage(key="there", match={"cpu": "planted", "kernel": "6.9", "disk": "sda"})
    _, why_not = basis_of(pair(cell(), cell(environment=there), basis="seconds"))
    assert why_not == ("seconds were asked for, and another environment: kernel 6.8 -> 6.9; disk None -> sda")
    unnamed = MachineAndStorage(key="elsewhere", match=HERE.match)
    _, why_not = basis_of(pair(cell(), cell(environment=unnamed), basis="seconds"))
    assert why_not == "seconds were asked for, and another environment: here -> elsewhere"


def test_more_rounds_than_the_baselines_are_no_obstacle() -> None:
    assert basis_of(pair(cell(), cell(rounds=9)))[0] == "seconds"


@pytest.mark.parametrize(
    ("first", "second", "frac"),
    [
        ({}, {}, 0.08),
        ({"one_process": True}, {}, 0.20),
        ({}, {"environment": THERE}, 0.25),
        ({"one_process": True}, {"environment": THERE}, 0.25),
    ],
)
def test_the_threshold_is_the_widest_that_applies(
    first: dict[str, Any], second: dict[str, Any], frac: float
) -> None:
    assert pair(cell(**first), cell(**second)).practical_frac == frac
    own = CellPolicy(match="read/*", practical_frac=0.5)
    assert pair(cell(**first), cell(**second), cells=[own]).practical_frac == 0.5


def test_only_what_was_validated_or_is_trusted_carries_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(carries_over(kind) for kind in LimitingWork), "none was shown to on another CPU"
    assert carries_over("memory", ["memory"])
    assert not carries_over("memory", ["device"])
    monkeypatch.setitem(VALIDATED, LimitingWork.MEMORY, True)
    assert carries_over("memory")
    assert not carries_over("")


def test_a_lost_cell_is_found_again_under_the_name_that_changed_least() -> None:
    lost = cell(asked={"backend": "lmdb", "workers": 0, "batch_size": 64})
    near = cell(asked={"backend": "lmdb", "workers": 2, "batch_size": 64})
    far = cell(asked={"backend": "png", "workers": 2, "batch_size": 32})
    assert resembling(lost, [far, near]) == "the contender has it with workers 0 -> 2"
    assert resembling(lost, [far]).count("->") == 3
    assert resembling(lost, [far]) == (
        "the contender has it with backend lmdb -> png, workers 0 -> 2, batch_size 64 -> 32"
    )
    as_near = cell(asked={"backend": "png", "workers": 0, "batch_size": 64})
    assert resembling(lost, [as_near, near]) == "the contender has it with backend lmdb -> png"
    other = cell(asked={"backend": "png", "workers": 2, "batch_size": 32, "cache": "cold"})
    assert resembling(lost, [other]) == ""
    assert resembling(lost, [cell()]) == "", "nothing is known of how it was asked for"
    renamed = dataclasses.replace(cell(), rerun="tests/a.py::test", label="read/new")
    assert resembling(dataclasses.replace(lost, rerun="tests/a.py::test"), [near, renamed]) == (
        "its benchmark is called read/new now"
    )


# Counters


def counted(*values: float, name: str = "read_calls", environment: MachineAndStorage = HERE) -> CellData:
    replicates = tuple(
        Replicate(number=number, seconds=1e-3, counters={name: value}) for number, value in enumerate(values)
    )
    return cell(replicates=replicates, environment=environment)


def worse(before: CellData, after: CellData, **policy: Any) -> list[bool]:
    results = compare_counters(before, after, Policy(**policy), same_environment=True)
    return [result.worse for result in results]


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [
        ((1000.0,) * 3, (1026.0,) * 3, False),
        ((1000.0,) * 3, (1027.0,) * 3, True),
        ((1000.0,) * 3, (10.0,) * 3, False),
        ((990.0, 1000.0, 1010.0), (1046.0,) * 3, False),
        ((990.0, 1000.0, 1010.0), (1047.0,) * 3, True),
    ],
)
def test_a_counter_may_vary_by_band_slack_and_the_baselines_own_spread(
    before: tuple[float, ...], after: tuple[float, ...], is_worse: bool
) -> None:
    assert worse(counted(*before), counted(*after)) == [is_worse]


def test_a_counter_that_is_exact_both_ways_may_not_fall_either() -> None:
    served = "samples_served"
    assert worse(counted(1000, name=served), counted(999, name=served)) == [True]
    gate = {"counters": {"read_calls": CounterGate(both_ways=True)}}
    assert worse(counted(1000), counted(999), **gate) == [True]


def test_a_counter_that_one_replicate_lacks_is_not_compared_but_missed() -> None:
    whole, part = counted(1000, 1000), counted(1000, 1000)
    part = dataclasses.replace(
        part, replicates=(part.replicates[0], dataclasses.replace(part.replicates[1], counters={}))
    )
    assert compare_counters(whole, part, Policy(), same_environment=True) == []
    assert uncounted(whole, part, Policy(), same_environment=True) == ["read_calls"]
    assert uncounted(part, whole, Policy(), same_environment=True) == []
    assert uncounted(cell(), whole, Policy(), same_environment=True) == []


def test_on_another_machine_only_counters_that_mean_the_same_there_count() -> None:
    for name, expected in (("read_calls", 0), ("samples_served", 1)):
        before, after = counted(1000, name=name), counted(2000, name=name, environment=THERE)
        assert len(compare_counters(before, after, Policy(), same_environment=False)) == expected
        assert len(uncounted(before, cell(), Policy(), same_environment=False)) == expected


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (("bytes_on_disk", 4e6, 5e6), "bytes_on_disk 4,000,000 -> 5,000,000 bytes (+25.0%)"),
        (("read_calls", 0.0, 12.0), "read_calls 0 -> 12"),
        (("open_s", 0.5, 1.25), "open_s 0.5 -> 1.25 s (+150.0%)"),
    ],
)
def test_a_counter_is_told_with_its_unit_and_its_change(
    result: tuple[str, float, float], sentence: str
) -> None:
    name, before, after = result
    told = CounterResult(name=name, baseline=before, contender=after, allowed=0.0, worse=True).sentence
    assert told == sentence


# What a side is made of


@pytest.mark.parametrize(
    ("values", "mean"),
    [([3.0], 3.0), ([1.0] * 9 + [5.0], 5.0), ([1.0] * 9 + [3.0, 5.0], 4.0), ([1.0] * 20, 1.0)],
)
def test_the_slowest_tenth_has_one_value_at_least(values: list[float], mean: float) -> None:
    assert slowest_tenth(values) == mean


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "cifar10/lmdb/warm/processes-0/batch-64/none"),
        (
            {"compute": "real", "model": "tiny", "workers": 2},
            "cifar10/lmdb/warm/processes-2/batch-64/tiny-real",
        ),
        ({"device": "cuda"}, "cifar10/lmdb/warm/processes-0/batch-64/none/cuda"),
        ({"ranks": 2}, "cifar10/lmdb/warm/processes-0/batch-64/none/ranks-2-overlapped"),
        (
            {"ranks": 4, "share": "store", "store_fill": "first-epoch"},
            "cifar10/lmdb/warm/processes-0/batch-64/none/ranks-4-overlapped/share-store/fill-first-epoch",
        ),
        (
            {"ranks": 2, "trainers": 2, "tournament_steps": 5},
            "cifar10/lmdb/warm/processes-0/batch-64/none/ranks-2-overlapped/trainers-2-partitioned-every-5",
        ),
    ],
)
def test_a_cell_of_a_run_is_called_by_what_a_policy_may_match(fields: dict[str, Any], label: str) -> None:
    assert label_of(record("lmdb", 0, 1e-3, cell=fields).cell) == label


SOUND = {"number": 0, "seconds": 1e-3, "counters": {"read_calls": 5}}


@pytest.mark.parametrize(
    ("changes", "replicate", "reason"),
    [
        ({}, {"seconds": 0.0}, "seconds of a replicate is 0.0"),
        ({}, {"seconds": float("nan")}, "seconds of a replicate is nan"),
        ({}, {"relative": 1e13}, "relative of a replicate is"),
        ({}, {"counters": {"read_calls": -1}}, "the counter 'read_calls' is -1"),
        ({}, {"busy_cores": -0.5}, "busy_cores of a replicate is -0.5"),
        ({"tail_of": "p99 of the steps"}, {}, "a replicate has no tail"),
        ({"calibration": "memory"}, {}, "a replicate is not calibrated"),
        ({"lable": "misspelt"}, {}, "no field is called 'lable'"),
        ({}, {"second": 1.0}, "no field is called 'second'"),
        ({"label": 7}, {}, "not a cell of a check"),
    ],
)
def test_a_cell_that_cannot_be_is_refused_with_what_is_wrong(
    changes: dict[str, Any], replicate: dict[str, Any], reason: str
) -> None:
    raw = {"cell_id": "a", "label": "a", "replicates": [SOUND | replicate]} | changes
    with pytest.raises(CorruptDataError, match=re.escape(reason)):
        cell_of(raw, "baseline.json")
    assert cell_of({"cell_id": "a", "label": "a", "replicates": [SOUND]}, "baseline.json").label == "a"
