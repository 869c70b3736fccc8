"""Hold the training of ranks to that of one process: the same losses and weights, within float32 rounding.

Each float32 operation rounds by up to 2**-24, 6e-8 of its result. Ranks sum the same products as one process, but in
another order, so sums over a batch differ by a few such roundings, and every step adds to the difference. So do the
sums of one process whose batches hold the same samples in another order: over 6 steps of LeNet its losses differ by
2e-7 and its weights by 2e-6 of the largest of their tensor. `TOLERANCE` is five times that.

The activations of cifar10_quick are so small that a pooling or a rectifier may compare two inputs that are equal
within rounding, and choose the other one. In one process with permuted batches, this happened in a quarter of the
trials of three steps. All gradients before that unit then differ slightly, by up to a tenth in one channel, and later
losses by 2e-5. The frequency depends on the processor's kernels. So the norms of this network's tensors must agree
within a hundredth (differences of up to a thousandth were seen), and its losses have a wider tolerance. Its biases
start at zero, so for them this is a hundredth of the entire change by training. A wrong weight of a rank's part of a
batch moves them by more than a tenth.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

TOLERANCE = 1e-5
SWITCHING_TOLERANCE = 1e-4
SWITCHING_NORM = 1e-2
"""Largest norm of a tensor's differences, relative to the tensor's, in a network whose units may switch."""

Weights = Mapping[str, npt.NDArray[np.float32]]


def assert_same_losses(losses: Any, right: Any, model: str) -> None:
    np.testing.assert_allclose(losses, right, rtol=SWITCHING_TOLERANCE if _switches(model) else TOLERANCE)


def assert_same_weights(weights: Weights, right: Weights, model: str) -> None:
    assert list(weights) == list(right)
    for name, expected in right.items():
        differences = np.abs(weights[name] - expected)
        if _switches(model):
            assert np.linalg.norm(differences) < SWITCHING_NORM * np.linalg.norm(expected), name
        else:
            assert differences.max() < TOLERANCE * np.abs(expected).max(), name


def _switches(model: str) -> bool:
    return model == "cifar10_quick"
