"""A loop over `profile(loader)` is the loop over the loader: same batches, errors and attributes."""

import copy
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import storebench
from storebench.profiling import batch_times, recorder
from storebench.profiling.guard import Guard
from storebench.settings.words import Limit


class Squares(Dataset[Any]):
    """A dataset that may sleep for each sample, and fail at one."""

    def __init__(self, count: int = 24, sleep_s: float = 0.0, fails_at: int = -1) -> None:
        self.count, self.sleep_s, self.fails_at = count, sleep_s, fails_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.sleep_s)
        if index == self.fails_at:
            raise LookupError(f"sample {index} is missing")
        return {"square": torch.tensor([index * index]), "name": f"n{index}"}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 20, stride):
            yield torch.tensor([index])


class Nested(Squares):
    """A dataset that iterates a loader of its own for each sample."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        inner = [batch["square"] for batch in DataLoader(Squares(4), batch_size=2)]
        return {"square": torch.cat(inner) + index}


class Moved(DataLoader[Any]):
    """A loader whose iterator is a generator of its own, as libraries for several devices have it."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {**batch, "moved": True}


def squeezed(samples: list[Any]) -> list[Any]:
    return [sample["square"] for sample in samples]


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "no workers": lambda: DataLoader(Squares(), batch_size=5),
    "workers": lambda: DataLoader(Squares(), batch_size=5, num_workers=2),
    "spawned": lambda: DataLoader(Squares(8), batch_size=4, num_workers=1, multiprocessing_context="spawn"),
    "persistent": lambda: DataLoader(Squares(), batch_size=5, num_workers=2, persistent_workers=True),
    "any order": lambda: DataLoader(Squares(), batch_size=24, num_workers=2),
    "pinned": lambda: DataLoader(Squares(), batch_size=5, num_workers=1, pin_memory=True),
    "stream": lambda: DataLoader(Stream(), batch_size=3, num_workers=2),
    "stream without workers": lambda: DataLoader(Stream(), batch_size=3),
    "no batches": lambda: DataLoader(Squares(), batch_size=None, num_workers=1),
    "collate": lambda: DataLoader(Squares(), batch_size=5, num_workers=1, collate_fn=squeezed),
    "nested": lambda: DataLoader(Nested(6), batch_size=2, num_workers=2),
    "subclass": lambda: Moved(Squares(), batch_size=5, num_workers=1),
    "list": lambda: [torch.tensor([1]), torch.tensor([2])],
    "generator": lambda: (torch.tensor([index]) for index in range(7)),
}
KINDS = [
    *((kind, recorder.ALL_NS) for kind in LOADERS if kind != "spawned"),
    pytest.param("spawned", recorder.ALL_NS, marks=pytest.mark.full),
    *((kind, 0) for kind in ("no workers", "stream without workers", "generator")),  # few steps are measured
]


@pytest.mark.filterwarnings("ignore:.pin_memory. argument")
@pytest.mark.parametrize(("kind", "all_ns"), KINDS)
def test_batches_are_the_same(
    kind: str, all_ns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "ALL_NS", all_ns)
    plain = list(LOADERS[kind]())
    gc.collect()  # the workers of failed loops before this one
    loader = LOADERS[kind]()
    profiled = storebench.profile(loader)
    epochs = 1 if isinstance(loader, Iterator) else 2
    for _ in range(epochs):
        assert str(list(profiled)) == str(plain)
    report = profiled.report()
    judged = epochs - bool(report.first_epoch)  # one that took much longer is told apart
    assert (report.steps, report.epochs) == (judged * len(plain), epochs)
    assert not multiprocessing.active_children() or kind == "persistent"
    assert capsys.readouterr().err.count("storebench profile: ") == 1  # however many epochs
    if not isinstance(loader, Iterator):
        assert str(list(loader)) == str(plain)  # and without us, afterwards


