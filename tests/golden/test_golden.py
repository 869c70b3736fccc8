"""Results of today can be compared with those of yesterday: nothing that they rest on changed unnoticed."""

import json
from pathlib import Path
from typing import Any

import pytest

from storebench.results import CacheVerdict, Status
from storebench.runs.records import read_records
from storebench.stats import compare
from tests.golden.make_golden import GOLDEN, golden

RECORDS = Path(__file__).with_name("records_v1.jsonl")


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return golden()


@pytest.fixture(scope="module")
def then() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", ["sample_digests", "set_digest", "order_digest", "augmented_digest"])
def test_digests_orders_and_crops_are_those_of_every_older_result(
    name: str, now: dict[str, Any], then: dict[str, Any]
) -> None:
    assert now[name] == then[name]


@pytest.mark.parametrize("part", ["fields", "step_columns"])
def test_a_schema_version_only_ever_gains_names(part: str, now: dict[str, Any], then: dict[str, Any]) -> None:
    assert now["schema_version"] == then["schema_version"]
    kept = {name: kind for name, kind in now[part].items() if name in then[part]}
    assert kept == then[part]


def test_a_file_of_the_first_schema_still_reads() -> None:
    failed, warm = read_records(RECORDS)
    assert (failed.status, warm.status) == (Status.FAILED, Status.OK)
    assert failed.cache is not None
    assert failed.cache.verdict is CacheVerdict.FAILED
    assert warm.cell.backend.options == (("readahead", "off"),)
    assert warm.data_wait_ns is not None
    assert warm.data_wait_ns.p99 == 3_000_000
    assert warm.counters.reasons == {"read_calls": "no /proc/PID/io"}
    assert compare([warm.samples_per_s], [warm.samples_per_s]).ratio == 1


def test_cells_of_the_first_schema_keep_their_id() -> None:
    assert {record.cell.cell_id for record in read_records(RECORDS)} == {"3106f1208373"}
