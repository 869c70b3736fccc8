"""Training by the extended Kalman filter: updates by the matrix formulas, and few presentations."""

import copy
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from storebench.errors import UsageError
from storebench.loading.batch import LoadedBatch
from storebench.run.scenario import make_scenario
from storebench.settings.words import Compute
from storebench.training.compute import CpuStep, make_step
from storebench.training.ekf import DRIFT, NOISE, VARIANCE, Ekf
from storebench.training.models import MODELS

Floats = npt.NDArray[np.float64]
Layers = list[tuple[Any, Any]]


def layers(random: np.random.Generator, *sizes: int) -> Layers:
    return [
        (random.normal(size=(out, into)), random.normal(size=out)) for into, out in itertools.pairwise(sizes)
    ]


def outputs(net: Layers, sample: Floats) -> Floats:
    for number, (weights, biases) in enumerate(net):
        sample = weights @ sample + biases
        sample = np.tanh(sample) if number < len(net) - 1 else sample
    return sample


def groups(net: Layers, *, decoupled: bool) -> list[list[tuple[int, int]]]:
    """Return the nodes (layer, number) of each group of weights."""
    nodes = [(layer, node) for layer, (weights, _) in enumerate(net) for node in range(len(weights))]
    return [[node] for node in nodes] if decoupled else [nodes]


def vector(net: Layers, group: list[tuple[int, int]]) -> Floats:
    return np.concatenate([np.append(net[layer][0][node], net[layer][1][node]) for layer, node in group])


def slopes(net: Layers, group: list[tuple[int, int]], sample: Floats) -> Floats:
    """Return the derivatives of the outputs by the weights of a group, [weights, outputs], by differences."""
    rows, step = [], 1e-6
    for layer, node in group:
        for weight in range(net[layer][0].shape[1] + 1):
            moved = []
            for sign in (1, -1):
                other = copy.deepcopy(net)
                if weight < net[layer][0].shape[1]:
                    other[layer][0][node, weight] += sign * step
                else:
                    other[layer][1][node] += sign * step
                moved.append(outputs(other, sample))
            rows.append((moved[0] - moved[1]) / (2 * step))
    return np.array(rows)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("sizes", [(3, 4, 2), (3, 4, 3, 2), (5, 1)])
def test_updates_are_those_of_the_matrix_formulas(decoupled: bool, sizes: tuple[int, ...]) -> None:
    """Global: all outputs at once, by an inverse. Decoupled: outputs in turn, one covariance per node."""
    random = np.random.default_rng(0)
    net = layers(random, *sizes)
    filtered = Ekf(copy.deepcopy(net), decoupled=decoupled)
    parts = groups(net, decoupled=decoupled)
    covariances = [VARIANCE * np.eye(len(vector(net, part))) for part in parts]
    for _ in range(3):
        sample, wanted = random.normal(size=sizes[0]), random.normal(size=sizes[-1])
        error = wanted - outputs(net, sample)
        assert filtered.learn(sample, wanted) == pytest.approx(outputs(net, sample))
        slope = [slopes(net, part, sample) for part in parts]
        moved = [np.zeros(len(covariance)) for covariance in covariances]
        chosen = [[output] for output in range(sizes[-1])] if decoupled else [list(range(sizes[-1]))]
        for some in chosen:
            by = [one[:, some] for one in slope]
            scale = NOISE * np.eye(len(some)) + sum(h.T @ p @ h for h, p in zip(by, covariances, strict=True))
            left = error[some] - sum(h.T @ step for h, step in zip(by, moved, strict=True))
            gains = [p @ h @ np.linalg.inv(scale) for h, p in zip(by, covariances, strict=True)]
            moved = [step + gain @ left for step, gain in zip(moved, gains, strict=True)]
            covariances = [p - k @ h.T @ p for p, k, h in zip(covariances, gains, by, strict=True)]
        covariances = [covariance + DRIFT * np.eye(len(covariance)) for covariance in covariances]
        for part, steps in zip(parts, moved, strict=True):
            ends = np.cumsum([net[layer][0].shape[1] + 1 for layer, _ in part])[:-1]
            for (layer, node), step in zip(part, np.split(steps, ends), strict=True):
                net[layer][0][node] += step[:-1]
                net[layer][1][node] += step[-1]
        for (weights, biases), (own_weights, own_biases) in zip(net, filtered.layers, strict=True):
            assert own_weights == pytest.approx(weights, rel=1e-5, abs=1e-6)
            assert own_biases == pytest.approx(biases, rel=1e-5, abs=1e-6)


def error_of(model: str, seed: int, presentations: int) -> float:
    """Train on batches of 50 noisy pictures of ten classes, and return the share of others that are told wrong."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, 256, size=(10, 14, 14, 1))

    def drawn(count: int) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        labels = random.integers(0, 10, size=count)
        noise = random.normal(scale=200, size=(count, 14, 14, 1))
        return torch.from_numpy(np.clip(classes[labels] + noise, 0, 255).astype(np.uint8)), labels

    torch.manual_seed(seed)
    step = make_step(Compute("real"), MODELS[model], (14, 14, 1), 10, "cpu")
    assert isinstance(step, CpuStep)
    for _ in range(0, presentations, 50):
        pixels, labels = drawn(50)
        step.copy(LoadedBatch(pixels=pixels, labels=labels, indices=labels))
        step.compute()
    pixels, labels = drawn(1000)
    with torch.no_grad():
        return float((step.network(pixels).argmax(1).numpy() != labels).mean())


@pytest.mark.parametrize(("model", "seeds", "presentations"), [("mlp_ekf", 2, 500), ("mlp_gekf", 1, 50)])
def test_fewer_presentations_than_sgd_for_the_same_error(model: str, seeds: int, presentations: int) -> None:
    for seed in range(seeds):
        assert error_of(model, seed, presentations) < error_of("mlp", seed, 3 * presentations)


@pytest.mark.parametrize("more", [{"ranks": 2}, {"device": "cuda"}])
def test_is_refused_where_it_does_not_run(more: dict[str, Any]) -> None:
    matrix = {"dataset": "mnist", "model": "mlp_ekf", "backends": ["lmdb"]} | more
    with pytest.raises(UsageError, match="mlp_ekf is trained by one process on the CPU"):
        make_scenario({"name": "ekf", "matrix": [matrix]}).cells()
