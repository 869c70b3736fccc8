"""Attacks on single facts of a reference run: each contradicts another fact of its record, or the steps of its epoch."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.report.checks.records import validate
from tests.docs.doc_files import ROOT

Raw = dict[str, Any]

REFERENCE = ROOT / "results" / "reference" / "roofline"
MIB = 1 << 20


def put(path: str, value: Any) -> Callable[[Raw], None]:
    """Return an attack that puts a value at a dotted path."""

    def attack(record: Raw) -> None:
        *parts, last = path.split(".")
        for part in parts:
            record = record[part]
        record[last] = value(record[last]) if callable(value) else value

    return attack


def fill_late(record: Raw) -> None:
    """Say that the epoch began with an empty cache, and that it held a third of the store in the end."""
    record["cache"]["resident_frac_before"] = 0.0
    points = record["cache"]["curve"]
    for number, point in enumerate(points):
        point["resident_frac"] = 0.33 * number / (len(points) - 1)


def fill_half(record: Raw) -> None:
    """Say that the cache filled to less than half of its limit, as if the reader never filled it."""
    fill_late(record)
    for point in record["cache"]["curve"]:
        point["resident_frac"] /= 3


ATTACKS = {
    "a cache that still filled is called steady": fill_late,
    "a cache that filled half is called one that never fills": fill_half,
    "nothing was sampled": put("cache.curve", []),
    "residency is understated": put("cache.resident_max_frac", 0.01),
    "the device is made faster": put("ceilings.device_best_bytes_per_s", lambda rate: 3 * rate),
    "one rate of the device is made faster": put(
        "ceilings.device_random_1_bytes_per_s", lambda rate: 5 * rate
    ),
    "a yardstick exceeds its ceiling": put("ceilings.gather_samples_per_s", lambda rate: 10 * rate),
    "another read-ahead was set": put("environment.notes.own_device.read_ahead_kb", "8192"),
    "amplification is denied": put("counters.read_amplification", 1.0),
    "hardly a timed sample was compared": put("coverage.timed_checked", 1),
}
"""Name -> a change of a record of LMDB in the second epoch with a limited page cache; the figure that must be named is its path."""

FIGURES = {
    "a cache that still filled is called steady": "portion.first_step",
    "a cache that filled half is called one that never fills": "portion.first_step",
    "nothing was sampled": "cache.curve",
    "residency is understated": "cache.resident_max_frac",
    "the device is made faster": "ceilings.device_best_bytes_per_s",
    "one rate of the device is made faster": "ceilings.device_best_bytes_per_s",
    "a yardstick exceeds its ceiling": "ceilings.gather_samples_per_s",
    "another read-ahead was set": "environment.notes.own_device.read_ahead_kb",
    "amplification is denied": "counters.read_amplification",
    "hardly a timed sample was compared": "coverage.timed_checked",
}


def limited(record: Raw, backend: str) -> bool:
    cell = record["cell"]
    return (
        cell["backend"] == backend
        and cell["cache"] == "limited"
        and cell["compute"] == "none"
        and cell["readahead_kib"] == 128
        and record["epoch"] == 1
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REFERENCE, tmp_path / "run"))


def attacked(run: Path, backend: str, attack: Callable[[Raw], None]) -> set[str]:
    """Change the first limited record of a backend, and return the figures that validation names."""
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    attack(next(record for record in records if limited(record, backend)))
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / "records.jsonl").write_text(text, encoding="utf-8")
    return {problem.figure for problem in validate(run)}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_fact_that_another_one_contradicts_is_found(run: Path, name: str) -> None:
    assert FIGURES[name] in attacked(run, "lmdb", ATTACKS[name])


@pytest.mark.parametrize("backend", ["lmdb", "lmdb:direct", "png"])
@pytest.mark.parametrize(
    ("first", "share", "figure"),
    [
        pytest.param(0.5, 0.5, "portion.first_step", id="the fast second half"),
        pytest.param(0.0, 0.5, "portion.steps", id="the first half"),
        pytest.param(0.125, 0.75, "portion.steps", id="the middle"),
    ],
)
def test_a_steady_portion_of_chosen_steps_is_found(
    run: Path, backend: str, first: float, share: float, figure: str
) -> None:
    def attack(record: Raw) -> None:
        steps = record["timed_steps"]
        record["portion"] |= {"first_step": round(first * steps), "steps": round(share * steps)}
        for name in ("samples", "payload_bytes"):
            record["portion"][name] = round(record["portion"][name] * share)

    assert figure in attacked(run, backend, attack)
