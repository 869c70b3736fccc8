"""The claims about single cells and their sides: what they assert, with which figure, and when they are not made."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import CellSummary, summarise
from storebench.report.claims import Claim, ClaimKind
from storebench.report.decisions import Topic
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.intervals import Estimate
from storebench.results import Counters, Percentiles, Record
from tests.support.planted import ENVIRONMENT, make_record, replicates


def cells_of(records: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def facts_of(records: list[Record]) -> Facts:
    return derive(cells_of(records))


def claims_of(facts: Facts, kind: ClaimKind) -> dict[str, Claim]:
    """Return the claims of a kind by the backend of their subject."""
    return {claim.subject.backend: claim for claim in facts.claims.found if claim.kind is kind}


def figure_of(claim: Claim) -> Estimate:
    assert claim.figure is not None
    return claim.figure


def test_a_limit_is_claimed_with_the_gain_of_lifting_it() -> None:
    reading = make_record("lmdb", cache="warm", wait_ms=20, compute_ms=5, fetch_ms=15, prep_ms=5)
    computing = make_record("hdf5", cache="warm", wait_ms=5, compute_ms=20, fetch_ms=4, prep_ms=1)
    limits = claims_of(facts_of([reading, computing]), ClaimKind.LIMITED)
    assert {name: claim.part for name, claim in limits.items()} == {
        "lmdb": "reader-bound",
        "hdf5": "compute-bound",
    }
    assert figure_of(limits["lmdb"]).mid == pytest.approx(25 / 10)
    assert figure_of(limits["hdf5"]).mid == pytest.approx(25 / 20), "the gain of free loading"
    assert not any(claim.decided for claim in limits.values())


@pytest.mark.parametrize("slower", [1.2, 1.0])
def test_contention_is_claimed_with_the_time_that_the_network_loses(slower: float) -> None:
    null = replicates("null", [0.0] * 4, fetch_ms=0, prep_ms=0)
    times = [slower * one for one in (1.0, 1.001, 1.0, 0.999)]
    lmdb = [
        make_record("lmdb", replicate=n, cache="warm", wait_ms=0.2, compute_ms=10 * one, fetch_ms=0.1)
        for n, one in enumerate(times)
    ]
    facts = facts_of(null + lmdb)
    found = claims_of(facts, ClaimKind.CONTENTION)
    if slower == 1.0:
        assert not found
        return
    claim = found["lmdb"]
    assert figure_of(claim).mid == pytest.approx(slower, rel=1e-3)
    assert claim.object is not None
    assert (claim.object.backend, claim.topic, claim.decided) == ("null", Topic.COMPUTE, True)
    assert claim.decision is facts.decisions.inflation(claim.subject)


def spiking(backend: str, steps: int, replicate: int = 0) -> Record:
    waits = Percentiles(p50=1_000_000, p95=2_000_000, p99=3_000_000, max=30_000_000)
    return dataclasses.replace(
        make_record(backend, cache="warm", steps=steps, replicate=replicate), data_wait_ns=waits
    )


def test_the_longest_wait_is_told_beside_the_median_if_steps_are_enough() -> None:
    records = [spiking("lmdb", 20, 0), spiking("lmdb", 20, 1)]
    records += [spiking("hdf5", 19, 0), spiking("png", 40, 0), spiking("png", 19, 1)]
    found = claims_of(facts_of(records), ClaimKind.SPIKE)
    assert found.keys() == {"lmdb"}, "every epoch needs 20 steps"
    figure = figure_of(found["lmdb"])
    assert (figure.mid, figure.n, found["lmdb"].decided) == (pytest.approx(30), 2, False)


@pytest.mark.parametrize(
    ("backend", "cache", "times", "told"),
    [
        ("lmdb", "cold", 1.0, True),
        ("lmdb", "warm", 1.0, False),
        ("memory:native", "cold", 1.0, False),
        ("lmdb", "any", 0.2, True),
        ("lmdb", "any", 0.1, True),
        ("lmdb", "any", 0.05, False),
        ("null", "any", 1.0, False),
    ],
)
def test_reads_are_claimed_of_cells_whose_epochs_read_a_device(
    backend: str, cache: str, times: float, told: bool
) -> None:
    records = []
    for number in range(3):
        record = make_record(backend, cache=cache, replicate=number)
        read = Counters(device_read_bytes=round(record.payload_bytes * times), read_amplification=times)
        records.append(dataclasses.replace(record, counters=read))
    found = claims_of(facts_of(records), ClaimKind.AMPLIFIED)
    assert (backend in found) is told
    if told:
        assert figure_of(found[backend]).mid == pytest.approx(times)
        assert not found[backend].decided, "not above 2"


def test_loops_are_claimed_to_be_fed_in_the_main_panel_of_every_dataset() -> None:
    records = [
        record
        for changes in ({}, {"dataset": "mnist", "size": None}, {"cache": "cold"})
        for name in ("png", "lmdb")
        for record in replicates(name, [0.5, 0.51, 0.5], **changes)
    ]
    facts = facts_of(records)
    fed = {
        (claim.subject.cell.data.name, str(claim.subject.cell.cache), claim.subject.backend)
        for claim in facts.claims.found
        if claim.kind is ClaimKind.FED
    }
    names = ("png", "lmdb")
    assert fed == {(dataset, "warm", name) for dataset in ("imagenet", "mnist") for name in names}


def test_the_larger_store_is_claimed_with_how_many_times_the_space() -> None:
    sizes = {"png": 300, "lmdb": 600, "hdf5": 750}
    facts = facts_of([make_record(name, bytes_on_disk=size) for name, size in sizes.items()])
    [claim] = claims_of(facts, ClaimKind.LARGER).values()
    assert claim.object is not None
    assert (claim.subject.backend, claim.object.backend) == ("hdf5", "png")
    assert figure_of(claim).mid == pytest.approx(2.5)
    equal = facts_of([make_record(name, bytes_on_disk=300) for name in sizes])
    assert not claims_of(equal, ClaimKind.LARGER)


def claim(subject: CellSummary, other: CellSummary, low: float = 1.9) -> Claim:
    figure = Estimate(mid=low * 1.01, lo=low, hi=low * 1.02, n=3)
    return Claim(kind=ClaimKind.FASTER, subject=subject, object=other, figure=figure)


@pytest.mark.parametrize(
    ("changes", "differs", "fair"),
    [
        ({}, set(), True),
        ({"environment": dataclasses.replace(ENVIRONMENT, key="e2")}, {"machine"}, False),
        ({"size": 5000}, {"samples"}, False),
        ({"dataset": "mnist", "size": None, "cache": "cold"}, {"samples", "cache"}, False),
        ({"batch_size": 64}, {"batch_size"}, False),
    ],
)
def test_the_conditions_of_the_two_sides_are_compared(
    changes: dict[str, Any], differs: set[str], fair: bool
) -> None:
    first, second = (cells_of([record])[0] for record in (make_record("png"), make_record("lmdb", **changes)))
    found = claim(second, first)
    assert (set(found.differs), found.fair) == (differs, fair)


@pytest.mark.parametrize(("least", "denied"), [(1.0, False), (1.1, False), (1.12, True), (2.0, True)])
def test_a_loop_that_waits_less_than_a_tenth_can_gain_a_ninth(least: float, denied: bool) -> None:
    png, lmdb = cells_of([make_record("png"), make_record("lmdb")])
    fed = Claim(kind=ClaimKind.FED, subject=png, figure=Estimate(mid=0.05, lo=0.04, hi=0.06, n=3))
    assert fed.contradicts(claim(lmdb, png, least)) is denied
    assert claim(lmdb, png, least).contradicts(fed) is denied
    unknown = dataclasses.replace(claim(lmdb, png), figure=Estimate(mid=2.0))
    assert not fed.contradicts(unknown), "without an interval nothing is claimed that it could deny"
