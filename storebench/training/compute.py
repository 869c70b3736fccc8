"""The work of a training step on a batch: real training, an emulated accelerator, or none."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from storebench.loading.batch import LoadedBatch
from storebench.settings.words import Compute, ComputeKind
from storebench.training.ekf import Ekf
from storebench.training.models import ModelSpec, Network
from storebench.training.sgd import CaffeSgd


class Step:
    """Copy a batch to the device and compute on it; this one does neither."""

    kind: ComputeKind = ComputeKind.NONE

    def begin(self, sizes: Sequence[int]) -> None:
        """Note the number of samples of each step of the epoch that begins, over all ranks of the job."""

    def copy(self, batch: LoadedBatch) -> None:
        """Copy the batch to the device."""

    def compute(self) -> None:
        """Compute on the last copied batch, and wait for the device."""

    def h2d_ns(self) -> int:
        """Return the duration of the last copy in nanoseconds, by the device's own clock; 0 if nothing is copied."""
        return 0

    def losses(self) -> list[float]:
        """Return the loss of every step so far and forget them; never called inside a timed span."""
        return []


class NoStep(Step):
    """Only drain the loader."""


class EmulatedStep(Step):
    """Sleep for as long as an accelerator would compute; figures from it are labelled emulated."""

    kind = ComputeKind.EMULATED

    def __init__(self, milliseconds: float) -> None:
        self._seconds = milliseconds / 1000

    def compute(self) -> None:
        time.sleep(self._seconds)


class CpuStep(Step):
    """Forward, backward and SGD on the CPU; there is nothing to copy."""

    kind = ComputeKind.REAL

    def __init__(self, spec: ModelSpec, network: Network, device: torch.device) -> None:
        self.network = network.to(device)
        self.device = device
        self._spec = spec
        self._optimizer = CaffeSgd(
            dict(network.named_parameters()), momentum=spec.momentum, weight_decay=spec.weight_decay
        )
        self._criterion = nn.CrossEntropyLoss()
        self._losses: list[torch.Tensor] = []
        self._steps = 0
        self._pixels = self._labels = torch.empty(0)

    def copy(self, batch: LoadedBatch) -> None:
        self._pixels, self._labels = batch.pixels, torch.from_numpy(batch.labels)

    def compute(self) -> None:
        loss = self._criterion(self.network(self._pixels), self._labels)
        self._optimizer.forget_gradients()
        loss.backward()
        self._learn(loss)

    def _learn(self, loss: torch.Tensor) -> None:
        """Change the weights by the gradients, and keep the loss."""
        rate = self._spec.lr * (1 + self._spec.gamma * self._steps) ** -self._spec.power
        self._optimizer.step(rate)
        self._losses.append(loss.detach())
        self._steps += 1

    def rehearse(self) -> None:
        """Run forward and backward without learning anything, so that the first timed step is like the others."""
        self._criterion(self.network(self._pixels), self._labels).backward()
        self._optimizer.forget_gradients()

    def state(self) -> list[torch.Tensor]:
        """Return the tensors that training changes, in a fixed order: weights, momentum, statistics."""
        statistics = (buffer for buffer in self.network.buffers() if buffer.is_floating_point())
        weights = (parameter.detach() for parameter in self.network.parameters())
        return [*weights, *self._optimizer.momentum(), *statistics]

    def losses(self) -> list[float]:
        """Return the losses, float32 values, and forget them."""
        values = torch.stack(self._losses).tolist() if self._losses else []
        self._losses = []
        return [float(value) for value in values]


class EkfStep(CpuStep):
    """Forward and a Kalman update on the CPU, sample by sample; the loss is that before the updates."""

    def __init__(self, spec: ModelSpec, network: Network, device: torch.device) -> None:
        super().__init__(spec, network, device)
        linear = [layer for layer in network.body.modules() if isinstance(layer, nn.Linear)]
        arrays = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in linear]
        self._filter = Ekf(arrays, decoupled=spec.optimizer == "ekf")

    def compute(self) -> None:
        with torch.no_grad():
            samples, labels = self.network.features(self._pixels).numpy(), self._labels.numpy()
        wanted = np.eye(len(self._filter.layers[-1][1]), dtype=samples.dtype)
        logits = [
            self._filter.learn(sample, wanted[label]) for sample, label in zip(samples, labels, strict=True)
        ]
        self._losses.append(self._criterion(torch.from_numpy(np.stack(logits)), self._labels))

    def state(self) -> list[torch.Tensor]:
        weights = (parameter.detach() for parameter in self.network.parameters())
        return [*weights, *map(torch.from_numpy, self._filter.covariances)]


class CudaStep(CpuStep):
    """The same on a GPU: a non-blocking copy from pinned memory, timed by events, one synchronisation per step."""

    def __init__(self, spec: ModelSpec, network: Network, device: torch.device) -> None:
        super().__init__(spec, network, device)
        event: Any = torch.cuda.Event
        self._before, self._after = event(enable_timing=True), event(enable_timing=True)

    def copy(self, batch: LoadedBatch) -> None:
        self._before.record()
        self._pixels = batch.pixels.to(self.device, non_blocking=True)
        self._labels = torch.from_numpy(batch.labels).to(self.device, non_blocking=True)
        self._after.record()

    def compute(self) -> None:
        super().compute()
        torch.cuda.synchronize(self.device)

    def h2d_ns(self) -> int:
        """Return the nanoseconds between the events around the copy."""
        return int(self._before.elapsed_time(self._after) * 1e6)


def make_step(
    compute: Compute, spec: ModelSpec | None, shape: tuple[int, int, int], classes: int, device: str
) -> Step:
    if compute.kind is ComputeKind.NONE:
        return NoStep()
    if compute.kind is ComputeKind.EMULATED:
        return EmulatedStep(compute.milliseconds)
    assert spec is not None, "no cell computes without a model"
    target, network = torch.device(device), Network(spec, shape, classes)
    if spec.optimizer != "sgd":
        return EkfStep(spec, network, target)
    return (CudaStep if target.type == "cuda" else CpuStep)(spec, network, target)


def warm_up(step: Step, shape: tuple[int, ...]) -> None:
    """Let the libraries choose their kernels and allocate memory before the clock runs; no weight changes."""
    if not isinstance(step, CpuStep):
        return
    labels = np.zeros(shape[0], dtype=np.int64)
    batch = LoadedBatch(pixels=torch.full(shape, 128, dtype=torch.uint8), labels=labels, indices=labels)
    for _ in range(2):
        step.copy(batch)
        step.rehearse()
