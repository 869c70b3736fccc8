"""The payload of an encoded store, in records: its bytes, or the pixels of a reader that decodes by itself."""

import dataclasses
import math
from pathlib import Path

import pytest

from storebench.analysis.checks.records import validate_records
from storebench.record.lines import RECORDS_NAME
from tests.support.harness_tools import Bench, only_record, scenario


@pytest.mark.parametrize(
    ("backend", "pixels"),
    [("png", False), ("png:threads", True), ("memory+png", True), ("lmdb+png:shared", True)],
)
def test_a_payload_is_that_of_the_store_or_of_its_pixels(
    backend: str, pixels: bool, bench: Bench, run_folder: Path
) -> None:
    asked = {"dataset": "mnist", "limit": 64, "compute": "none", "model": "none"}
    [cell] = scenario(backends=[backend], **asked).cells()
    record = only_record(cell, bench.stores, run_folder)
    assert record.failure is None
    assert record.store is not None
    held = 64 * math.prod(record.store.image_shape)
    assert record.payload_bytes == (held if pixels else record.store.payload_bytes)
    for size, wrong in ((record.payload_bytes, []), (record.payload_bytes + 1, ["payload_bytes"])):
        told = dataclasses.replace(record, payload_bytes=size, steps_file=None, code=None)
        found = [finding.figure for finding in validate_records([(told, run_folder / RECORDS_NAME)])]
        assert found == wrong
