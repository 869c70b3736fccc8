"""The networks are the ones that they are called after, and learn by Caffe's rule."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from storebench.arrays import ImageShape
from storebench.errors import UnknownNameError
from storebench.loading.batch import LoadedBatch
from storebench.settings.words import Compute
from storebench.training.compute import CpuStep, make_step
from storebench.training.models import MODELS, ModelSpec, Network, get_model

INPUTS: dict[str, tuple[ImageShape, int]] = {
    "lenet": ((28, 28, 1), 10),
    "cifar10_quick": ((32, 32, 3), 10),
    "caffenet": ((227, 227, 3), 1000),
    "resnet50": ((224, 224, 3), 1000),
    "tiny": ((28, 28, 1), 10),
}
# What Caffe and torchvision count for the networks that they ship.
PARAMETERS = {"lenet": 431_080, "cifar10_quick": 145_578, "caffenet": 60_965_224, "resnet50": 25_557_032}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_a_network_has_the_published_number_of_weights(name: str, parameters: int) -> None:
    with torch.device("meta"):
        body = MODELS[name].build(*INPUTS[name])
    assert sum(parameter.numel() for parameter in body.parameters()) == parameters


@pytest.mark.parametrize("name", ["lenet", "cifar10_quick", "tiny"])
def test_uint8_images_become_one_logit_a_class(name: str) -> None:
    shape, classes = INPUTS[name]
    network = Network(MODELS[name], shape, classes)
    logits = network(torch.randint(0, 256, (3, *shape), dtype=torch.uint8))
    assert (logits.shape, logits.dtype) == ((3, classes), torch.float32)
    assert torch.isfinite(logits).all()


def test_pixels_are_scaled_channel_by_channel_on_the_way_in() -> None:
    spec = ModelSpec(
        name="probe",
        build=lambda _shape, _classes: nn.Flatten(),
        batch_size=1,
        mean=(10.0, 20.0, 30.0),
        scale=0.5,
    )
    pixels = torch.tensor([[[[10, 20, 30], [12, 24, 36]]]], dtype=torch.uint8)
    assert Network(spec, (1, 2, 3), 2)(pixels).tolist() == [[0, 1, 0, 2, 0, 3]]


def batch_of(pixels: torch.Tensor, labels: list[int]) -> LoadedBatch:
    return LoadedBatch(pixels=pixels, labels=np.array(labels, dtype=np.int64), indices=np.arange(len(labels)))


def test_the_weights_are_to_the_bit_those_of_torchs_own_optimizer() -> None:
    torch.manual_seed(4)
    step = make_step(Compute("real"), MODELS["lenet"], (28, 28, 1), 10, "cpu")
    assert isinstance(step, CpuStep)
    spec, twin = MODELS["lenet"], copy.deepcopy(step.network)
    named = dict(twin.named_parameters())
    groups = [
        {"params": [value for name, value in named.items() if not name.endswith("bias")], "times": 1},
        {"params": [value for name, value in named.items() if name.endswith("bias")], "times": 2},
    ]
    groups[1]["weight_decay"] = 0.0
    judge = torch.optim.SGD(groups, lr=1.0, momentum=spec.momentum, weight_decay=spec.weight_decay)
    for number in range(4):
        pixels = torch.randint(0, 256, (8, 28, 28, 1), dtype=torch.uint8)
        step.copy(batch_of(pixels, list(range(8))))
        step.compute()
        for group in judge.param_groups:
            group["lr"] = spec.lr * (1 + spec.gamma * number) ** -spec.power * group["times"]
        judge.zero_grad()
        nn.functional.cross_entropy(twin(pixels), torch.arange(8)).backward()
        judge.step()
    for one, two in zip(step.network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_rehearsal_leaves_weights_gradients_and_losses_as_they_were() -> None:
    spec = MODELS["tiny"]
    step = make_step(Compute("real"), spec, (28, 28, 1), 10, "cpu")
    assert isinstance(step, CpuStep)
    before = [value.clone() for value in step.network.parameters()]
    step.copy(batch_of(torch.randint(0, 256, (4, 28, 28, 1), dtype=torch.uint8), [1, 2, 3, 4]))
    step.rehearse()
    assert all(torch.equal(one, two) for one, two in zip(before, step.network.parameters(), strict=True))
    assert all(value.grad is None for value in step.network.parameters())
    assert step.losses() == []


def test_a_network_that_is_not_there_is_refused_with_the_next_name() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'caffenet'"):
        get_model("cafenet")
