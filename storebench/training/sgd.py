"""SGD with momentum by Caffe's rule, in place, with torch's arithmetic but without its optimizer classes."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.optim.sgd import sgd


class _Group(NamedTuple):
    """Parameters with the same learning rate and decay, and their momentum."""

    parameters: list[torch.Tensor]
    momentum: list[torch.Tensor | None]
    rate_factor: float
    weight_decay: float


class CaffeSgd:
    """Train a network's parameters; biases learn twice as fast as weights and do not decay."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], *, momentum: float, weight_decay: float
    ) -> None:
        self._momentum = momentum
        self._groups = []
        for are_biases, rate_factor, decay in ((False, 1.0, weight_decay), (True, 2.0, 0.0)):
            group = [value for name, value in parameters.items() if name.endswith("bias") is are_biases]
            # Zeros give the same first update as no momentum.
            zeros = [torch.zeros_like(value, requires_grad=False) for value in group]
            self._groups.append(_Group([*group], [*zeros], rate_factor, decay))

    def forget_gradients(self) -> None:
        """Make the next backward pass start without gradients."""
        for group in self._groups:
            for parameter in group.parameters:
                parameter.grad = None

    def step(self, rate: float) -> None:
        """Update every parameter, all of which have gradients, at a learning rate."""
        with torch.no_grad():
            for group in filter(lambda group: group.parameters, self._groups):
                sgd(
                    group.parameters,
                    [parameter.grad for parameter in group.parameters if parameter.grad is not None],
                    group.momentum,
                    weight_decay=group.weight_decay,
                    momentum=self._momentum,
                    lr=rate * group.rate_factor,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                )

    def momentum(self) -> list[torch.Tensor]:
        """Return the momentum of every parameter, of the same shape."""
        return [buffer for group in self._groups for buffer in group.momentum if buffer is not None]
