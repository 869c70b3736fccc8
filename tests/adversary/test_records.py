"""Attacks on a run that was measured: each changes what is recorded, and validation has to name the figure.

Out of reach: an adversary who rewrites a record, its step table and its curve so that all of them agree. Records are
not signed.
"""

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storebench.errors import IntegrityError
from storebench.report.build import write_report
from storebench.report.checks.records import validate
from tests.support.quick_cli import storebench
from tests.support.step_tables import split, write_merged

Raw = dict[str, Any]
Attack = Callable[[Raw], None]


def rows(run: Path) -> list[Raw]:
    return [json.loads(line) for line in (run / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def write(run: Path, records: list[Raw]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / "records.jsonl").write_text(text, encoding="utf-8")


def one_of(records: list[Raw], backend: str, cache: str) -> Raw:
    return next(r for r in records if (r["cell"]["backend"], r["cell"]["cache"]) == (backend, cache))


def scaled(record: Raw, factor: float) -> None:
    """Claim that everything took `factor` times as long, with sums and rates that agree."""
    for name in ("timed_s", "epoch_s", "data_wait_s", "h2d_s", "compute_s", "overhead_s", "fetch_s"):
        record[name] *= factor
    record["samples_per_s"] /= factor
    record["payload_bytes_per_s"] /= factor


def put(path: str, value: Any) -> Attack:
    """Return an attack that puts a value at a dotted path."""

    def attack(record: Raw) -> None:
        *parts, last = path.split(".")
        for part in parts:
            record = record[part]
        record[last] = value(record[last]) if callable(value) else value

    return attack


ATTACKS: dict[str, tuple[str, str, Attack, str]] = {
    "a rate that is twice as high": ("hdf5", "warm", put("samples_per_s", lambda v: 2 * v), "samples_per_s"),
    "half the time, all sums agreeing": ("hdf5", "warm", lambda r: scaled(r, 0.5), "data_wait_s"),
    "waiting booked as computing": (
        "png", "warm",
        lambda r: r.update(compute_s=r["compute_s"] + r["data_wait_s"] / 2, data_wait_s=r["data_wait_s"] / 2),
        "data_wait_s",
    ),
    "decoding booked as fetching": (
        "png", "warm", lambda r: r.update(fetch_s=r["fetch_s"] + r["decode_s"], decode_s=0.0), "decode_s",
    ),
    "augmentation that cost nothing": ("png", "warm", put("prep_s", lambda v: v + 1.0), "prep_s"),
    "a slow step called a warm-up step": (
        "hdf5", "warm", lambda r: r.update(timed_steps=r["timed_steps"] - 1), "timed_steps",
    ),
    "samples that never came": ("hdf5", "warm", put("samples", lambda v: v + 32), "samples"),
    "a sample served twice": ("hdf5", "warm", put("coverage.duplicates", 1), "coverage"),
    "a sample left out": ("hdf5", "warm", put("coverage.missing", 1), "coverage"),
    "wrong pixels in the timed batches": ("hdf5", "cold", put("coverage.timed_wrong", 1), "coverage"),
    "a timed pass that nothing proves": ("hdf5", "cold", put("coverage.timed_checked", 0), "coverage"),
    "no coverage at all": ("hdf5", "warm", put("coverage", None), "coverage"),
    "cold with half of the store resident": (
        "hdf5", "cold", put("cache.resident_frac_before", 0.5), "resident_frac_before",
    ),
    "warm with half of the store evicted": (
        "hdf5", "warm", put("cache.resident_frac_before", 0.5), "resident_frac_before",
    ),
    "a warm store that was gone at the end": (
        "hdf5", "warm", put("cache.resident_frac_after", 0.3), "resident_frac_after",
    ),
    "cold without a count": ("hdf5", "cold", put("cache.resident_frac_before", None), "resident_frac_before"),
    "no facts about the cache": ("hdf5", "cold", put("cache", None), "cache"),
    "a failed cache state in a usable record": ("hdf5", "cold", put("cache.verdict", "failed"), "cache.verdict"),
    "a cold rate that its steps do not give": (
        "hdf5", "cold", lambda r: put("samples_per_s", lambda v: 3 * v)(r["cold_rates"][0]), "cold_rates",
    ),
    "a cold rate left out": ("hdf5", "cold", lambda r: r["cold_rates"].pop(0), "cold_rates"),
    "an excess of pages that is not admitted": (
        "hdf5", "cold", lambda r: put("excess_frac", 0.9)(r["cold_rates"][0]), "cold_rates",
    ),
    "one sample proven of the timed pass": (
        "hdf5", "cold", put("coverage.timed_checked", 1), "coverage.timed_checked",
    ),
    "cold rates without their curve": ("hdf5", "cold", put("cache.curve", []), "cold_rates"),
    "another order": ("hdf5", "warm", put("digests.order", "0" * 32), "digests.order"),
    "another training": ("hdf5", "warm", put("digests.loss", "0" * 32), "digests.loss"),
    "a store of other samples": ("png", "warm", put("store.samples_digest", "0" * 32), "store.samples_digest"),
    "a duration that is no number": ("hdf5", "warm", put("open_s", float("nan")), "open_s"),
    "a negative duration": ("hdf5", "warm", put("handover_s", -1.0), "handover_s"),
    "a share above one": ("hdf5", "warm", put("cache.resident_frac_after", 1.5), "resident_frac_after"),
    "nominal bytes as throughput": (
        "png", "warm", put("payload_bytes_per_s", lambda v: 2 * v), "payload_bytes_per_s",
    ),
    "steps that nobody can look at": ("hdf5", "warm", put("steps_file", None), "steps_file"),
    "a cell that the scenario does not have": ("hdf5", "warm", put("cell.workers", 2), "cell"),
    "a batch size that the scenario does not have": ("hdf5", "warm", put("cell.batch_size", 400), "cell"),
    "a record of another run": ("hdf5", "warm", put("run_id", "another"), "run_id"),
    "another machine under the same name": (
        "hdf5", "warm", put("environment.match.cpu", "a faster one"), "environment.key",
    ),
    "training that an emulated accelerator did": ("hdf5", "warm", put("au_kind", "emulated"), "au_kind"),
    "an emulated accelerator that is faster than it says": (
        "hdf5", "warm",
        lambda r: r.update(au_kind="emulated", cell=r["cell"] | {"compute": "emulated:1000"}), "compute_s",
    ),
}  # fmt: skip


@pytest.mark.quiet  # it comes first, so it makes the run, which must not be a busy machine's
def test_the_honest_run_has_no_finding(run: Path) -> None:
    assert [str(finding) for finding in validate(run)] == []


@pytest.mark.parametrize("name", ATTACKS)
def test_a_changed_record_is_found(run: Path, name: str) -> None:
    backend, cache, attack, figure = ATTACKS[name]
    records = rows(run)
    attack(one_of(records, backend, cache))
    write(run, records)
    assert figure in {finding.figure for finding in validate(run)}


def an_hour_earlier(record: Raw) -> None:
    started = dt.datetime.fromisoformat(record["started_utc"]) - dt.timedelta(hours=1)
    record["started_utc"] = started.isoformat()


def device_reads(share: float) -> Attack:
    """Return what a file system does that delivers this share of the payload from its device."""

    def change(record: Raw) -> None:
        read = int(share * record["payload_bytes"])
        record["counters"] |= {
            "device_read_bytes": read,
            "read_amplification": read / record["payload_bytes"],
        }

    return change


HONEST: dict[str, tuple[str, str, Attack]] = {
    "the wall clock stepped back": ("hdf5", "warm", an_hour_earlier),
    "pixels that are compressed": ("hdf5", "cold", device_reads(0.3)),
    "files that lie in their inodes": ("hdf5", "cold", device_reads(0.0)),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_run_is_not_accused(run: Path, name: str) -> None:
    backend, cache, change = HONEST[name]
    records = rows(run)
    change(one_of(records, backend, cache))
    write(run, records)
    assert [str(finding) for finding in validate(run)] == []


def test_dropping_the_slow_replicate_is_found(run: Path) -> None:
    records = [r for r in rows(run) if (r["cell"]["backend"], r["replicate"]) != ("png", 0)]
    write(run, records)
    found = [(str(finding.kind), finding.figure) for finding in validate(run)]
    assert found == [("run", "replicate"), ("run", "records.jsonl")]


def test_a_run_that_was_interrupted_has_no_gap(run: Path) -> None:
    split(run)  # a finished run has one file of all steps
    write(run, rows(run)[:-1])
    assert validate(run) == []


def test_recording_the_fast_replicate_twice_is_found(run: Path) -> None:
    records = rows(run)
    write(run, [*records, records[-1]])
    assert "replicate" in {finding.figure for finding in validate(run)}


def test_step_tables_that_are_exchanged_are_found(run: Path) -> None:
    records = rows(run)
    first, second = one_of(records, "hdf5", "warm"), one_of(records, "png", "warm")
    first["steps_file"], second["steps_file"] = second["steps_file"], first["steps_file"]
    write(run, records)
    assert "data_wait_s" in {finding.figure for finding in validate(run)}


def test_a_stall_cut_out_of_the_step_table_is_found(run: Path) -> None:
    record = one_of(rows(run), "png", "warm")
    table = pq.read_table(run / "steps.parquet").to_pydict()
    table["data_wait_ns"][table["steps_file"].index(record["steps_file"]) + 3] //= 2
    write_merged(run, pa.table(table))
    assert "data_wait_s" in {finding.figure for finding in validate(run)}


@pytest.mark.parametrize(
    ("batch_size", "hidden_us", "found"),
    [
        (32, [50] * 20, "half of the steps"),
        (32, [50] * 8 + [0] * 12, ""),
        (320, [50, 50], "three quarters of the steps"),
        (64, [0] + [50] * 9, "three quarters of the steps"),
        (214, [50, 50, 0], ""),  # two of three are interrupted
        (320, [50, 0], ""),  # the machine did something else meanwhile
    ],
)
def test_compute_in_the_steps_of_a_cell_that_only_loads_is_found(
    batch_size: int, hidden_us: list[int], found: str, tmp_path: Path
) -> None:
    """Fifty microseconds in each of twenty steps are little beside an epoch, and much beside a warm batch."""
    words = ("--dataset", "cifar10", "--synthetic", "--limit", "640", "--batch-size", str(batch_size))
    done = storebench(tmp_path, "run", "lmdb", *words, "--model", "none", "--compute", "none", "--out", "run")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    table = pq.read_table(run / "steps.parquet").to_pydict()
    before_ns = sum(table["compute_ns"])
    table["compute_ns"] = [1000 * hidden for hidden in hidden_us]  # whatever the machine did meanwhile
    write_merged(run, pa.table(table))
    [record] = rows(run)
    more_s = (sum(table["compute_ns"]) - before_ns) / 1e9
    write(run, [record | {name: record[name] + more_s for name in ("compute_s", "timed_s", "epoch_s")}])
    said = [finding.message for finding in validate(run) if "computes nothing" in finding.message]
    assert [message.partition(" computed")[0] for message in said] == ([found] if found else [])


def test_a_run_that_nobody_can_read_is_found(run: Path) -> None:
    (run / "run.json").write_text('{"cells": [', encoding="utf-8")
    assert [(str(finding.kind), finding.figure) for finding in validate(run)] == [("run", "run.json")]
    with pytest.raises(IntegrityError, match=r"run\.json: it is not complete JSON"):
        write_report(run, run / "report")


def test_a_step_table_outside_the_run_is_not_believed(run: Path, tmp_path: Path) -> None:
    records = rows(run)
    record = one_of(records, "png", "warm")
    split(run)
    (run / record["steps_file"]).rename(tmp_path / "elsewhere.parquet")
    record["steps_file"] = "../elsewhere.parquet"
    write(run, records)
    assert "steps_file" in {finding.figure for finding in validate(run)}
