"""The operations of a sample are named, whichever way a dataset and its pipeline are written."""

import ctypes
import itertools
import signal
import time
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
from storebench.system.kernel import LIBRARY

LONG_S = 0.012
has_ticks = LIBRARY.exists() and hasattr(ctypes.CDLL(str(LIBRARY)), "storebench_tick")
pytestmark = pytest.mark.skipif(not has_ticks, reason="the kernel is not built")


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


class Compose:
    def __init__(self, steps: Iterable[Any]) -> None:
        self.steps = list(steps)

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


def grey(image: Any) -> Any:
    time.sleep(LONG_S)
    return image


class Samples(Dataset[Any]):
    """Samples that are seconds, and go through a transform."""

    def __init__(self, transform: Callable[[Any], Any], count: int = 64) -> None:
        self.transform, self.count = transform, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        return self.make(index)

    def make(self, index: int) -> float:
        self.transform(LONG_S)
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


def shapes(rows: dict[str, Any]) -> dict[str, Any]:
    return {"shape": [np.array(image).shape for image in rows["image"]]}


def hugging_face(folder: Path) -> Dataset[Any]:
    datasets = pytest.importorskip("datasets")
    photos = Photos(folder)
    rows = {"image": [str(photos.path)] * len(photos)}
    stored = datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()}))
    return stored.with_transform(shapes)


DATASETS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "a list of objects": (lambda _: Samples(Compose([Erase(), Jitter()])), {"Erase", "Jitter"}),
    "a list of functions": (lambda _: Samples(Compose([grey, time.sleep])), {"grey", "sleep"}),
    "a list in a list": (lambda _: Samples(Compose([Compose([Erase()]), grey])), {"Erase", "grey"}),
    "modules": (lambda _: Samples(torch.nn.Sequential(Jitter(), torch.nn.Identity())), {"Jitter"}),
    "one object": (lambda _: Samples(Erase()), {"Erase"}),
    "one function": (lambda _: Samples(grey), {"grey"}),
    "a part of a dataset": (lambda _: Subset(Samples(Erase()), list(range(64))), {"Erase"}),
    "a stream": (lambda _: Stream(Compose([Erase(), grey])), {"Erase", "grey"}),
    "photographs": (Photos, {"decode (Pillow)"}),
    "photographs of Hugging Face": (hugging_face, {"decode (Hugging Face)", "shapes"}),
}


@pytest.mark.parametrize(("name", "workers"), [*zip(DATASETS, itertools.cycle([0, 1]))])
def test_operations_are_named(name: str, workers: int, tmp_path: Path) -> None:
    make, names = DATASETS[name]
    operations = report_of(DataLoader(make(tmp_path), batch_size=4, num_workers=workers)).operations
    rows = [row.name for row in operations]
    assert names <= set(rows)
    assert rows[0] in names
    assert sum(row.share for row in operations) == pytest.approx(1.0, abs=0.1)
    assert [row.share for row in operations] == sorted((row.share for row in operations), reverse=True)
    assert {"Identity", "Samples.make", "Samples.__getitem__"}.isdisjoint(rows)


class Limited(Samples):
    """Samples that are given up after some time, as the script's own handler of signals has it."""

    raised = caught = 0

    def give_up(self, *_: Any) -> None:
        self.raised += 1
        raise TimeoutError

    def make(self, index: int) -> float:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            while True:
                self.transform(index)
        except TimeoutError:
            self.caught += 1
        return LONG_S


def test_errors_of_handlers_of_signals_reach_the_dataset() -> None:
    limited = Limited(lambda index: sum(range(index)), count=400)
    before = signal.signal(signal.SIGALRM, limited.give_up)
    try:
        report = report_of(DataLoader(limited, batch_size=4))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert limited.raised == limited.caught == 400
    assert report.operations
    assert 0.0009 < report.sample_s["p50"] <= report.sample_s["p95"] <= report.sample_s["p99"]
