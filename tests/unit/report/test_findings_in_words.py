"""Findings as they are printed: each planted error gives the whole line, and the smallest error that counts gives one."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.report.validation.findings import Finding, Rule
from storebench.report.validation.validate import validate, validate_records
from storebench.results import (
    CacheVerdict,
    Ceilings,
    Counters,
    Percentiles,
    Record,
)
from tests.support.planted import (
    COPY_BYTES_PER_S,
    ENVIRONMENT,
    make_record,
    portion_of,
    steps_table,
    with_job,
    write_run,
)


def part(record: Record, name: str, **changes: Any) -> Record:
    return dataclasses.replace(record, **{name: dataclasses.replace(getattr(record, name), **changes)})


def changed(**changes: Any) -> Callable[[Record], Record]:
    return lambda record: dataclasses.replace(record, **changes)


def found(folder: Path, *records: Record, with_steps: bool = False) -> list[Finding]:
    return validate(write_run(folder / "run", list(records), with_steps=with_steps))


PLANTED: dict[str, tuple[Callable[[Record], Record], tuple[Rule, str, str]]] = {
    # A record of 100 steps of 32 images, 14 ms each: 4 ms of waiting and 10 ms of computing; 3 ms of fetching, 1 ms of prep.
    "a share above 1": (
        changed(test_accuracy=1.5),
        (Rule.ARITHMETIC, "test_accuracy", "1.5 is no share between 0 and 1"),
    ),
    "a utilization above 1": (
        changed(accelerator_util_frac=1.2),
        (Rule.CEILING, "accelerator_util_frac", "1.2 is no share between 0 and 1"),
    ),
    "parts that do not add up": (
        changed(overhead_s=0.005),
        (
            Rule.ARITHMETIC,
            "timed_s",
            "wait, copy, compute and overhead add up to 1.405 s, not 1.4 s",
        ),
    ),
    "an epoch shorter than its steps": (
        changed(epoch_s=0.7),
        (Rule.ARITHMETIC, "epoch_s", "the epoch is shorter than its timed steps"),
    ),
    "another kind of compute": (
        changed(au_kind="emulated"),
        (Rule.ARITHMETIC, "au_kind", "emulated, but real was asked for"),
    ),
    "a wait shorter than the work in it": (
        changed(fetch_s=0.5),
        (
            Rule.ARITHMETIC,
            "data_wait_s",
            "0.4 s, but fetch, decode and prep in the same process took 0.6 s",
        ),
    ),
    "nothing timed": (
        changed(timed_samples=0, samples_per_s=0.0, portion=None),
        (Rule.ARITHMETIC, "timed_samples", "no sample was timed, so there is no rate"),
    ),
    "a rate that its figures do not give": (
        changed(samples_per_s=2000.0),
        (Rule.ARITHMETIC, "samples_per_s", "2000, but the raw figures give 2285.71"),
    ),
    "nominal bytes per second": (
        changed(payload_bytes_per_s=5e8),
        (
            Rule.ARITHMETIC,
            "payload_bytes_per_s",
            "5e+08, but all payload over the timed seconds is 4.4939e+08",
        ),
    ),
    "percentiles out of order": (
        changed(data_wait_ns=Percentiles(p50=5, p95=4, p99=6, max=7)),
        (Rule.ARITHMETIC, "data_wait_ns", "p50 5, p95 4, p99 6 and max 7 are not in order"),
    ),
    "a wait longer than all": (
        changed(data_wait_ns=Percentiles(p50=5, p95=5, p99=6, max=500_000_000)),
        (
            Rule.ARITHMETIC,
            "data_wait_ns",
            "the longest wait (500000000 ns) is longer than all of them (0.4 s)",
        ),
    ),
    "no coverage": (
        changed(coverage=None),
        (Rule.COVERAGE, "coverage", "nothing says which samples were served"),
    ),
    "a sample left out": (
        lambda record: part(record, "coverage", missing=1, unique=3199),
        (
            Rule.COVERAGE,
            "coverage",
            "0 duplicates, 1 missing, 0 with wrong pixels among 3200 served",
        ),
    ),
    "samples that never came": (
        lambda record: part(record, "coverage", served=3199, unique=3199),
        (Rule.COVERAGE, "samples", "3199 indices came, 3200 samples are counted"),
    ),
    "a payload that the store does not have": (
        changed(payload_bytes=3200 * 196_608 + 400_000),
        (
            Rule.ARITHMETIC,
            "payload_bytes",
            "629545600 bytes, but 3200 samples of this store are 629145600",
        ),
    ),
    "no count of pages": (
        changed(cache=None),
        (Rule.CACHE, "cache", "the cell is cold, but no resident pages were counted"),
    ),
    "a failed cache state": (
        lambda record: part(record, "cache", verdict=CacheVerdict.FAILED),
        (Rule.CACHE, "cache.verdict", "the cache state failed, but the record is not failed"),
    ),
    "verified without a count": (
        lambda record: part(record, "cache", resident_frac_before=None),
        (Rule.CACHE, "resident_frac_before", "called verified, but nothing was counted"),
    ),
    "cold with pages resident": (
        lambda record: part(record, "cache", resident_frac_before=0.02),
        (Rule.CACHE, "resident_frac_before", "called cold with 2.0% resident"),
    ),
    "more than memory can give": (
        changed(fetch_s=1e-3),
        (
            Rule.CEILING,
            "payload_bytes_per_s",
            "461 GiB per second of fetching and decoding, above the 91.6 GiB that memory can give there",
        ),
    ),
    "a portion where none belongs": (
        lambda record: dataclasses.replace(record, portion=portion_of(record)),
        (Rule.CACHE, "portion", "a steady portion in a cell whose cache state is cold"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_finding_says_what_is_wrong(tmp_path: Path, name: str) -> None:
    plant, expected = PLANTED[name]
    record = make_record("lmdb", cache="cold")
    told = [(one.kind, one.figure, one.message) for one in found(tmp_path, plant(record))]
    assert expected in told
    assert len(told) <= 2


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["timed_s", "h2d_s", "prep_s", "open_s", "time_to_first_batch_s"])
def test_records_that_were_not_read_from_a_file_have_durations_too(
    tmp_path: Path, name: str, value: float
) -> None:
    record = changed(**{name: value})(make_record("lmdb"))
    told = {(one.kind, one.figure, one.message) for one in validate_records([(record, tmp_path / "none")])}
    assert (Rule.ARITHMETIC, name, f"{value} is no duration") in told


def test_unexplained_time_is_told_with_its_share(tmp_path: Path) -> None:
    [problem] = found(tmp_path, make_record("lmdb", overhead_ms=2.0))
    assert (problem.kind, problem.figure) == (Rule.ARITHMETIC, "overhead_s")
    assert problem.message == "12% of the time (200 ms) is explained by nothing"


def test_a_warm_epoch_that_read_a_device_is_told_with_its_share(tmp_path: Path) -> None:
    record = make_record("lmdb", cache="warm")
    read = dataclasses.replace(record, counters=Counters(device_read_bytes=record.payload_bytes // 2))
    [problem] = found(tmp_path, read)
    assert (problem.kind, problem.figure) == (Rule.CACHE, "device_read_bytes")
    assert problem.message == "called warm, but the device delivered 300 MiB, and 30.0 MiB are permitted"


@pytest.mark.parametrize(("share", "findings"), [(0.04, 0), (0.06, 1), (1.0, 1)])
def test_many_passes_do_not_hide_that_a_warm_epoch_read_its_store(
    tmp_path: Path, share: float, findings: int
) -> None:
    """A share of the requested bytes alone permits 60 passes to read the store three times."""
    record = make_record("lmdb", cache="warm")
    assert record.store is not None
    store = dataclasses.replace(
        record.store, file_bytes=record.payload_bytes // 60, bytes_on_disk=record.payload_bytes // 60
    )
    read = Counters(device_read_bytes=round(share * store.file_bytes) + (2 << 20))
    changed_record = dataclasses.replace(record, store=store, counters=read)
    assert [one.figure for one in found(tmp_path, changed_record)].count("device_read_bytes") == findings


LIMITED: dict[str, Any] = {"cache": "limited", "memory_bytes": 400 << 20}


@pytest.mark.parametrize(
    ("changes", "figure", "message"),
    [
        (
            {"limit_bytes": None},
            "cache.limit_bytes",
            "called limited to 400 MiB, but no limit was in force",
        ),
        (
            {"limit_bytes": 800 << 20},
            "cache.limit_bytes",
            "called limited to 400 MiB, but 800 MiB was in force",
        ),
        (
            {"resident_frac_after": 0.9},
            "resident_frac_after",
            "called limited to 400 MiB with 90.0% of the store resident, which is 687 MiB",
        ),
        (
            {"resident_max_frac": 0.9},
            "resident_max_frac",
            "687 MiB of the store were resident, above the limit of 400 MiB",
        ),
        (
            {"resident_max_frac": 0.59, "sampling_error_frac": 1.0},
            "resident_max_frac",
            "450 MiB of the store were resident, above the limit of 400 MiB",
        ),
    ],
)
def test_a_page_cache_beyond_its_limit_is_told(
    tmp_path: Path, changes: dict[str, Any], figure: str, message: str
) -> None:
    record = make_record("lmdb", **LIMITED)
    right = {"limit_bytes": 400 << 20, "resident_frac_before": 0.3, "resident_frac_after": 0.4}
    verified = part(record, "cache", verdict=CacheVerdict.VERIFIED, **(right | changes))
    read = dataclasses.replace(verified, counters=Counters(device_read_bytes=record.payload_bytes))
    [problem] = found(tmp_path, read)
    assert (problem.kind, problem.figure, problem.message) == (Rule.CACHE, figure, message)


@pytest.mark.parametrize(("error_frac", "figures"), [(0.0, ["resident_max_frac"]), (0.044, [])])
def test_a_share_of_some_files_may_exceed_a_limit_by_its_error(
    tmp_path: Path, error_frac: float, figures: list[str]
) -> None:
    record = part(
        make_record("png", **LIMITED),
        "cache",
        verdict=CacheVerdict.VERIFIED,
        limit_bytes=400 << 20,
        resident_frac_before=0.3,
        resident_frac_after=0.4,
        resident_max_frac=0.56,
        sampling_error_frac=error_frac,
    )
    read = dataclasses.replace(record, counters=Counters(device_read_bytes=record.payload_bytes))
    assert [problem.figure for problem in found(tmp_path, read)] == figures


@pytest.mark.parametrize(
    ("part_of_sleep", "short"), [(1.0, False), (0.99, False), (0.985, True), (0.5, True)]
)
def test_emulated_steps_are_as_long_as_they_sleep(tmp_path: Path, part_of_sleep: float, short: bool) -> None:
    record = make_record("lmdb", compute="emulated:10", model="none", compute_ms=10 * part_of_sleep)
    problems = found(tmp_path, record)
    assert [problem.figure for problem in problems] == ["compute_s"] * short
    if part_of_sleep == 0.5:
        assert problems[0].message == "0.5 s, but 100 steps of emulated:10 take 1 s"
        assert problems[0].kind is Rule.ARITHMETIC


def on_two_nodes(cache: str, *resident: float | None) -> Record:
    """Plant a job of two ranks, each on a node of its own, with so much resident before the epoch."""
    record = with_job(make_record("lmdb", ranks=2, cache=cache))
    assert record.job is not None
    ranks = [
        dataclasses.replace(rank, node=number, resident_frac_before=frac)
        for number, (rank, frac) in enumerate(zip(record.job.per_rank, resident, strict=True))
    ]
    return dataclasses.replace(record, job=dataclasses.replace(record.job, per_rank=tuple(ranks), nodes=2))


@pytest.mark.parametrize(
    ("cache", "resident", "message"),
    [
        ("cold", 0.005, ""),
        ("cold", 0.02, "called cold with 2.0% resident on node 1"),
        ("warm", 0.995, ""),
        ("warm", 0.98, "called warm with 98.0% resident on node 1"),
        ("cold", None, ""),
    ],
)
def test_the_page_cache_of_every_node_is_in_the_state_of_the_cell(
    tmp_path: Path, cache: str, resident: float | None, message: str
) -> None:
    first = 0.0 if cache == "cold" else 1.0
    problems = [
        problem
        for problem in found(tmp_path, on_two_nodes(cache, first, resident))
        if problem.figure.endswith("resident_frac_before")
    ]
    assert [problem.message for problem in problems] == ([message] if message else [])
    for problem in problems:
        assert (problem.kind, problem.figure) == (Rule.CACHE, "job.per_rank[1].resident_frac_before")


@pytest.mark.parametrize("name", ["resident_frac_before", "resident_frac_after"])
def test_a_residency_above_1_is_told(name: str, tmp_path: Path) -> None:
    [problem] = found(tmp_path, part(make_record("lmdb", cache="any"), "cache", **{name: 1.5}))
    assert (problem.kind, problem.figure) == (Rule.ARITHMETIC, name)
    assert problem.message == "1.5 is no share between 0 and 1"


@pytest.mark.parametrize(
    ("changes", "again"),
    [({"passes": 2}, True), ({"pad": True}, True), ({"trainer_data": "replicated"}, True), ({}, False)],
)
def test_samples_may_come_again_only_where_the_cell_serves_them_again(
    changes: dict[str, Any], again: bool, tmp_path: Path
) -> None:
    record = part(make_record("lmdb", **changes), "coverage", unique=1600)
    told = [problem for problem in found(tmp_path, record) if problem.kind is Rule.COVERAGE]
    assert [problem.figure for problem in told] == ([] if again else ["coverage"])


@pytest.mark.parametrize(("share", "readers"), [("none", 2), ("node", 1)])
def test_memory_serves_as_many_readers_as_a_job_has(share: str, readers: int, tmp_path: Path) -> None:
    record = with_job(make_record("lmdb", model="lenet", cache="warm", ranks=2, share=share))
    copying_s = record.payload_bytes / COPY_BYTES_PER_S
    for factor, kept in ((1.2, True), (1.3, False)):
        busy = dataclasses.replace(record, fetch_s=copying_s / factor / readers)
        figures = [problem.figure for problem in found(tmp_path / str(factor), busy)]
        assert ("payload_bytes_per_s" not in figures) is kept


# Several records


def test_steps_of_fewer_ranks_than_the_job_has_are_told(tmp_path: Path) -> None:
    record = with_job(make_record("lmdb", cache="warm", ranks=2))
    told = [(one.kind, one.figure, one.message) for one in found(tmp_path, record, with_steps=True)]
    assert (Rule.STEPS, "steps_file", "its steps are those of 1 rank, not of 2") in told


def test_a_copy_of_a_run_is_told_and_equal_times_in_one_run_are_not(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, [make_record("lmdb", replicate=n, run_id=name) for n in range(2)])
        for name in ("a", "b")
    ]
    for run in runs:
        (run / "run.json").write_text("{", encoding="utf-8")  # other rules check its content
    told = [problem for problem in validate(runs) if problem.figure == "run_id"]
    message = "run a has an epoch of exactly the same times: one of them is a copy"
    assert [(problem.kind, problem.run_id, problem.message) for problem in told] == [
        (Rule.RUN, "b", message)
    ] * 2
    assert not [problem for problem in validate(runs[0]) if problem.figure == "run_id"]
    (runs[1] / "run.json").unlink()
    assert not [problem for problem in validate(runs) if problem.figure == "run_id"], "no run of its own"


@pytest.mark.parametrize(("null_s", "above"), [(100.0, False), (250.0, True)])
def test_cells_of_less_than_a_sample_per_second_have_a_ceiling_too(
    null_s: float, above: bool, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"cache": "warm", "steps": 20, "fetch_ms": 0.0, "prep_ms": 0.0}
    records = [
        make_record(name, replicate=n, wait_ms=0.0, compute_ms=1000 * seconds, **parts)
        for name, seconds in (("null", null_s), ("lmdb", 100.0))
        for n in range(3)
    ]
    assert records[0].samples_per_s < 1
    figures = [problem.figure for problem in found(tmp_path, *records) if problem.kind is Rule.CEILING]
    assert figures == ["samples_per_s"] * above


def test_a_replicate_that_is_recorded_twice_is_told(tmp_path: Path) -> None:
    [problem] = found(tmp_path, make_record("lmdb"), make_record("lmdb"))
    assert (problem.kind, problem.figure) == (Rule.SCHEMA, "replicate")
    assert problem.message == "the same replicate and epoch is recorded twice"


def test_steps_that_are_not_there_are_told(tmp_path: Path) -> None:
    record = dataclasses.replace(make_record("lmdb"), steps_file="steps/none.parquet")
    [problem] = found(tmp_path, record)
    assert (problem.kind, problem.figure) == (Rule.STEPS, "steps_file")
    assert problem.message == "steps/none.parquet is not there"


def test_a_sum_that_its_steps_do_not_give_is_told(tmp_path: Path) -> None:
    record = make_record("lmdb", cache="warm")
    run = write_run(tmp_path / "run", [record], with_steps=True)
    assert validate(run) == []
    table = steps_table(record)
    table["prep_ns"] = 2 * table["prep_ns"]
    table.to_parquet(run / "steps" / "00000.parquet")
    [problem] = validate(run)
    assert (problem.kind, problem.figure) == (Rule.STEPS, "prep_s")
    assert problem.message == "0.1, but its steps add up to 0.2"


def test_a_rate_above_compute_alone_is_told_with_its_ratio(tmp_path: Path) -> None:
    null = [make_record("null", wait_ms=0, compute_ms=28, replicate=n) for n in range(3)]
    problems = found(tmp_path, *null, *(make_record("lmdb", replicate=n) for n in range(3)))
    assert [(problem.kind, problem.figure) for problem in problems] == [(Rule.CEILING, "samples_per_s")]
    assert problems[0].message == "2.00 [2.00, 2.00] times what compute alone reaches in the same rounds"


def test_jobs_of_equal_batches_have_one_order_and_padded_ones_their_own(tmp_path: Path) -> None:
    alone = make_record("lmdb", batch_size=64)
    order = alone.digests
    assert order is not None
    job = part(with_job(make_record("png", ranks=2, batch_size=32)), "digests", order="another")
    figures = [problem.figure for problem in found(tmp_path / "plain", alone, job)]
    assert "digests.order" in figures
    padded = part(with_job(make_record("png", ranks=2, batch_size=32, pad=True)), "digests", order="another")
    once = make_record("lmdb", batch_size=64, pad=True)
    figures = [problem.figure for problem in found(tmp_path / "padded", once, padded)]
    assert "digests.order" not in figures


def test_the_fastest_memory_of_a_cell_is_the_ceiling_of_its_replicates(tmp_path: Path) -> None:
    def rated(replicate: int, rate: float | None, **changes: Any) -> Record:
        record = make_record("lmdb", replicate=replicate, **changes)
        return dataclasses.replace(record, ceilings=Ceilings(memory_bytes_per_s=rate))

    fast, slow = 400_000.0 * 196_608, 1e8
    for rates in ((fast, slow, None), (slow, fast, slow), (None, slow, fast)):
        records = [rated(number, rate) for number, rate in enumerate(rates)]
        assert found(tmp_path / str(rates.index(fast)), *records) == []
    elsewhere = rated(1, fast, environment=dataclasses.replace(ENVIRONMENT, key="e2"))
    problems = found(tmp_path / "elsewhere", rated(0, slow), elsewhere)
    assert {(problem.figure, problem.kind) for problem in problems} == {("payload_bytes_per_s", Rule.CEILING)}
