"""Training of perceptrons by the extended Kalman filter: global or node-decoupled, one output after the other.

The weights are the state of a filter whose measurements are the wanted outputs. The node-decoupled filter keeps a
covariance for the weights of each node and none between nodes (G. V. Puskorius and L. A. Feldkamp, Decoupled extended
Kalman filter training of feedforward layered networks, IJCNN 1991). Taking the outputs one after the other inverts no
matrix (E. S. Plumer, Training neural networks using sequential extended Kalman filtering, 1995), exactly if global.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]

# Initial variance of each weight, variance of each output's error, and what each sample adds to each weight.
VARIANCE, NOISE, DRIFT = 10.0, 1.0, 1e-4


class Ekf:
    """Filters the weights of linear layers with tanh between them, in place.

    Parameters
    ----------
    layers
        Weights float [nodes, inputs] and biases float [nodes] of each layer, first to last.
    decoupled
        Whether each node's weights have a covariance of their own; otherwise all weights share one.

    """

    def __init__(self, layers: Sequence[tuple[Floats, Floats]], *, decoupled: bool) -> None:
        self.layers = layers
        dtype = layers[0][0].dtype
        sizes = [weights.shape[1] + 1 for weights, _ in layers]
        if decoupled:
            nodes = [len(weights) for weights, _ in layers]
            eyes = [np.eye(size, dtype=dtype) * VARIANCE for size in sizes]
            self.covariances = [
                np.repeat(eye[None], number, 0) for eye, number in zip(eyes, nodes, strict=True)
            ]
        else:
            count = sum(len(weights) * size for (weights, _), size in zip(layers, sizes, strict=True))
            self.covariances = [np.eye(count, dtype=dtype) * VARIANCE]
        self._update = self._decoupled if decoupled else self._global

    def learn(self, sample: Floats, wanted: Floats) -> Floats:
        """Update the weights by one sample, float [inputs], and return its outputs before that, float [outputs]."""
        seen, value = [], sample
        for number, (weights, biases) in enumerate(self.layers):
            seen.append(np.append(value, value.dtype.type(1)))
            value = weights @ value + biases
            value = np.tanh(value) if number < len(self.layers) - 1 else value
        # Derivatives of the outputs by each node's sum, [outputs, nodes] per layer.
        slopes = [np.eye(len(value), dtype=value.dtype)]
        for (weights, _), activations in zip(self.layers[:0:-1], seen[:0:-1], strict=True):
            slopes.insert(0, slopes[0] @ weights * (1 - activations[:-1] ** 2))
        self._update(seen, slopes, wanted - value)
        return value

    def _decoupled(self, seen: list[Floats], slopes: list[Floats], errors: Floats) -> None:
        """Update each node's weights; all outputs change a node's covariance along the same direction `along`."""
        along = [covariance @ inputs for covariance, inputs in zip(self.covariances, seen, strict=True)]
        variance = np.concatenate([direction @ inputs for direction, inputs in zip(along, seen, strict=True)])
        moved, removed = np.zeros_like(variance), np.zeros_like(variance)
        for error, slope in zip(errors, np.concatenate(slopes, axis=1), strict=True):
            left = 1 - removed * variance
            total = NOISE + slope**2 @ (left * variance)
            moved += slope * left * (error - slope @ (moved * variance)) / total
            removed += (slope * left) ** 2 / total
        ends = np.cumsum([len(weights) for weights, _ in self.layers])[:-1]
        parts = (self.layers, self.covariances, along, np.split(moved, ends), np.split(removed, ends))
        for (weights, biases), covariance, direction, step, factor in zip(*parts, strict=True):
            _move(weights, biases, step[:, None] * direction)
            np.subtract(
                covariance, (factor[:, None] * direction)[:, :, None] * direction[:, None, :], out=covariance
            )
            np.einsum("kii->ki", covariance)[...] += DRIFT

    def _global(self, seen: list[Floats], slopes: list[Floats], errors: Floats) -> None:
        covariance = self.covariances[0]
        moved = np.zeros(len(covariance), dtype=covariance.dtype)
        for number, error in enumerate(errors):
            parts = zip(slopes, seen, strict=True)
            slope = np.concatenate(
                [np.outer(node_slopes[number], inputs).ravel() for node_slopes, inputs in parts]
            )
            along = covariance @ slope
            total = NOISE + slope @ along
            moved += along * ((error - slope @ moved) / total)
            covariance -= np.outer(along, along / total)
        start = 0
        for weights, biases in self.layers:
            size = weights.size + biases.size
            _move(weights, biases, moved[start : start + size].reshape(len(weights), -1))
            start += size
        np.einsum("ii->i", covariance)[...] += DRIFT


def _move(weights: Floats, biases: Floats, step: Floats) -> None:
    weights += step[:, :-1]
    biases += step[:, -1]
