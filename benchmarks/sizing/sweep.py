"""Choose torch's convolution settings by a timed trial, and the mini-batch by the time to a loss."""

import functools
import itertools
import math
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from storebench.datasets.base import DatasetSpec
from storebench.datasets.catalog import open_dataset
from storebench.settings.words import Split
from storebench.training.models import MODELS, Network
from storebench.training.sgd import CaffeSgd
from storebench.units import number_of

TASKS = {"mnist": ("lenet", 0.15), "cifar10": ("cifar10_quick", 1.9)}
"""Dataset -> its network, and the test loss that training has to reach."""

TEST_EVERY = TESTED = 1000
"""Training images between two tests, and test images of each."""

TRIAL_S, FEWEST_STEPS = 5.0, 4


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images uint8 [n, H, W, C], their labels, and whether they are real."""

    pixels: torch.Tensor
    labels: torch.Tensor
    origin: str


@functools.cache
def read(dataset: str, split: Split = Split.TRAIN, limit: int | None = None) -> Images:
    """Read a dataset into memory."""
    opened = open_dataset(DatasetSpec(name=dataset, split=split, limit=limit))
    pixels, labels = zip(*map(opened.sample, range(len(opened))), strict=True)
    origin = opened.info.provenance.origin
    return Images(pixels=torch.from_numpy(np.stack(pixels)), labels=torch.tensor(labels), origin=origin)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of torch's convolutions on the CPU."""

    onednn: bool
    channels_last: bool
    threads: int

    def __str__(self) -> str:
        library = "oneDNN" if self.onednn else "native"
        order = "last" if self.channels_last else "first"
        return f"{library}, channels {order}, {number_of(self.threads, 'thread')}"


class Training:
    """A network in training; its learning rate is its usual one in proportion to the mini-batch."""

    def __init__(self, dataset: str, batch: int, settings: Settings, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self._settings, self._images = settings, read(dataset)
        spec = MODELS[TASKS[dataset][0]]
        self._rate = spec.lr * batch / spec.batch_size
        height, width, channels = self._images.pixels.shape[1:]
        self.network = Network(spec, (height, width, channels), 10)
        self._sgd = CaffeSgd(
            dict(self.network.named_parameters()), momentum=spec.momentum, weight_decay=spec.weight_decay
        )
        if settings.channels_last:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.network.body.register_forward_pre_hook(
                lambda _, inputs: inputs[0].contiguous(memory_format=torch.channels_last)
            )

    def step_s(self, indices: torch.Tensor) -> float:
        """Train on some images, and return the seconds that it took."""
        torch.set_num_threads(self._settings.threads)
        torch.backends.mkldnn.enabled = self._settings.onednn  # type: ignore[assignment]
        pixels, labels = self._images.pixels[indices], self._images.labels[indices]
        started = time.perf_counter()
        self._sgd.forget_gradients()
        nn.functional.cross_entropy(self.network(pixels), labels).backward()
        self._sgd.step(self._rate)
        return time.perf_counter() - started

    def test_loss(self, test: Images, batch: int) -> float:
        """Return the mean loss over test images."""
        with torch.inference_mode():
            found = torch.cat([self.network(pixels) for pixels in test.pixels.split(batch)])
            return float(nn.functional.cross_entropy(found, test.labels))


def trial(dataset: str, cores: int) -> dict[Settings, float]:
    """Return the seconds per step of all settings: the median of steps in turn, with the network's usual mini-batch."""
    batch = MODELS[TASKS[dataset][0]].batch_size
    choices = itertools.product((True, False), (False, True), dict.fromkeys((cores, 1)))
    every = [Settings(onednn=one, channels_last=last, threads=threads) for one, last, threads in choices]
    trained = {settings: Training(dataset, batch, settings) for settings in every}
    taken: dict[Settings, list[float]] = {settings: [] for settings in every}
    begun = time.perf_counter()
    while time.perf_counter() - begun < TRIAL_S or len(taken[every[-1]]) < FEWEST_STEPS:
        for settings, training in trained.items():
            taken[settings].append(training.step_s(torch.arange(batch)))
    return {settings: statistics.median(each[1:]) for settings, each in taken.items()}


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A mini-batch: median seconds of a step, peak memory of the process, and steps to the loss by seed (None: not reached)."""

    batch: int
    step_s: float
    peak_bytes: int
    steps: Sequence[int | None]

    @property
    def to_loss_s(self) -> float | None:
        """Median seconds of training to the loss; None if a seed has not reached it."""
        reached = [steps for steps in self.steps if steps is not None]
        return statistics.median(reached) * self.step_s if len(reached) == len(self.steps) else None


def sized(dataset: str, batch: int, settings: Settings, seeds: int, most_images: int) -> Sized:
    """Train with a mini-batch to the loss, from each seed, in a process that does nothing else."""
    test, taken, steps = read(dataset, Split.TEST, TESTED), list[float](), list[int | None]()
    peak_bytes = 0
    for seed in range(seeds):
        training = Training(dataset, batch, settings, seed)
        shuffled = torch.randperm(len(read(dataset).labels)).split(batch)
        reached, loss, tests = None, math.inf, 0
        for number, indices in enumerate(shuffled[: max(1, most_images // batch)], start=1):
            taken.append(training.step_s(indices))
            if not seed and not tests:
                peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if number * batch // TEST_EVERY > tests:
                tests = number * batch // TEST_EVERY
                loss = training.test_loss(test, batch)
            if loss <= TASKS[dataset][1]:
                reached = number
                break
        steps.append(reached)
    return Sized(batch=batch, step_s=statistics.median(taken), peak_bytes=peak_bytes, steps=steps)
