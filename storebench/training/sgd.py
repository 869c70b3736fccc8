"""SGD with momentum by Caffe's rule, in place, with torch's arithmetic but without its optimizer classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim.sgd import sgd


@dataclass(kw_only=True)
class _Group:
    """Parameters with the same learning rate and decay, and their momentum."""

    parameters: list[nn.Parameter]
    rate_factor: float
    weight_decay: float
    buffers: dict[nn.Parameter, torch.Tensor | None] = field(default_factory=dict)


class CaffeSgd:
    """Train a network's parameters; biases learn twice as fast as weights and do not decay."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], *, momentum: float, weight_decay: float
    ) -> None:
        self._momentum = momentum
        weights = [value for name, value in parameters.items() if not name.endswith("bias")]
        biases = [value for name, value in parameters.items() if name.endswith("bias")]
        self._groups = [
            _Group(parameters=weights, rate_factor=1.0, weight_decay=weight_decay),
            _Group(parameters=biases, rate_factor=2.0, weight_decay=0.0),
        ]

    def forget_gradients(self) -> None:
        """Make the next backward pass start without gradients."""
        for group in self._groups:
            for parameter in group.parameters:
                parameter.grad = None

    def step(self, rate: float) -> None:
        """Update every parameter that has a gradient, at a learning rate."""
        with torch.no_grad():
            for group in self._groups:
                self._update(group, rate)

    def momentum(self) -> list[torch.Tensor]:
        """Return the momentum of every parameter, of the same shape; zeros before the first update."""
        return [
            self._momentum_of(group, parameter) for group in self._groups for parameter in group.parameters
        ]

    def _momentum_of(self, group: _Group, parameter: nn.Parameter) -> torch.Tensor:
        buffer = group.buffers.get(parameter)
        if buffer is None:
            # Zeros give the same update as no momentum.
            buffer = group.buffers[parameter] = torch.zeros_like(parameter, requires_grad=False)
        return buffer

    def _update(self, group: _Group, rate: float) -> None:
        changed = [parameter for parameter in group.parameters if parameter.grad is not None]
        if not changed:
            return
        buffers = [group.buffers.get(parameter) for parameter in changed]
        sgd(
            list[torch.Tensor](changed),
            [parameter.grad for parameter in changed if parameter.grad is not None],
            buffers,
            weight_decay=group.weight_decay,
            momentum=self._momentum,
            lr=rate * group.rate_factor,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        group.buffers.update(zip(changed, buffers, strict=True))
