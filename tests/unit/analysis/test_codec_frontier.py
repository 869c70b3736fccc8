"""Codecs in a report: bytes, loss and rate of each, and which no other beats in both."""

import csv
import dataclasses
from pathlib import Path

import pytest

from storebench.record.schema import Record
from storebench.report.build import write_report
from tests.support.planted import make_record, write_run

WAITS_MS = {
    "": 1.0,
    "+qoi": 2.0,
    "+webp": 15.0,
    "+png": 20.0,
    "+jpeg": 3.0,
    "+jpeg:opencv": 4.0,
    "+webp:80": 30.0,
    "+jpeg:100": 2.5,
}
"""QOI is both smaller and faster than JPEG at quality 100, and WebP than PNG."""

FRONTIER = {"raw", "qoi", "webp", "jpeg", "webp:80"}
PSNR_DB = 31.5


def planted(backend: str, wait_ms: float) -> Record:
    record = make_record(backend, compute="none", model="none", compute_ms=0.0, wait_ms=wait_ms)
    assert record.store is not None
    psnr_db = None if record.store.lossless else PSNR_DB
    return dataclasses.replace(record, store=dataclasses.replace(record.store, psnr_db=psnr_db))


def reported(folder: Path, codecs: list[str]) -> Path:
    run = write_run(folder / "run", [planted(f"lmdb{codec}", WAITS_MS[codec]) for codec in codecs])
    write_report(run, folder / "report", allow_invalid=True, plots=True)
    return folder / "report"


def test_a_codec_is_on_the_frontier_if_none_is_both_smaller_and_faster(tmp_path: Path) -> None:
    report = reported(tmp_path, list(WAITS_MS))
    with (report / "codecs-imagenet-4000.csv").open() as file:
        rows = {row["codec"]: row for row in csv.DictReader(file)}
    assert {name for name, row in rows.items() if row["frontier"] == "True"} == FRONTIER
    assert next(iter(rows)) == "raw"
    assert list(rows)[-1] == "webp:80"
    assert float(rows["qoi"]["bytes_per_image"]) == 140_000
    assert float(rows["raw"]["raw_frac"]) == 1
    assert {name for name, row in rows.items() if row["psnr_db"]} == {
        "jpeg",
        "jpeg:opencv",
        "webp:80",
        "jpeg:100",
    }
    assert float(rows["jpeg"]["samples_per_s"]) == pytest.approx(32 / 0.003)
    assert (report / "codecs-imagenet-4000.svg").stat().st_size > 0


def test_two_codecs_are_no_table_of_codecs(tmp_path: Path) -> None:
    assert not list(reported(tmp_path, ["", "+jpeg", "+jpeg:opencv"]).glob("codecs-*"))
