"""The loop reads one clock in the right places, and its table is written whole."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from storebench.datasets import DatasetSpec
from storebench.formats.registry import open_reader, parse_backend
from storebench.loading.augment import Augment
from storebench.loading.batch import LOOP_WORKER, LoadedBatch, Spans
from storebench.record.steps import write_steps
from storebench.settings.words import Compute, Split
from storebench.stores.convert import BuildOptions, ensure_store
from storebench.training.compute import CpuStep, Step, make_step
from storebench.training.evaluate import accuracy
from storebench.training.loop import run_epoch
from storebench.training.models import MODELS
from storebench.training.step_table import step_table
from storebench.worker.epoch import AfterStep


def batches(count: int, wait_s: float = 0.0, worker: int = LOOP_WORKER) -> Iterator[LoadedBatch]:
    for number in range(count):
        start = time.perf_counter_ns()
        time.sleep(wait_s)
        yield LoadedBatch(
            pixels=torch.zeros((2, 1, 1, 1), dtype=torch.uint8),
            labels=np.zeros(2, dtype=np.int64),
            indices=np.array([2 * number, 2 * number + 1]),
            spans=Spans(start_ns=start, fetch_ns=0, decode_ns=0, prep_ns=0, ready_ns=time.perf_counter_ns()),
            payload_bytes=2,
            worker=worker,
        )


class Probe(Step):
    """A device that takes 3 ms to compute and says what it likes of the copy."""

    def __init__(self, h2d_ns: int) -> None:
        self.calls: list[str] = []
        self._h2d_ns = h2d_ns

    def copy(self, batch: LoadedBatch) -> None:
        self.calls.append("copy")

    def compute(self) -> None:
        self.calls.append("compute")
        time.sleep(0.003)

    def h2d_ns(self) -> int:
        return self._h2d_ns


def test_each_step_is_wait_then_copy_then_compute_on_one_clock() -> None:
    step = Probe(h2d_ns=1_000_000)
    times = run_epoch(batches(5, wait_s=0.004), step)
    assert step.calls == ["copy", "compute"] * 5
    for one in times:
        assert one.asked_ns <= one.spans.start_ns <= one.spans.ready_ns <= one.got_ns
        assert one.got_ns - one.asked_ns >= 4_000_000
        assert one.copied_ns - one.got_ns == 1_000_000
        assert one.done_ns - one.got_ns >= 3_000_000
    for one, following in itertools.pairwise(times):
        assert one.done_ns <= following.asked_ns
    assert [one.indices.tolist() for one in times] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_a_copy_is_never_longer_than_its_step() -> None:
    [only] = run_epoch(batches(1), Probe(h2d_ns=10**12))
    assert only.copied_ns == only.done_ns


@pytest.mark.parametrize("paused_for", ["samples", "games"])
def test_what_was_done_between_two_steps_is_a_pause(paused_for: str) -> None:
    """Whichever took its time: samples that were kept, or a tournament that was played."""
    turns = {name: itertools.cycle([False, name == paused_for, False]) for name in ("samples", "games")}

    def slow(name: str) -> bool:
        busy = next(turns[name])
        time.sleep(0.02 * busy)
        return busy

    after = AfterStep(lambda _batch: slow("samples"), lambda: slow("games"))
    times = run_epoch(batches(6, worker=0), Probe(0), after)
    assert [one.paused_ns >= 20_000_000 for one in times] == [False, True, False] * 2
    assert all(one.paused_ns == 0 for one in times[::3])


def test_an_epoch_without_batches_has_no_steps() -> None:
    assert run_epoch(batches(0), Probe(0)) == []


def test_a_table_comes_back_from_parquet_column_by_column(tmp_path: Path) -> None:
    losses = [0.1, 2.0, float(np.float32(1 / 3))]
    table = step_table(run_epoch(batches(3), Probe(7)), losses, warmup_steps=1)
    write_steps(table, tmp_path / "steps" / "one.parquet")
    read = pq.read_table(tmp_path / "steps" / "one.parquet")
    assert read.column_names == list(table)
    for name, column in table.items():
        assert read[name].to_numpy().tobytes() == column.tobytes(), name
    assert read["warmup"].to_pylist() == [True, False, False]
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["one.parquet"]


def test_where_nothing_was_computed_the_losses_are_null(tmp_path: Path) -> None:
    write_steps(step_table(run_epoch(batches(2), Probe(0)), [], warmup_steps=0), tmp_path / "one.parquet")
    assert pq.read_table(tmp_path / "one.parquet")["loss"].null_count == 2


def test_a_loss_that_is_not_a_number_is_kept_as_such(tmp_path: Path) -> None:
    table = step_table(run_epoch(batches(2), Probe(0)), [1.0, float("nan")], warmup_steps=0)
    write_steps(table, tmp_path / "one.parquet")
    column = pq.read_table(tmp_path / "one.parquet")["loss"]
    assert column.null_count == 0
    assert np.isnan(column.to_numpy()[1])


def test_writing_a_table_does_not_import_pandas(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from storebench.record.steps import write_steps\n"
        "table = {'step': np.arange(3), 'warmup': np.array([True, False, True]), 'loss': np.full(3, np.nan)}\n"
        "write_steps(table, Path(sys.argv[1]))\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "one.parquet"], check=True)
    read = pq.read_table(tmp_path / "one.parquet")
    assert read["step"].to_pylist() == [0, 1, 2]
    assert read["warmup"].to_pylist() == [True, False, True]
    assert read["loss"].null_count == 3


@pytest.mark.parametrize(("limit", "crop"), [(1, 28), (256, 28), (300, 20)])
def test_accuracy_is_the_share_of_right_answers_over_the_middles_of_all_test_samples(
    limit: int, crop: int, tmp_path: Path
) -> None:
    spec = DatasetSpec(name="mnist", split=Split.TEST, limit=limit, synthetic=True)
    store = ensure_store(spec, parse_backend("memory+raw"), tmp_path, options=BuildOptions(verify=False)).path
    torch.manual_seed(0)
    step = make_step(Compute("real"), MODELS["tiny"], (crop, crop, 1), 10, "cpu")
    assert isinstance(step, CpuStep)
    share, count = accuracy(step, Augment(crop=crop), store)
    with open_reader(store) as reader, torch.inference_mode():
        image = np.empty((1, 28, 28, 1), dtype=np.uint8)
        right = 0
        for index in range(limit):
            reader.fetch_into(np.array([index]), image)
            middle = image[:, (28 - crop) // 2 : (28 + crop) // 2, (28 - crop) // 2 : (28 + crop) // 2]
            right += int(step.network(torch.from_numpy(middle)).argmax() == reader.labels[index])
    assert (share, count) == (pytest.approx(right / limit), limit)
    assert step.network.training
