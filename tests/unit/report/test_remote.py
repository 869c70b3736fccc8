"""What an epoch of requests costs, and what limits it, from the records of a run at servers."""

import csv
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from storebench.analysis.checks.records import Results
from storebench.formats.registry import parse_backend
from storebench.record.schema import PlaceFacts, RequestFacts
from storebench.report.build import write_report
from storebench.report.content import content_of
from storebench.settings.words import Place
from tests.support.planted import make_record

RECORDS = Path(__file__).parents[3] / "results" / "reference" / "remote"


def test_images_cost_their_requests(tmp_path: Path) -> None:
    write_report(RECORDS, tmp_path)
    with (tmp_path / "requests-imagenet-1000.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if re.search(":(objects|ranges)", row["backend"])]
    assert len(rows) > 20
    for row in rows:
        assert float(row["requests_per_epoch"]) == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(("decode_ms", "limit"), [(900.0, "decode"), (0.1, "read latency")])
def test_a_row_says_what_limits_it(decode_ms: float, limit: str) -> None:
    place = Place("s3:http://127.0.0.1:1/bucket")
    spans: dict[str, Any] = {"wait_ms": 1000.0, "decode_ms": decode_ms, "fetch_ms": 950 - decode_ms}
    record = make_record("png", place=place, cache="any", compute_ms=0, **spans)
    count = record.samples
    record = dataclasses.replace(
        record,
        cell=dataclasses.replace(record.cell, backend=parse_backend("png:objects?inflight=64")),
        place=PlaceFacts(server="up", emulated_first_byte_ms=20, first_byte_ms=22, mb_s=100),
        requests=RequestFacts(count=count, received_bytes=20_000 * count, p50_ms=22, p99_ms=30, in_flight=4),
    )
    [table] = content_of(Results(records=((record, Path("records.jsonl")),))).more("requests")
    [row] = table.rows
    assert row[table.head.index("limited by")].startswith(limit)
