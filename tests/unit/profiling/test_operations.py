"""The operations of making a sample are named, whichever way a dataset and its pipeline are written."""

import functools
import gc
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import storebench
from storebench.profiling.profile_report import ProfileReport
from tests.support.profiled import profile, run

LONG_S = 0.012


def report_of(loader: Iterable[Any]) -> ProfileReport:
    profiled = storebench.profile(loader, show=False)
    for _ in profiled:
        pass
    return profiled.report()


class Erase:
    def __call__(self, image: Any) -> Any:
        time.sleep(LONG_S)
        return image


class Jitter(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        time.sleep(LONG_S)
        return image


class Typed(Erase):
    """A step with a list of classes, one of which is a local variable of a function that it calls."""

    def __init__(self) -> None:
        self.kinds = [int, float]

    def __call__(self, image: Any) -> Any:
        return self.of(image, float)

    def of(self, image: Any, kind: type) -> Any:
        return kind(super().__call__(image))


class Compose:
    def __init__(self, steps: Iterable[Any]) -> None:
        self.steps = list(steps)

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


class Choice(Compose):
    def __call__(this, image: Any) -> Any:  # noqa: N805
        return this.steps[0](image)


def grey(image: Any) -> Any:
    time.sleep(LONG_S)
    return image


def shade(image: Any, *, seconds: float) -> Any:
    time.sleep(seconds)
    return image


class Samples(Dataset[Any]):
    """Samples that go through a transform."""

    def __init__(self, transform: Callable[[Any], Any], count: int = 64) -> None:
        self.transform, self.count = transform, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        return self.make(index)

    def make(self, index: int) -> float:
        self.transform(LONG_S)
        return LONG_S


class Lazy(Samples):
    """Samples that a function makes when they are asked for."""

    def make(self, index: int) -> float:
        self.steps = [functools.partial(grey, LONG_S)] * 1000
        return self.steps[index]()


class Freed(Samples):
    """Samples that resize their memory once nothing else uses it."""

    def make(self, index: int) -> float:
        memory = bytearray(8)
        view = memoryview(memory)
        super().make(index)
        del view
        memory.extend(b"more")
        return LONG_S


class Stream(Samples, IterableDataset[Any]):
    def __iter__(self) -> Iterator[float]:
        return (self.make(index) for index in range(self.count))


class Photos(Dataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "photo.jpg"
        Image.effect_noise((1600, 1600), 64).convert("RGB").save(self.path)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.path) as image:
            return torch.from_numpy(np.array(image.convert("RGB")))


DATASETS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "a list of objects": (lambda _: Samples(Compose([Erase(), Jitter()])), {"Erase", "Jitter"}),
    "a list of functions": (
        lambda _: Samples(Compose([grey, time.sleep, functools.partial(shade, seconds=LONG_S)])),
        {"grey", "sleep", "shade"},
    ),
    "steps of one name": (
        lambda _: Samples(Compose([functools.partial(grey), functools.partial(grey)])),
        {"grey [0]", "grey [1]"},
    ),
    "functions for each sample": (lambda _: Lazy(grey), {"grey"}),
    "memory that is freed": (lambda _: Freed(grey), {"grey"}),
    "a list in a list": (lambda _: Samples(Compose([Choice([Erase()]), grey])), {"Erase", "grey"}),
    "a step with classes": (lambda _: Samples(Compose([Typed()])), {"Typed"}),
    "modules": (lambda _: Samples(torch.nn.Sequential(Jitter(), torch.nn.Identity())), {"Jitter"}),
    "one object": (lambda _: Samples(Erase()), {"Erase"}),
    "one module": (lambda _: Samples(Jitter()), {"Jitter"}),
    "one function": (lambda _: Samples(grey), {"grey"}),
    "a part of a dataset": (lambda _: Subset(Samples(Erase()), list(range(64))), {"Erase"}),
    "a stream": (lambda _: Stream(Compose([Erase(), grey])), {"Erase", "grey"}),
    "photographs": (Photos, {"decoding"}),
}


@pytest.mark.parametrize(("name", "workers"), [*zip(DATASETS, itertools.cycle([0, 1]), strict=False)])
def test_operations_are_named(name: str, workers: int, tmp_path: Path) -> None:
    make, names = DATASETS[name]
    operations = report_of(DataLoader(make(tmp_path), batch_size=4, num_workers=workers)).operations
    rows = [row.name for row in operations]
    assert names <= set(rows)
    assert rows[0] in names
    assert sum(row.share for row in operations if row.name in names) > 0.5
    assert [row.share for row in operations] == sorted((row.share for row in operations), reverse=True)


def count(image: Any) -> Any:
    sum(place for place in range(100_000))
    for _ in range(100_000):
        pass
    return image


def fill(image: Any) -> Any:
    torch.ones(3_000_000)  # without the interpreter's lock
    return image


