"""The training step of a rank: the same network on every rank, trained by the gradients of all of them."""

import contextlib
import functools
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from storebench.settings.words import Compute, ComputeKind, Sync
from storebench.training.compute import CpuStep, CudaStep, EmulatedStep, NoStep, Step
from storebench.training.models import ModelSpec, Network


class Exchange:
    """The exchange of gradients between ranks; this one never happens."""

    joins = False  # Whether a rank without a sample has to take part in the step.

    def __init__(self, network: Network, group: dist.ProcessGroup | None = None) -> None:
        self.network = network
        self._group = group

    def weight(self, own: int, whole: int) -> float:  # noqa: ARG002 - only the others need both
        """Return the factor of a rank's summed losses whose gradients it contributes."""
        return 1 / own if own else 0.0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(pixels)
        return logits

    def finish(self) -> None:
        """Complete the exchange after the backward pass."""

    def without(self) -> AbstractContextManager[None]:
        """Return a context in which forward and backward exchange nothing, if `finish` is not called either."""
        return contextlib.nullcontext()


class _AfterBackward(Exchange):
    """One exchange of all gradients in one piece, after the backward pass."""

    joins = True

    def weight(self, own: int, whole: int) -> float:  # noqa: ARG002
        return 1 / whole  # gradients are summed over ranks

    def finish(self) -> None:
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=self._group)
        pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))


class _DuringBackward(Exchange):
    """The buckets of DistributedDataParallel, which are exchanged while the backward pass goes on."""

    joins = True

    def __init__(self, network: Network, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(network, group)
        parallel = nn.parallel.DistributedDataParallel
        parameters = inspect.signature(parallel).parameters  # torch 2.13 deprecates the older name
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
        # Buffers are not exchanged: they are constants, or statistics of which those of rank 0 count.
        unsynced: dict[str, Any] = {buffers: False}
        self._parallel = parallel(network, process_group=group, gradient_as_bucket_view=True, **unsynced)

    def weight(self, own: int, whole: int) -> float:  # noqa: ARG002
        # DistributedDataParallel divides the sum over ranks by their number.
        return dist.get_world_size(self._group) / whole

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._parallel(pixels)
        return logits

    def without(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._parallel.no_sync()
        return context


_EXCHANGES: dict[Sync, type[Exchange]] = {
    Sync.OVERLAPPED: _DuringBackward,
    Sync.AFTER: _AfterBackward,
    Sync.NONE: Exchange,
}


class Exchanging(ABC):
    """A step that exchanges gradients, and can be repeated without learning anything."""

    sync: Sync

    @property
    @abstractmethod
    def gradient_bytes(self) -> int:
        """Bytes of gradients that this rank contributes to a step."""

    @abstractmethod
    def rehearsal_s(self, *, synchronised: bool) -> float:
        """Return the seconds of a step on the last batch, with or without an exchange, that changes no weight."""


class RankStep(CpuStep, Exchanging):
    """Train the network of one rank together with the others."""

    def __init__(self, spec: ModelSpec, network: Network, device: torch.device) -> None:
        super().__init__(spec, network, device)
        self._summed = nn.CrossEntropyLoss(reduction="sum")
        self._sizes: Iterator[int] = iter(())
        self.sync = Sync.NONE
        self._exchange = Exchange(self.network)

    def exchange_by(self, sync: Sync, group: dist.ProcessGroup | None = None) -> None:
        """Choose when gradients are exchanged, and between which ranks. All of these ranks call it together."""
        self.sync = sync
        self._exchange = _EXCHANGES[sync](self.network, group)

    def begin(self, sizes: Sequence[int]) -> None:
        """Note the number of samples per step of the coming epoch, over all ranks of the trainer."""
        self._sizes = iter(sizes)

    def compute(self) -> None:
        """Train one step; a rank without a sample only takes part in the exchange."""
        count, whole = len(self._labels), next(self._sizes)
        if not count and not self._exchange.joins:
            self._losses.append(torch.zeros((), device=self.device))
            self._steps += 1
            return
        loss = self._sum_of_losses()
        self._optimizer.forget_gradients()
        (loss * self._exchange.weight(count, whole)).backward()  # type: ignore[no-untyped-call]
        self._exchange.finish()
        self._learn(loss)

    def rehearse(self) -> None:
        """Run forward, backward and exchange without learning anything."""
        self.rehearsal_s(synchronised=True)

    @property
    def gradient_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for parameter in self.network.parameters())

    def rehearsal_s(self, *, synchronised: bool) -> float:
        self._optimizer.forget_gradients()
        start = time.perf_counter()
        with contextlib.nullcontext() if synchronised else self._exchange.without():
            self._sum_of_losses().backward()  # type: ignore[no-untyped-call]
        if synchronised:
            self._exchange.finish()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - start
        self._optimizer.forget_gradients()
        return seconds

    def keep_last_batch(self, samples: int) -> None:
        """Replace the last batch by a copy of `samples` samples, which repeats the samples that it has."""
        if not len(self._labels):
            self._pixels = torch.full(
                (1, *self._pixels.shape[1:]), 128, dtype=torch.uint8, device=self.device
            )
            self._labels = torch.zeros(1, dtype=torch.int64, device=self.device)
        rows = torch.arange(samples, device=self.device) % len(self._labels)
        self._pixels, self._labels = self._pixels[rows], self._labels[rows]

    def _sum_of_losses(self) -> torch.Tensor:
        loss: torch.Tensor = self._summed(self._exchange.forward(self._pixels), self._labels)
        return loss


class CudaRankStep(CudaStep, RankStep):
    """The same on a GPU."""


class EmulatedRankStep(EmulatedStep, Exchanging):
    """Sleep for as long as an accelerator would compute, and exchange as many bytes as the network has gradients."""

    def __init__(
        self, milliseconds: float, parameters: int, sync: Sync, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(milliseconds)
        self.sync = sync
        self._group = group
        self._gradients = torch.zeros(parameters)

    def compute(self) -> None:
        self._step(self.sync)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the tensor that stands for the gradients."""
        return self._gradients.numel() * self._gradients.element_size()

    def rehearsal_s(self, *, synchronised: bool) -> float:
        start = time.perf_counter()
        self._step(self.sync if synchronised else Sync.NONE)
        return time.perf_counter() - start

    def _step(self, sync: Sync) -> None:
        exchange = functools.partial(dist.all_reduce, self._gradients, group=self._group)
        early = exchange(async_op=True) if sync is Sync.OVERLAPPED else None
        time.sleep(self._seconds)
        if early is not None:
            early.wait()
        elif sync is Sync.AFTER:
            exchange()


def make_rank_step(
    compute: Compute,
    spec: ModelSpec | None,
    shape: tuple[int, int, int],
    classes: int,
    device: str,
    *,
    sync: Sync,
    group: dist.ProcessGroup | None = None,
) -> Step:
    """Return the step of a rank; every rank of the job calls it at the same time."""
    if compute.kind is ComputeKind.NONE:
        return NoStep()
    if compute.kind is ComputeKind.EMULATED:
        parameters = Network(spec, shape, classes).parameters() if spec else ()
        count = sum(parameter.numel() for parameter in parameters) or 1  # ranks also meet without a network
        return EmulatedRankStep(compute.milliseconds, count, sync, group)
    assert spec is not None, "no cell computes without a model"
    target = torch.device(device)
    kind = CudaRankStep if target.type == "cuda" else RankStep
    step = kind(spec, Network(spec, shape, classes), target)
    step.exchange_by(sync, group)
    return step
