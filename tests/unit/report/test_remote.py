"""Requests that feed an accelerator, and what an epoch of them costs, from the records of a run at servers."""

import csv
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from storebench.accelerators import find_accelerator
from storebench.analysis.remote import law_notes, law_rates
from storebench.formats.registry import parse_backend
from storebench.record.schema import PlaceFacts, RequestFacts
from storebench.report.build import summarise_results, write_report
from storebench.report.content import Content, content_of
from storebench.settings.words import Place
from tests.support.planted import make_record

RECORDS = Path(__file__).parents[3] / "results" / "reference" / "remote"


def needed(wanted: int) -> list[list[float]]:
    """Return the figures of each place's sentence for an accelerator named X of `wanted` images/s."""
    found = summarise_results(RECORDS, [find_accelerator(f"X={wanted}")]).more("requests")
    notes = [note for table in found for note in table.notes if note.startswith("X (")]
    return [
        [float(figure.replace(",", "")) for figure in re.findall(r"\d[\d,.]*\d|\d", note)] for note in notes
    ]


@pytest.mark.parametrize(
    ("wanted", "nfs", "store", "limited"),
    [
        # [images/s, what is emulated ..., requests in flight for single images ...]
        (10, [10, 2, 1], [10, 20, 1], [10, 20, 20, 1]),
        (800, [800, 2, 8], [800, 20, 17], [800, 20, 20, 18]),
    ],
)
def test_requests_for_single_images_are_first_bytes_at_once(
    wanted: int, nfs: list[float], store: list[float], limited: list[float]
) -> None:
    assert [
        figures[: len(expected)]
        for figures, expected in zip(needed(wanted), (nfs, store, limited), strict=True)
    ] == [nfs, store, limited]


def test_beyond_the_bandwidth_no_requests_help() -> None:
    limited = needed(5000)[-1]
    assert limited[:3] == [5000, 20, 20]
    assert 850 < limited[3] < 950  # 20 MB/s of 22 KB


def test_images_cost_their_requests(tmp_path: Path) -> None:
    write_report(RECORDS, tmp_path, request_price=400)
    with (tmp_path / "requests-imagenet-1000.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if re.search(":(objects|ranges)", row["backend"])]
    assert len(rows) > 20
    for row in rows:
        assert float(row["requests_per_epoch"]) == pytest.approx(1000, rel=0.01)
        price = row["million_images_price"]
        assert price == "" if "NFS" in row["place"] else float(price) == pytest.approx(400, rel=0.01)


UP = "s3:http://127.0.0.1:1/bucket"
TWENTY = PlaceFacts(server="up", emulated_first_byte_ms=20, first_byte_ms=22, mb_s=100)
PLAIN = PlaceFacts(server="up", first_byte_ms=1, mb_s=100)
IMAGE_BYTES = 20_000


def planted(*cells: tuple[str, str, PlaceFacts, float], **more: Any) -> Content:
    """Return the content of cells (backend, place, its facts, milliseconds of a step of 32 images)."""
    records = []
    for backend, place, facts, step_ms in cells:
        record = make_record("png", place=Place(place), cache="any", wait_ms=step_ms, compute_ms=0, **more)
        cell, asked = dataclasses.replace(record.cell, backend=parse_backend(backend)), record.samples
        requests = RequestFacts(
            count=asked, received_bytes=IMAGE_BYTES * asked, p50_ms=22, p99_ms=30, in_flight=4
        )
        records.append(dataclasses.replace(record, cell=cell, place=facts, requests=requests))
    return content_of([(record, Path("records.jsonl")) for record in records])


@pytest.mark.parametrize(
    ("cells", "rates", "notes"),
    [
        # The law knows nothing of the rate measured there, whatever the name of the place.
        ([("png:objects?inflight=4", UP, TWENTY, 1000.0)], [4 / 0.0222], ["Nothing caps the law of"]),
        ([("png:objects?inflight=4", UP, TWENTY, 9000.0)], [4 / 0.0222], ["Nothing caps the law of"]),
        # What the same store reached where nothing is emulated caps it; another reader's rate does not.
        (
            [
                ("png:objects?inflight=64", UP, TWENTY, 1000.0),
                ("png:objects?inflight=16", "s3:here", PLAIN, 100.0),
                ("png:boto3?inflight=64", UP, TWENTY, 1000.0),
            ],
            [64 / 0.0222, 320.0],
            ["Nothing caps the law of PNG files (boto3"],
        ),
        # A line of 2 MB/s carries 100 images of 20 kB.
        (
            [("png:objects?inflight=64", UP, dataclasses.replace(TWENTY, emulated_mb_s=2), 1000.0)],
            [100.0],
            ["Nothing caps"],
        ),
        ([("png:objects?inflight=4", "s3:here", PLAIN, 1000.0)], [], []),
    ],
)
def test_the_law_is_of_what_was_measured_apart(
    cells: list[tuple[str, str, PlaceFacts, float]], rates: list[float], notes: list[str]
) -> None:
    found = planted(*cells).cells
    assert sorted(law_rates(found).values(), reverse=True) == pytest.approx(sorted(rates, reverse=True))
    text = " ".join(law_notes(found))
    assert all(note in text for note in notes)
    assert bool(text) is bool(rates)


@pytest.mark.parametrize(("decode_ms", "limit"), [(900.0, "decode"), (0.1, "read latency")])
def test_a_row_says_what_limits_it(decode_ms: float, limit: str) -> None:
    content = planted(
        ("png:objects?inflight=64", UP, TWENTY, 1000.0), decode_ms=decode_ms, fetch_ms=950 - decode_ms
    )
    [table] = content.more("requests")
    [row] = table.rows
    assert row[table.head.index("limited by")].startswith(limit)