class Uneven(Squares):
    """A dataset of which one sample in fifty sleeps a hundred times as long."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.002 if index % 50 else 0.2)
        return super().__getitem__(index)


@pytest.mark.parametrize("is_uneven", [True, False])
def test_how_samples_differ_and_what_another_order_gains(is_uneven: bool) -> None:
    dataset = Uneven(400) if is_uneven else Squares(400, 0.006)
    profiled = storebench.profile(DataLoader(dataset, batch_size=4, num_workers=2), show=False)
    for _ in profiled:
        pass
    report = profiled.report()
    assert 0.002 < report.sample_s["p50"] <= report.sample_s["p95"] <= report.sample_s["p99"]
    assert (report.sample_s["p99"] > 0.18) is is_uneven
    assert (report.any_order or 1.0) > 1.1 or not is_uneven
    assert (report.slow is not None and report.slow.longest % 50 == 0) is is_uneven


class Spinning(Squares):
    """A dataset that computes, and counts what it is asked for with and without a watch of its samples."""

    asked, watched = 0, 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked += 1
        self.watched += sys._getframe(1).f_code.co_filename == batch_times.__file__
        spin(0.0015)
        return super().__getitem__(index)


def spin(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def test_in_a_long_loop_of_short_steps_some_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    reports, datasets = [], [Spinning(400), Spinning(400)]
    for all_ns, dataset in zip((10**12, 3 * 10**8), datasets, strict=True):
        monkeypatch.setattr(recorder, "ALL_NS", all_ns)
        profiled = storebench.profile(DataLoader(dataset, batch_size=2), show=False)
        for _ in profiled:
            spin(0.003)
        reports.append(profiled.report())
    every, some = reports
    assert [dataset.asked for dataset in datasets] == [400, 400]
    assert datasets[0].watched == 400
    assert 0 < datasets[1].watched < 300
    assert (some.bound, some.steps) == (every.bound, every.steps)
    assert some.parts_s["dataset"] == pytest.approx(every.parts_s["dataset"], rel=0.5)
    assert some.gain == pytest.approx(every.gain, rel=0.3)


def moved(loader: Iterable[Any]) -> Iterator[Any]:
    yield from loader


def test_the_inside_of_a_wrapped_loader_is_seen() -> None:
    profiled = storebench.profile(moved(DataLoader(Squares(60), batch_size=5, num_workers=2)), show=False)
    for _ in profiled:
        time.sleep(0.002)
    report = profiled.report()
    assert (report.workers, report.prefetched, report.unseen) == (2, 4, ())
    assert set(report.parts_s) == {"dataset", "collate", "pickling", "receiving"}
    assert report.ready_batches
    assert report.worker_start_s


@pytest.mark.parametrize(("workers", "all_ns"), [(0, recorder.ALL_NS), (0, 0), (2, recorder.ALL_NS)])
def test_a_loaders_error_is_its_own(workers: int, all_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "ALL_NS", all_ns)
    profiled = storebench.profile(DataLoader(Squares(fails_at=13), batch_size=4, num_workers=workers))
    batches = iter(profiled)
    assert [len(next(batches)["name"]) for _ in range(3)] == [4, 4, 4]
    with pytest.raises(LookupError, match="sample 13 is missing"):
        next(batches)
    assert profiled.report().steps == 3


def test_leaving_the_loop_ends_the_workers_and_shows_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    gc.collect()  # the workers of failed loops before this one
    gc.disable()  # the workers must not wait for the collector
    try:
        for step, _ in enumerate(storebench.profile(DataLoader(Squares(200), batch_size=2, num_workers=2))):
            if step == 8:
                break
        assert not multiprocessing.active_children()
    finally:
        gc.enable()
    assert "storebench profile: limited by" in capsys.readouterr().err


class Stored(Squares):
    """A dataset that keeps a file open, above a descriptor that is not in use."""

    def __init__(self, path: Path) -> None:
        super().__init__(60, sleep_s=0.01)
        unused = os.open(path, os.O_RDONLY)
        self.file = path.open("rb")
        os.close(unused)


@pytest.mark.parametrize("kind", ["torch", "iterator"])
def test_the_files_that_stay_open_are_seen(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.bin"
    path.write_bytes(bytes(1 << 20))
    dataset = Stored(path)
    loader = DataLoader(dataset) if kind == "torch" else (dataset[index] for index in range(len(dataset)))
    profiled = storebench.profile(loader, show=False)
    for _ in profiled:
        pass
    dataset.file.close()
    assert profiled.report().folder == str(tmp_path)


def interrupted() -> Iterator[int]:
    yield from range(8)
    raise KeyboardInterrupt


def test_an_interrupted_loop_shows_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(storebench.profile(interrupted()))
    assert "of 8" in capsys.readouterr().err


def test_a_loaders_attributes_are_there() -> None:
    loader = DataLoader(Squares(), batch_size=5)
    profiled = storebench.profile(loader)
    assert (len(profiled), profiled.batch_size, profiled.dataset) == (5, 5, loader.dataset)
    assert copy.copy(profiled).batch_size == 5
    endless = storebench.profile(iter(range(3)))
    with pytest.raises(TypeError):
        len(endless)
    assert endless
    assert list(endless) == [0, 1, 2]


def test_a_failing_profiler_does_not_stop_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_clock: Any) -> int:
        raise OSError("no clock")

    profiled = storebench.profile(DataLoader(Squares(), batch_size=5, num_workers=1))
    seen = 0
    for _ in profiled:
        monkeypatch.setattr(batch_times.ThreadClock, "now", broken)
        seen += 1
    assert seen == 5
    assert "no clock" in capsys.readouterr().err
    assert profiled.report().bound is Limit.UNKNOWN


def test_an_error_of_a_handler_of_signals_is_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    def give_up(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, give_up)
    try:
        with pytest.raises(TimeoutError):
            Guard().attempt(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not capsys.readouterr().err


def test_the_work_of_other_programs_is_seen() -> None:
    # Of a shell that has ended, so that they are no children of this process.
    compute = f"timeout 60 '{sys.executable}' -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    others = [int(subprocess.check_output(["sh", "-c", compute])) for _ in os.sched_getaffinity(0)]
    profiled = storebench.profile(DataLoader(Squares(100, sleep_s=0.005), batch_size=4), show=False)
    try:
        for _ in profiled:
            pass
        report = profiled.report()
    finally:
        for other in others:
            os.kill(other, signal.SIGTERM)
    assert report.disturbed.startswith("other work took ")
    assert report.disturbed in str(report)


class SlowStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        for index in range(160):
            time.sleep(0.005)
            yield index


def test_more_workers_for_a_stream_are_advised_with_what_it_must_do() -> None:
    profiled = storebench.profile(DataLoader(SlowStream(), batch_size=4), show=False)
    for _ in profiled:
        time.sleep(0.02)
    report = profiled.report()
    assert report.bound is Limit.WORKERS
    assert "get_worker_info()" in str(report)


@pytest.mark.parametrize("workers", [0, 1])
def test_times_are_those_of_the_loop(workers: int) -> None:
    profiled = storebench.profile(
        DataLoader(Squares(160, sleep_s=0.02), batch_size=4, num_workers=workers), show=False
    )
    began = time.perf_counter()
    for _ in profiled:
        time.sleep(0.02)
    elapsed = time.perf_counter() - began
    report = profiled.report()
    # A busy machine makes every sleep longer.
    assert report.loop_s >= 0.02
    assert report.parts_s["dataset"] >= 0.08
    assert elapsed / 2 < report.total_s <= elapsed
    assert report.hot[0].text == "time.sleep(self.sleep_s)"
    assert report.bound in (
        Limit.WAITING,
        Limit.WORKERS,
    )  # which hide the waits where the loop takes long, too
