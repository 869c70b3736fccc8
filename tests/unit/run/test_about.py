"""The whole dataset of a run that measured a part of it, in its ``run.json``."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from storebench.record.lines import RUN_NAME
from storebench.run.about import About, Whole, whole_of, write_about

WHOLE = Whole(count=40_000, total_bytes=5 << 30, memory_bytes=24 << 30, fits=True)


def describe(folder: Path, **more: Any) -> None:
    (folder / RUN_NAME).write_text(json.dumps({"run_id": "r", "cells": []} | more), encoding="utf-8")


def test_it_is_read_as_it_was_noted(tmp_path: Path) -> None:
    describe(tmp_path)
    assert whole_of(tmp_path) is None
    write_about(tmp_path, About(run_id="r", cells=[], whole=WHOLE))
    assert whole_of(tmp_path) == WHOLE


@pytest.mark.parametrize(
    "wrong",
    [{"memory_bytes": -1}, {"count": "many"}, {"fits": None}],
)
def test_one_that_cannot_be_is_none(wrong: dict[str, Any], tmp_path: Path) -> None:
    describe(tmp_path, whole=dataclasses.asdict(WHOLE) | wrong)
    assert whole_of(tmp_path) is None
