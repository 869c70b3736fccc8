"""Results with one planted error each: validation must name the cell and the figure, and nothing else."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storebench.analysis.checks.findings import Rule
from storebench.record.lines import RECORDS_NAME, append_records, read_records
from storebench.record.schema import (
    CacheVerdict,
    Counters,
    Percentiles,
    Record,
    ResidencyPoint,
)
from tests.support.findings import validate
from tests.support.planted import (
    COPY_BYTES_PER_S,
    ENVIRONMENT,
    make_record,
    paper_records,
    with_job,
    write_run,
)


def part(record: Record, name: str, **changes: Any) -> Record:
    return dataclasses.replace(record, **{name: dataclasses.replace(getattr(record, name), **changes)})


def test_consistent_results_have_no_finding(tmp_path: Path) -> None:
    records = paper_records("cold") + paper_records("warm") + [make_record("jpeg", cache="any")]
    assert validate(write_run(tmp_path / "run", records, with_steps=True)) == []


PLANTED: dict[str, tuple[Rule, str, Callable[[Record], Record]]] = {
    "a rate that its steps do not give": (
        Rule.STEPS, "samples_per_s", lambda r: dataclasses.replace(r, samples_per_s=r.samples_per_s * 0.9),
    ),
    "time that nothing explains": (
        Rule.ARITHMETIC, "overhead_s", lambda r: dataclasses.replace(r, overhead_s=0.5),
    ),
    "other percentiles": (
        Rule.STEPS, "data_wait_ns",
        lambda r: dataclasses.replace(r, data_wait_ns=Percentiles(p50=5, p95=4, p99=6, max=7)),
    ),
    "a sample served twice": (
        Rule.COVERAGE, "coverage", lambda r: part(r, "coverage", unique=r.samples - 1, duplicates=1),
    ),
    "a sample left out": (Rule.COVERAGE, "coverage", lambda r: part(r, "coverage", missing=1)),
    "wrong pixels": (Rule.COVERAGE, "coverage", lambda r: part(r, "coverage", timed_wrong=1)),
    "samples counted that never came": (
        Rule.COVERAGE, "samples", lambda r: part(r, "coverage", served=r.samples - 1, unique=r.samples - 1),
    ),
    "no coverage at all": (Rule.COVERAGE, "coverage", lambda r: dataclasses.replace(r, coverage=None)),
    "cold with pages resident": (
        Rule.CACHE, "resident_frac_before", lambda r: part(r, "cache", resident_frac_before=0.02),
    ),
    "more bytes than memory can give": (
        Rule.CEILING, "payload_bytes_per_s", lambda r: dataclasses.replace(r, fetch_s=1e-6),
    ),
    "no time to decode": (
        Rule.ARITHMETIC, "decode_s",
        lambda r: dataclasses.replace(make_record("png", cache="cold", decode_ms=0.005), steps_file=r.steps_file),
    ),
}  # fmt: skip


def rewritten(run: Path, plant: Callable[[Record], Record]) -> None:
    """Change the first record of a run, whose steps stay as they are."""
    first, *others = read_records(run / RECORDS_NAME)
    (run / RECORDS_NAME).unlink()
    append_records(run, [plant(first), *others])


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_error_is_found_with_its_cell_and_figure(tmp_path: Path, name: str) -> None:
    kind, figure, plant = PLANTED[name]
    run = write_run(
        tmp_path / "run",
        [make_record("lmdb", cache="cold"), make_record("hdf5", cache="cold")],
        with_steps=True,
    )
    cell_id = read_records(run / RECORDS_NAME)[0].cell.cell_id
    rewritten(run, plant)
    findings = validate(run)
    assert (kind, figure) in {(finding.kind, finding.figure) for finding in findings}
    assert {finding.cell_id for finding in findings} <= {
        cell_id,
        make_record("png", cache="cold").cell.cell_id,
    }


STEPS: dict[str, tuple[str, Callable[[pd.DataFrame], None]]] = {
    "a batch that was not ready": ("ready_ns", lambda t: t.__setitem__("ready_ns", t["ready_ns"] + 1_500_000)),
    "work before the first request": ("fetch_start_ns", lambda t: t.loc.__setitem__((0, "fetch_start_ns"), -2_000_000)),
    "another wait": ("data_wait_s", lambda t: t.__setitem__("data_wait_ns", t["data_wait_ns"] - 1_000_000)),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_contradict_their_record_are_found(tmp_path: Path, name: str) -> None:
    figure, plant = STEPS[name]
    run = write_run(tmp_path / "run", [make_record("lmdb", cache="warm")], with_steps=True)
    assert validate(run) == []
    path = run / "steps" / "00000.parquet"
    table = pd.read_parquet(path)
    plant(table)
    table.to_parquet(path)
    assert figure in {finding.figure for finding in validate(run)}


LIMIT = 400 << 20
ALLOWED = LIMIT / 800_000_000


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({}, ""),
        ({"resident_frac_after": ALLOWED + 0.011}, "resident_max_frac"),
        ({"resident_frac_before": 0.9}, "resident_max_frac"),
        ({"curve": (ResidencyPoint(elapsed_s=1, asked_frac=0.5, resident_frac=0.9),)}, "resident_max_frac"),
    ],
)
def test_a_limited_cell_with_more_resident_than_its_limit_is_found(
    tmp_path: Path, changes: dict[str, Any], figure: str
) -> None:
    facts = {
        "verdict": CacheVerdict.VERIFIED,
        "limit_bytes": LIMIT,
        "resident_frac_before": 0.3,
        "resident_frac_after": 0.4,
    }
    record = make_record("lmdb", cache="limited", memory_bytes=LIMIT)
    record = dataclasses.replace(record, counters=Counters(device_read_bytes=2 * record.payload_bytes))
    record = part(record, "cache", **(facts | changes))
    found = [finding.figure for finding in validate(write_run(tmp_path / "run", [record]))]
    assert found == ([figure] if figure else [])


@pytest.mark.parametrize(
    ("rounds", "null_ms", "found"),
    [(4, 29, 0), (5, 16.8, 1), (5, 15.5, 0)],
)
def test_a_rate_above_the_compute_ceiling_by_more_than_noise_is_found(
    tmp_path: Path, rounds: int, null_ms: float, found: int
) -> None:
    # The cell takes 14 ms per step.
    null = [make_record("null", wait_ms=0, compute_ms=null_ms, replicate=n) for n in range(rounds)]
    lmdb = [make_record("lmdb", replicate=n) for n in range(rounds)]
    findings = validate(write_run(tmp_path / "run", null + lmdb))
    assert [(finding.kind, finding.figure) for finding in findings] == [
        (Rule.CEILING, "samples_per_s")
    ] * found


def test_stores_of_one_dataset_with_other_pixels_are_found(tmp_path: Path) -> None:
    odd = part(make_record("hdf5"), "store", samples_digest="other")
    (found,) = validate(write_run(tmp_path / "run", [make_record("png"), make_record("lmdb"), odd]))
    assert (found.kind, found.figure) == (Rule.DISAGREEMENT, "store.samples_digest")
    assert "hdf5" in found.cell


@pytest.mark.parametrize(("frac", "found"), [(0.0899, 0), (0.1101, 1)])
def test_a_warm_epoch_that_the_device_fed_is_found(tmp_path: Path, frac: float, found: int) -> None:
    record = make_record("lmdb", cache="warm")
    read = round(frac * record.payload_bytes / 2)
    record = dataclasses.replace(record, counters=Counters(device_read_bytes=read))
    findings = validate(write_run(tmp_path / "run", [record]))
    assert [(finding.kind, finding.figure) for finding in findings] == [
        (Rule.CACHE, "device_read_bytes")
    ] * found


@pytest.mark.parametrize(("overhead_ms", "steps", "found"), [(2.0, 100, 1), (0.6, 100, 0), (2.0, 4, 0)])
def test_unexplained_time_counts_from_a_share_and_an_absolute_part(
    tmp_path: Path, overhead_ms: float, steps: int, found: int
) -> None:
    # 14 ms per step are explained: 2 ms are 12% of an epoch of any length, but 8 ms in all are two preemptions.
    record = make_record("lmdb", overhead_ms=overhead_ms, steps=steps)
    findings = validate(write_run(tmp_path / "run", [record]))
    assert [finding.figure for finding in findings] == ["overhead_s"] * found


# Rates and times that are wrong by a factor of 1.5, each above its bound


def at_the_copy_rate(factor: float, **changes: Any) -> Record:
    """Return a warm record whose fetching copies as fast as the ceiling of one thread, times a factor."""
    record = make_record("lmdb", cache="warm", **({"model": "lenet"} | changes))
    copying_s = record.payload_bytes / COPY_BYTES_PER_S
    return dataclasses.replace(record, fetch_s=copying_s / factor)


def payload(factor: float) -> Record:
    record = make_record("lmdb", steps=125, cache="cold")
    return dataclasses.replace(
        record,
        payload_bytes=round(record.payload_bytes * factor),
        counters=Counters(device_read_bytes=2 * record.payload_bytes),
    )


OFF_BY_HALF: dict[str, tuple[str, Callable[[float], Record]]] = {
    "a warm rate above the copying of one thread": ("payload_bytes_per_s", at_the_copy_rate),
    "a payload that the store does not have": ("payload_bytes", payload),
}


@pytest.mark.parametrize("name", OFF_BY_HALF)
def test_a_figure_that_is_wrong_by_half_is_found_and_the_right_one_is_not(tmp_path: Path, name: str) -> None:
    figure, plant = OFF_BY_HALF[name]
    wrong = validate(write_run(tmp_path / "wrong", [plant(1.5)]))
    assert figure in {one.figure for one in wrong}
    assert validate(write_run(tmp_path / "right", [plant(1.0)])) == []


def test_threads_copy_side_by_side_as_far_as_cores_allow(tmp_path: Path) -> None:
    record = at_the_copy_rate(1.9, threads=2)
    places = dataclasses.replace(ENVIRONMENT, match={"cores": 2})
    both = dataclasses.replace(record, environment=places)
    assert validate(write_run(tmp_path / "two", [both])) == []
    one_core = dataclasses.replace(record, environment=dataclasses.replace(places, match={"cores": 1}))
    idle = dataclasses.replace(
        both, counters=Counters(device_read_bytes=0, cpu_user_s=record.fetch_s, cpu_system_s=0.0)
    )
    for name, wrong in (("core", one_core), ("cpu", idle)):
        (found,) = validate(write_run(tmp_path / name, [wrong]))
        assert found.figure == "payload_bytes_per_s"


@pytest.mark.parametrize(
    "wrong",
    [{"samples_per_s": 1.5}, {"resident_frac": 0.5}, None],
    ids=["rate", "resident", "left out"],
)
def test_rates_from_a_cold_start_are_those_of_the_steps_and_the_curve(
    tmp_path: Path, wrong: dict[str, Any] | None
) -> None:
    record = make_record("lmdb", cache="cold")
    curve = [
        ResidencyPoint(elapsed_s=share, asked_frac=share, resident_frac=min(1.0, 2 * share))
        for share in (0.0, 0.4, 0.8)
    ]
    record = part(record, "cache", curve=tuple(curve), resident_max_frac=1.0)
    run = write_run(tmp_path / "run", [record], with_steps=True)
    assert validate(run) == []
    [raw] = [json.loads(line) for line in (run / RECORDS_NAME).read_text().splitlines()]
    assert [rate["read_frac"] for rate in raw["cold_rates"]] == [0.02, 0.05, 0.1, 0.25]
    if wrong is None:
        del raw["cold_rates"][0]
    else:
        raw["cold_rates"][0] |= wrong
    (run / RECORDS_NAME).write_text(json.dumps(raw) + "\n")
    assert [(found.kind, found.figure) for found in validate(run)] == [(Rule.STEPS, "cold_rates")]


@pytest.mark.parametrize("name", ["order", "loss"])
def test_backends_that_disagree_are_found_and_the_odd_one_is_named(tmp_path: Path, name: str) -> None:
    odd = part(make_record("hdf5"), "digests", **{name: "other"})
    found = validate(write_run(tmp_path / "run", [make_record("png"), make_record("lmdb"), odd]))
    assert {one.kind for one in found} == {Rule.DISAGREEMENT}
    assert {one.figure for one in found} == {f"digests.{name}"}
    assert all("hdf5" in one.cell for one in found)


def test_a_lossy_codec_may_have_other_pixels_but_not_another_order(tmp_path: Path) -> None:
    jpeg = part(make_record("jpeg"), "digests", loss="cc")
    jpeg = part(jpeg, "store", samples_digest="bb")
    assert validate(write_run(tmp_path / "a", [make_record("png"), jpeg])) == []
    other = part(jpeg, "digests", order="else")
    found = validate(write_run(tmp_path / "b", [make_record("png"), other]))
    assert {one.figure for one in found} == {"digests.order"}


def original(backend: str, **digests: str) -> Record:
    own = {"loss": "files"} | digests
    return part(part(make_record(backend), "digests", **own), "store", samples_digest="bytes")


def test_original_files_must_agree_among_themselves(tmp_path: Path) -> None:
    same = [make_record("png"), original("original"), original("lmdb+original")]
    assert validate(write_run(tmp_path / "same", same)) == []
    scaled = original("lmdb+original?scale=dct", loss="scaled")
    assert validate(write_run(tmp_path / "scaled", [*same, scaled])) == []
    odd = original("hdf5+original", loss="other")
    (found,) = validate(write_run(tmp_path / "odd", [*same, odd]))
    assert (found.kind, found.figure) == (Rule.DISAGREEMENT, "digests.loss")
    assert "hdf5+original" in found.cell


@pytest.mark.parametrize(
    ("first_ms", "later_ms", "steps", "kept"),
    [
        (1.2, 0.25, 100, True),
        (1.4, 0.25, 100, False),
        (0.07, 0.0125, 100, True),
        (60, 1, 2, True),
        (60, 1, 4, False),
    ],
)
def test_an_epoch_that_decodes_five_times_as_fast_is_found(
    tmp_path: Path, first_ms: float, later_ms: float, steps: int, kept: bool
) -> None:
    epochs = [
        make_record("png", cache="warm", epochs=2, epoch=epoch, wait_ms=4 + ms, decode_ms=ms, steps=steps)
        for epoch, ms in enumerate((first_ms, later_ms))
    ]
    found = [finding.figure for finding in validate(write_run(tmp_path / "run", epochs))]
    assert found == ([] if kept else ["decode_s"])


def test_a_device_that_served_a_full_data_store_is_found(tmp_path: Path) -> None:
    record = with_job(make_record("lmdb", ranks=2, share="store", store_fill="preload"))
    read = dataclasses.replace(record, counters=Counters(device_read_bytes=record.payload_bytes))
    found = [
        [one.figure for one in validate(write_run(tmp_path / str(n), [r]))]
        for n, r in enumerate((record, read))
    ]
    assert found == [[], ["device_read_bytes"]]
