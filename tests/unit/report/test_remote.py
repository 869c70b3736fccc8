"""Requests that feed an accelerator, and what an epoch of them costs, from the records of a run at servers."""

import csv
import re
from pathlib import Path

import pytest

from storebench.accelerators import find_accelerator
from storebench.report.build import summarise_results, write_report

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