def square(image: Any) -> Any:
    return np.multiply(SQUARED, SQUARED)[0] + image  # with it


def rest(image: Any) -> Any:
    time.sleep(0.004)
    return image


SQUARED = np.ones(2_000_000)


class Timed(Compose):
    def __call__(self, image: Any) -> Any:
        self.seconds: dict[str, float] = {}
        for step in self.steps:
            began = time.perf_counter()
            image = step(image)
            self.seconds[step.__name__] = time.perf_counter() - began
        return image


class TimedSamples(Samples):
    def __getitem__(self, index: int) -> Any:
        self.transform(1.0)
        return self.transform.seconds  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.full), 2])
def test_shares_are_those_of_timers_in_the_same_run(workers: int) -> None:
    samples = TimedSamples(Timed([count, fill, square, rest]), 240)
    profiled = storebench.profile(DataLoader(samples, batch_size=8, num_workers=workers), show=False)
    seconds = Counter[str]()
    for batch in profiled:
        seconds.update({name: float(values.sum()) for name, values in batch.items()})
    operations = {row.name: row.share for row in profiled.report().operations if row.name != "collate"}
    shares = {name: share / sum(operations.values()) for name, share in operations.items()}
    for name, value in seconds.items():
        assert shares.get(name, 0.0) == pytest.approx(value / seconds.total(), abs=0.08), (shares, seconds)


@pytest.fixture
def collected() -> Iterator[None]:
    """Keep Python from collecting what earlier tests left: it drops errors that handlers raise meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Limited(Samples):
    """Samples that a handler of the script's own gives up after some time."""

    raised = caught = 0

    def give_up(self, *_: Any) -> None:
        self.raised += 1
        raise TimeoutError

    def make(self, index: int) -> float:
        ends = time.monotonic() + 5.0
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            while time.monotonic() < ends:
                self.transform(index)
        except TimeoutError:
            self.caught += 1
        return LONG_S


def test_errors_of_handlers_of_signals_reach_the_dataset(collected: None) -> None:
    limited = Limited(lambda index: sum(range(index)), count=400)
    before = signal.signal(signal.SIGALRM, limited.give_up)
    try:
        report_of(DataLoader(limited, batch_size=4))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert limited.raised == limited.caught == 400


class Waiting(Samples):
    """Samples that wait in calls of the system."""

    def make(self, index: int) -> float:
        source, sink = os.pipe()
        began = time.monotonic()
        writer = threading.Timer(LONG_S, os.write, (sink, b"x"))
        writer.start()
        assert os.read(source, 1) == b"x"
        time.sleep(LONG_S)
        writer.join()
        os.close(source)
        os.close(sink)
        return time.monotonic() - began


@pytest.mark.parametrize("workers", [0, 1])
def test_waits_are_as_long_as_without(workers: int) -> None:
    signals = {number: signal.getsignal(number) for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}
    profiled = storebench.profile(DataLoader(Waiting(grey), batch_size=4, num_workers=workers), show=False)
    assert min(float(seconds.min()) for seconds in profiled) >= 2 * LONG_S
    assert profiled.report().operations
    assert signals == {number: signal.getsignal(number) for number in signals}


def test_batches_of_another_thread_have_no_operations() -> None:
    reports: list[ProfileReport] = []
    loader = DataLoader(Samples(grey), batch_size=4)
    thread = threading.Thread(target=lambda: reports.append(report_of(loader)))
    thread.start()
    thread.join()
    assert not reports[0].operations
    assert [text for text in reports[0].unseen if text.startswith("operations")]


LOOP = """\
import json, signal, sys, time
from torch.utils.data import DataLoader, Dataset

counts = []
numbers = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
if sys.argv[1] == "signals":
    for number in numbers:
        signal.signal(number, lambda number, frame: counts.append(number))

def erase(image):
    time.sleep(0.01)
    return image

class Images(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return erase(index)

for batch in DataLoader(Images(), batch_size=4, num_workers=int(sys.argv[2])):
    pass
if sys.argv[1] == "signals":
    signal.raise_signal(signal.SIGRTMIN)
print(counts, [callable(signal.getsignal(number)) for number in numbers])
"""


@pytest.mark.parametrize(
    ("uses", "workers"),
    [
        ("signals", "0"),
        *(
            pytest.param(*row, marks=pytest.mark.full)
            for row in (("nothing", "0"), ("nothing", "1"), ("signals", "1"))
        ),
    ],
)
def test_signals_of_a_script_are_its_own(uses: str, workers: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    words = ("train.py", uses, workers)
    expected, done = run(*words, folder=tmp_path), profile("--out", "out", *words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr
    facts = json.loads((tmp_path / "out/profile.json").read_text())
    names = [row["name"] for row in facts["operations"]]
    assert names[:1] == (["erase"] if uses == "nothing" else [])
    assert any(text.startswith("operations") for text in facts["unseen"]) == (uses == "signals")
