"""Durations of a record against each other: decoding, work within the wait, idle ranks, copies of several threads."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.probes.page_cache import COLD_MAX_FRAC, WARM_MIN_FRAC
from storebench.report.validation.findings import Finding
from storebench.report.validation.limits import check_limits
from storebench.report.validation.record import check_record
from storebench.report.validation.validate import validate
from storebench.results import CacheVerdict, Record
from tests.support.planted import COPY_BYTES_PER_S, ENVIRONMENT, make_record, with_job, write_run

LEAST_DECODE_MS = 0.0052
"""Per step: 2 microseconds, and a tenth of one for each of 32 samples."""


def about(record: Record, figure: str) -> list[Finding]:
    return [found for found in check_record(record) if found.figure == figure]


@pytest.mark.parametrize(("factor", "kept"), [(1.02, True), (0.98, False), (0.0, False)])
def test_decoding_takes_at_least_a_call(factor: float, kept: bool) -> None:
    record = make_record("png", cache="warm", decode_ms=factor * LEAST_DECODE_MS)
    assert (about(record, "decode_s") == []) is kept


@pytest.mark.parametrize(
    ("backend", "changes"),
    [
        ("lmdb", {}),
        ("null", {}),
        ("png", {"applies_to": "open"}),
        ("png", {"cache_facts": None}),
        ("png", {"timed_samples": 0}),
        ("png", {"ranks": 2, "share": "store"}),
    ],
)
def test_what_was_not_decoded_in_the_epoch_needs_no_time(backend: str, changes: dict[str, Any]) -> None:
    settings = {name: value for name, value in changes.items() if name in {"ranks", "share", "timed_samples"}}
    record = make_record(backend, cache="warm", decode_ms=0.0, **settings)
    if "cache_facts" in changes:
        record = dataclasses.replace(record, cache=None)
    if "applies_to" in changes:
        assert record.cache is not None
        record = dataclasses.replace(record, cache=dataclasses.replace(record.cache, applies_to="open"))
    assert about(record, "decode_s") == []


@pytest.mark.parametrize(("share", "ranks"), [("none", 1), ("none", 2), ("node", 2)])
def test_other_jobs_decode_every_sample(share: str, ranks: int) -> None:
    record = make_record("png", cache="warm", decode_ms=0.0, share=share, ranks=ranks)
    assert len(about(record if ranks == 1 else with_job(record), "decode_s")) == 1


@pytest.mark.parametrize(("compute_ms", "found"), [(0.0, 0), (0.04, 0), (0.2, 1)])
def test_a_cell_that_only_loads_computes_nothing(compute_ms: float, found: int) -> None:
    """The clock readings take a microsecond, and up to 50 per step are allowed."""
    record = make_record("lmdb", cache="warm", compute="none", wait_ms=0.2, steps=1000, compute_ms=compute_ms)
    assert len(about(record, "compute_s")) == found


@pytest.mark.parametrize(
    ("first_ms", "later_ms", "kept"), [(1.2, 0.25, True), (1.4, 0.25, False), (0.07, 0.0125, True)]
)
def test_an_epoch_that_decodes_five_times_as_fast_names_itself(
    first_ms: float, later_ms: float, kept: bool, tmp_path: Path
) -> None:
    """The other one has to take at least 0.1 s in all, because shorter times vary that much."""
    first, second = (
        make_record("png", cache="warm", epochs=2, epoch=epoch, decode_ms=decode_ms)
        for epoch, decode_ms in ((0, first_ms), (1, later_ms))
    )
    told = [
        found
        for found in validate(write_run(tmp_path / "run", [first, second]))
        if found.figure == "decode_s"
    ]
    assert [found.cell for found in told] == (
        [] if kept else [f"imagenet png warm workers=0 [{second.cell.cell_id}] replicate 0 epoch 1"]
    )
    if not kept:
        assert "took 5.6 times as long in epoch 0 of the same process" in str(told[0])


@pytest.mark.parametrize(
    ("workers", "share", "found"), [(0, "none", 1), (2, "none", 0), (0, "node", 0), (2, "node", 0)]
)
def test_only_work_of_the_loops_own_process_is_within_its_wait(workers: int, share: str, found: int) -> None:
    ranks = 1 if share == "none" else 2
    record = make_record(
        "lmdb", cache="warm", workers=workers, share=share, ranks=ranks, wait_ms=1.0, fetch_ms=6.0
    )
    record = record if ranks == 1 else with_job(record)
    assert len(about(record, "data_wait_s")) == found


@pytest.mark.parametrize(("idle_frac", "kept"), [(0.2, True), (0.0, False), (0.4, False)])
def test_a_rank_that_ended_early_explains_the_rest_of_its_time(idle_frac: float, kept: bool) -> None:
    record = with_job(make_record("lmdb", cache="warm", ranks=2, overhead_ms=3.5))
    assert record.job is not None
    assert record.overhead_s == pytest.approx(0.2 * record.timed_s)
    each = dataclasses.replace(record.job.per_rank[0], seconds=record.timed_s * (1 - idle_frac))
    record = dataclasses.replace(record, job=dataclasses.replace(record.job, per_rank=(each, each)))
    assert (about(record, "overhead_s") == []) is kept


@pytest.mark.parametrize("cores", ["many", None, 2.5])
def test_cores_that_are_no_number_count_as_unknown(cores: object) -> None:
    record = make_record("lmdb", model="lenet", cache="warm", threads=2)
    record = dataclasses.replace(
        record,
        fetch_s=record.payload_bytes / COPY_BYTES_PER_S / 1.9,
        environment=dataclasses.replace(ENVIRONMENT, match={"cores": cores}),
    )
    assert [found.figure for found in check_limits(record)] == []


@pytest.mark.parametrize(("state", "share"), [("cold", COLD_MAX_FRAC), ("warm", WARM_MIN_FRAC)])
def test_a_share_of_resident_pages_exactly_at_its_limit_is_permitted(state: str, share: float) -> None:
    record = make_record("lmdb", cache=state)
    assert record.cache is not None
    for resident, kept in ((share, True), (share + (0.001 if state == "cold" else -0.001), False)):
        cache = dataclasses.replace(record.cache, resident_frac_before=resident)
        assert (about(dataclasses.replace(record, cache=cache), "resident_frac_before") == []) is kept


def test_the_store_of_a_limited_epoch_needs_a_size_to_exceed_its_limit() -> None:
    record = make_record("lmdb", cache="limited", memory_bytes=4096)
    assert record.cache is not None
    cache = dataclasses.replace(
        record.cache, limit_bytes=4096, verdict=CacheVerdict.VERIFIED, resident_frac_before=0.0
    )
    found = dataclasses.replace(record, cache=cache)
    assert len(about(found, "resident_frac_after")) == 1
    assert about(dataclasses.replace(found, store=None), "resident_frac_after") == []
