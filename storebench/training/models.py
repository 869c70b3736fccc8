"""The networks: Caffe's LeNet, cifar10_quick and CaffeNet, ResNet-50, a multilayer perceptron, and a tiny one."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from storebench.arrays import ImageShape
from storebench.errors import UnknownNameError
from storebench.loading.augment import Augment


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A network and its training parameters."""

    name: str
    build: Callable[[ImageShape, int], nn.Module]
    batch_size: int
    augment: Augment = field(default_factory=Augment)
    mean: tuple[float, ...] = (0.0,)
    scale: float = 1.0
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    gamma: float = 0.0
    power: float = 0.75
    optimizer: str = "sgd"
    """"sgd" by Caffe's rule; for perceptrons "ekf" or "gekf", the node-decoupled or global Kalman filter."""


class Network(nn.Module):
    """Scale uint8 images on the device and apply a network to them."""

    mean: torch.Tensor

    def __init__(self, spec: ModelSpec, shape: ImageShape, classes: int) -> None:
        super().__init__()
        mean = spec.mean if len(spec.mean) == shape[2] else (sum(spec.mean) / len(spec.mean),) * shape[2]
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.scale = spec.scale
        self.body = spec.build(shape, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.body(self._scaled(pixels))
        return logits

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the inputs of a perceptron's first layer, float32 [n, inputs]."""
        assert isinstance(self.body, nn.Sequential)
        inputs: torch.Tensor = self.body[0](self._scaled(pixels))
        return inputs

    def _scaled(self, pixels: torch.Tensor) -> torch.Tensor:
        images = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return (images - self.mean) * self.scale


def lenet(shape: ImageShape, classes: int) -> nn.Module:
    """Caffe's LeNet: convolutions with 20 and 50 channels, a layer of 500, Xavier weights."""
    features = nn.Sequential(
        *(nn.Conv2d(shape[2], 20, 5), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU(inplace=True)),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU(inplace=True)),
    )
    body = nn.Sequential(
        features,
        nn.Flatten(),
        nn.Linear(_flat(features, shape), 500),
        nn.ReLU(inplace=True),
        nn.Linear(500, classes),
    )
    for layer in _weighted(body):
        # Caffe's "xavier" filler: uniform within sqrt(3 / fan_in).
        bound = (3 / (layer.weight[0].numel())) ** 0.5
        nn.init.uniform_(layer.weight, -bound, bound)
        _constant_bias(layer, 0.0)
    return body


def cifar10_quick(shape: ImageShape, classes: int) -> nn.Module:
    """Caffe's cifar10_quick: 5x5 convolutions with 32, 32 and 64 channels, a layer of 64, Gaussian weights."""
    features = nn.Sequential(
        nn.Conv2d(shape[2], 32, 5, padding=2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 2, ceil_mode=True),
    )
    body = nn.Sequential(
        features, nn.Flatten(), nn.Linear(_flat(features, shape), 64), nn.Linear(64, classes)
    )
    _gaussian(body, deviations=(1e-4, 0.01, 0.01, 0.1, 0.1), biases=(0.0,) * 5)
    return body


def caffenet(shape: ImageShape, classes: int) -> nn.Module:
    """BVLC's CaffeNet: AlexNet (Krizhevsky et al., 2012) with pooling before normalisation."""
    features = nn.Sequential(
        *(
            nn.Conv2d(shape[2], 96, 11, stride=4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.LocalResponseNorm(5),
        ),
        *(nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        nn.LocalResponseNorm(5),
        *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
    )
    body = nn.Sequential(
        *(features, nn.Flatten()),
        *(nn.Linear(_flat(features, shape), 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        nn.Linear(4096, classes),
    )
    deviations = (0.01, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005, 0.01)
    _gaussian(body, deviations=deviations, biases=(0.0, 0.1, 0.0, 0.1, 0.1, 0.1, 0.1, 0.0))
    return body


class BottleneckBlock(nn.Module):
    """ResNet's block of 1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        same = stride == 1 and channels == out
        shortcut = (nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if same else nn.Sequential(*shortcut)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet50(shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-50 (He et al., 2016): stages of 3, 4, 6 and 3 bottleneck blocks."""
    layers: list[nn.Module] = [nn.Conv2d(shape[2], 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(BottleneckBlock(channels, width, 2 if block == 0 and stage > 0 else 1))
            channels = 4 * width
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    for layer in body.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return body


def mlp(shape: ImageShape, classes: int) -> nn.Module:
    """A perceptron with 20 tanh nodes on the means of 7 x 7 parts of the image."""
    inputs = nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten())
    return nn.Sequential(inputs, nn.Linear(49 * shape[2], 20), nn.Tanh(), nn.Linear(20, classes))


def tiny(shape: ImageShape, classes: int) -> nn.Module:
    """Return a CNN so small that it is faster than almost any storage, for loader-bound training."""
    stride = max(1, shape[0] // 16)
    features = nn.Sequential(
        nn.Conv2d(shape[2], 8, stride, stride=stride), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    )
    return nn.Sequential(features, nn.Flatten(), nn.Linear(_flat(features, shape), classes))


_IMAGENET_MEAN = (122.7, 116.7, 104.0)  # BVLC's mean pixel, in RGB order

# Networks by name.
MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec(name="lenet", build=lenet, batch_size=64, mean=(33.3,), scale=1 / 78.6, gamma=1e-4),
        ModelSpec(
            name="cifar10_quick",
            build=cifar10_quick,
            batch_size=100,
            mean=(125.3, 123.0, 113.9),
            lr=0.001,
            weight_decay=0.004,
        ),
        ModelSpec(
            name="caffenet",
            build=caffenet,
            batch_size=256,
            augment=Augment(crop=227, mirror=True),
            mean=_IMAGENET_MEAN,
        ),
        ModelSpec(
            name="resnet50",
            build=resnet50,
            batch_size=64,
            augment=Augment(crop=224, mirror=True),
            mean=_IMAGENET_MEAN,
            scale=1 / 58,
            lr=0.1,
            weight_decay=1e-4,
        ),
        *(
            ModelSpec(name=name, build=mlp, batch_size=64, mean=(33.3,), scale=1 / 78.6, optimizer=optimizer)
            for name, optimizer in (("mlp", "sgd"), ("mlp_ekf", "ekf"), ("mlp_gekf", "gekf"))
        ),
        ModelSpec(name="tiny", build=tiny, batch_size=64, mean=(120.0,), scale=1 / 64),
    )
}


def get_model(name: str) -> ModelSpec:
    """Return the network called `name`, or raise `UnknownNameError`."""
    if name not in MODELS:
        raise UnknownNameError.of("model", name, MODELS)
    return MODELS[name]


def _weighted(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def _gaussian(module: nn.Module, *, deviations: tuple[float, ...], biases: tuple[float, ...]) -> None:
    for layer, deviation, bias in zip(_weighted(module), deviations, biases, strict=True):
        nn.init.normal_(layer.weight, std=deviation)
        _constant_bias(layer, bias)


def _constant_bias(layer: nn.Conv2d | nn.Linear, value: float) -> None:
    if layer.bias is not None:
        nn.init.constant_(layer.bias, value)


def _flat(features: nn.Module, shape: ImageShape) -> int:
    """Return the number of activations of `features` for one image of `shape` (H, W, C)."""
    with torch.no_grad():
        return int(features(torch.zeros(1, shape[2], shape[0], shape[1])).numel())
