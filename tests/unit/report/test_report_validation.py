"""Results with one planted error each: validation must name the cell and the figure, and nothing else."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from planted import make_record, paper_records, steps_table, write_run

from storebench.report.findings import Kind
from storebench.report.validate import validate
from storebench.results import CacheVerdict, Counters, Percentiles, Record, Status

Cli = Callable[..., CompletedProcess[str]]


def part(record: Record, name: str, **changes: Any) -> Record:
    return dataclasses.replace(record, **{name: dataclasses.replace(getattr(record, name), **changes)})


def test_consistent_results_have_no_finding(tmp_path: Path) -> None:
    records = paper_records() + paper_records("warm") + [make_record("jpeg", cache="any")]
    assert validate(write_run(tmp_path / "run", records, with_steps=True)) == []


PLANTED: dict[str, tuple[Kind, str, Callable[[Record], Record]]] = {
    "a rate that its raw figures do not give": (
        Kind.ARITHMETIC, "samples_per_s", lambda r: dataclasses.replace(r, samples_per_s=r.samples_per_s * 0.9),
    ),
    "warm-up samples counted in the rate": (
        Kind.ARITHMETIC, "timed_samples",
        lambda r: dataclasses.replace(r, samples=r.samples - 32, coverage=dataclasses.replace(
            r.coverage, expected=r.samples - 32, served=r.samples - 32, unique=r.samples - 32)),
    ),
    "parts that do not add up": (
        Kind.ARITHMETIC, "timed_s", lambda r: dataclasses.replace(r, overhead_s=0.01),
    ),
    "time that nothing explains": (
        Kind.ARITHMETIC, "overhead_s", lambda r: make_record(overhead_ms=5.0),
    ),
    "a fraction from other figures": (
        Kind.ARITHMETIC, "data_wait_frac", lambda r: dataclasses.replace(r, data_wait_frac=0.9),
    ),
    "a negative duration": (
        Kind.ARITHMETIC, "prep_s", lambda r: dataclasses.replace(r, prep_s=-1.0),
    ),
    "percentiles out of order": (
        Kind.ARITHMETIC, "data_wait_ns",
        lambda r: dataclasses.replace(r, data_wait_ns=Percentiles(p50=5, p95=4, p99=6, max=7)),
    ),
    "nominal bytes a second": (
        Kind.ARITHMETIC, "payload_bytes_per_s",
        lambda r: dataclasses.replace(r, payload_bytes_per_s=r.payload_bytes_per_s * 1.5),
    ),
    "a sample served twice": (
        Kind.COVERAGE, "coverage", lambda r: part(r, "coverage", unique=r.samples - 1, duplicates=1),
    ),
    "a sample left out": (Kind.COVERAGE, "coverage", lambda r: part(r, "coverage", missing=1)),
    "wrong pixels": (Kind.COVERAGE, "coverage", lambda r: part(r, "coverage", pixels_wrong=1)),
    "samples counted that never came": (
        Kind.COVERAGE, "samples", lambda r: part(r, "coverage", served=r.samples - 1, unique=r.samples - 1),
    ),
    "no coverage at all": (Kind.COVERAGE, "coverage", lambda r: dataclasses.replace(r, coverage=None)),
    "cold with pages resident": (
        Kind.CACHE, "resident_frac_before", lambda r: part(r, "cache", resident_frac_before=0.02),
    ),
    "verified without a count": (
        Kind.CACHE, "resident_frac_before", lambda r: part(r, "cache", resident_frac_before=None),
    ),
    "a failed cache state in a usable record": (
        Kind.CACHE, "cache.verdict", lambda r: part(r, "cache", verdict=CacheVerdict.FAILED),
    ),
    "utilization above one": (
        Kind.CEILING, "accelerator_util_frac", lambda r: dataclasses.replace(r, accelerator_util_frac=1.2),
    ),
    "more bytes than memory can give": (
        Kind.CEILING, "payload_bytes_per_s", lambda r: part(r, "ceilings", memory_bytes_per_s=1e8),
    ),
    "a cold epoch that the device did not feed": (
        Kind.CEILING, "device_read_bytes",
        lambda r: dataclasses.replace(r, counters=Counters(device_read_bytes=r.payload_bytes // 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_error_is_found_with_its_cell_and_figure(tmp_path: Path, name: str) -> None:
    kind, figure, plant = PLANTED[name]
    record = plant(make_record("lmdb"))
    findings = validate(write_run(tmp_path / "run", [record, make_record("png")]))
    assert (kind, figure) in {(one.kind, one.figure) for one in findings}
    assert {one.cell_id for one in findings} == {record.cell.cell_id}
    assert "lmdb" in str(findings[0])


def test_a_warm_cell_with_missing_pages_is_found(tmp_path: Path) -> None:
    record = part(make_record("lmdb", cache="warm"), "cache", resident_frac_before=0.98)
    (found,) = validate(write_run(tmp_path / "run", [record]))
    assert "called warm with 98.0% resident" in found.message


@pytest.mark.parametrize(("rounds", "compute_ms", "found"), [(1, 40, 1), (1, 20, 0), (3, 20, 1), (3, 14, 0)])
def test_a_rate_above_the_compute_ceiling_by_more_than_noise_is_found(
    tmp_path: Path, rounds: int, compute_ms: float, found: int
) -> None:
    # The cell takes 14 ms a step.
    null = [make_record("null", wait_ms=0.1, compute_ms=compute_ms, replicate=n) for n in range(rounds)]
    lmdb = [make_record("lmdb", replicate=n) for n in range(rounds)]
    findings = validate(write_run(tmp_path / "run", null + lmdb))
    assert [(one.kind, one.figure) for one in findings] == [(Kind.CEILING, "samples_per_s")] * found


@pytest.mark.parametrize("name", ["samples", "order", "loss"])
def test_backends_that_disagree_are_found_and_the_odd_one_is_named(tmp_path: Path, name: str) -> None:
    odd = part(make_record("hdf5"), "digests", **{name: "other"})
    (found,) = validate(write_run(tmp_path / "run", [make_record("png"), make_record("lmdb"), odd]))
    assert (found.kind, found.figure) == (Kind.DISAGREEMENT, f"digests.{name}")
    assert "hdf5" in found.cell


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_losses_must_agree_bit_by_bit_only_where_the_device_is_deterministic(
    tmp_path: Path, device: str
) -> None:
    odd = part(make_record("hdf5", device=device), "digests", loss="other")
    found = validate(write_run(tmp_path / "run", [make_record("png", device=device), odd]))
    assert len(found) == (1 if device == "cpu" else 0)


def test_a_lossy_codec_may_have_other_pixels_but_not_another_order(tmp_path: Path) -> None:
    jpeg = part(make_record("jpeg"), "digests", samples="bb", loss="cc")
    jpeg = part(jpeg, "store", samples_digest="bb")
    assert validate(write_run(tmp_path / "a", [make_record("png"), jpeg])) == []
    other = part(jpeg, "digests", order="else")
    assert len(validate(write_run(tmp_path / "b", [make_record("png"), other]))) == 1


def test_null_has_nobodys_pixels_and_disagrees_with_nobody(tmp_path: Path) -> None:
    null = part(make_record("null", wait_ms=0.1), "digests", samples="zz", loss="yy")
    assert validate(write_run(tmp_path / "run", [make_record("png"), null])) == []


def test_steps_that_do_not_add_up_to_their_record_are_found(tmp_path: Path) -> None:
    record = dataclasses.replace(make_record("lmdb"), steps_file="steps/0.parquet")
    run = write_run(tmp_path / "run", [record])
    steps_table(record, wait_ns=[5_000_000] * record.steps).to_parquet(run / "steps" / "0.parquet")
    (found,) = validate(run)
    assert (found.kind, found.figure) == (Kind.STEPS, "data_wait_s")


@pytest.mark.parametrize("content", [None, b"not parquet"])
def test_a_step_file_that_is_missing_or_broken_is_found(tmp_path: Path, content: bytes | None) -> None:
    run = write_run(
        tmp_path / "run", [dataclasses.replace(make_record("lmdb"), steps_file="steps/0.parquet")]
    )
    if content:
        (run / "steps" / "0.parquet").write_bytes(content)
    assert [one.kind for one in validate(run)] == [Kind.STEPS]


def test_the_same_replicate_twice_is_found(tmp_path: Path) -> None:
    (found,) = validate(write_run(tmp_path / "run", [make_record("lmdb"), make_record("lmdb")]))
    assert "twice" in found.message


def test_a_line_that_is_no_record_is_found_and_a_half_line_is_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_record("lmdb")])
    with (run / "records.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "run_id": 5}\n{"schema_version": 7}\n{"schema_ver')
    findings = validate(run)
    assert [one.kind for one in findings] == [Kind.SCHEMA, Kind.SCHEMA]
    assert findings[0].cell.endswith("records.jsonl:2")


def test_a_failed_record_claims_nothing(tmp_path: Path) -> None:
    failed = make_record(
        "lmdb", status=Status.FAILED, failure="12% resident", samples_per_s=1e9, coverage=None
    )
    assert validate(write_run(tmp_path / "run", [failed])) == []


def test_the_command_prints_findings_and_exits_5(tmp_path: Path, cli: Cli) -> None:
    write_run(tmp_path / "good", [make_record("lmdb")])
    write_run(tmp_path / "bad", [dataclasses.replace(make_record("lmdb"), data_wait_frac=0.9)])
    good, bad, as_json = cli("validate", "good"), cli("validate", "bad"), cli("validate", "bad", "--json")
    assert (good.returncode, bad.returncode, as_json.returncode) == (0, 5, 5)
    assert "data_wait_frac" in bad.stdout
    assert json.loads(as_json.stdout)[0]["figure"] == "data_wait_frac"
    assert len(bad.stderr.splitlines()) == 1
