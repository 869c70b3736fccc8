"""While an epoch runs, its steps, its rate and the time that is left for the run are told."""

import re
from pathlib import Path

import pytest

from storebench.cli.progress import StderrWatcher
from storebench.runner import execute
from storebench.runs.folder import Run
from tests.support.harness_tools import Bench, scenario

STEPS, BATCH, STEP_S = 40, 4, 0.05
LINE = re.compile(r" {4}epoch (\d): (\d+) of (\d+) batches, ([\d,]+) samples/s; about (\d+) s left")


def test_a_long_epoch_tells_its_steps_its_rate_and_what_is_left(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("storebench.cli.progress.PLAIN_LINE_EVERY_S", 0.3)
    asked = scenario(
        dataset="mnist", synthetic=True, limit=STEPS * BATCH, batch_size=BATCH, model="none", epochs=2,
        compute=f"emulated:{1000 * STEP_S:g}", backends=["lmdb", "memory"],
    )  # fmt: skip
    execute(Run.create(asked, tmp_path / "run", asked.cells()), bench.stores, watcher=StderrWatcher())
    said = capsys.readouterr().err
    lines = [[int(word.replace(",", "")) for word in found] for found in LINE.findall(said)]
    assert {(epoch, steps) for epoch, _, steps, *_ in lines} == {(0, STEPS), (1, STEPS)}
    assert [epoch for epoch, *_ in lines].count(0) >= 2, said
    most = BATCH / STEP_S
    assert all(most / 10 < rate < most * 1.5 for *_, rate, _ in lines), lines
    epochs_s = 2 * 2 * STEPS * STEP_S
    left = [seconds for *_, seconds in lines]
    assert epochs_s / 2 < left[0] < 4 * epochs_s
    assert left[-1] < left[0] / 2
