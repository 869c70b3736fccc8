"""The bandwidth and the latency of the link between the ranks of a job, measured before its epochs."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from storebench.ranks.communication import Link
from storebench.ranks.data_parallel import Exchanging, RankStep
from storebench.ranks.group import Group
from storebench.results import LinkKind
from storebench.training.steps import Step

BUDGET_S = 0.2
"""Time for messages of the chosen size; `FEWEST_MESSAGES` are sent even if they take longer."""

FEWEST_MESSAGES = 5
MOST_MESSAGES = 30

_LEAST_BYTES, _MOST_BYTES = 1 << 16, 1 << 22
_LONG_S = 0.01
"""Messages that take at least this long are long enough to measure the bandwidth."""

_SIZE_TRIALS = 3
"""Messages of each size that are tried. The fastest counts: one that was held up says nothing about its size."""

_SMALL_BYTES = 8
_SMALL_TRIALS, _SMALL_IN_A_ROW = 5, 20


def measure_link(step: Step, group: Group) -> Link | None:
    """Measure the link between the ranks. All ranks call it together, before anything is timed."""
    if not isinstance(step, Exchanging):
        return None
    device = _device(step)
    ring = _Ring(group, device)
    ring.message_s(_SMALL_BYTES)  # connects neighbours
    small = [ring.message_s(_SMALL_BYTES, _SMALL_IN_A_ROW) for _ in range(_SMALL_TRIALS)]
    size, message_s = long_enough(ring.message_s)
    # All ranks know the slowest one's time, so they agree on the number.
    count = min(MOST_MESSAGES, max(FEWEST_MESSAGES, int(BUDGET_S / message_s)))
    large = [ring.message_s(size) for _ in range(count)]
    return Link(
        kind=_kind(group, device),
        bytes_per_s=size / statistics.median(large),
        latency_s=statistics.median(small),
    )


def long_enough(message_s: Callable[[int], float]) -> tuple[int, float]:
    """Choose the size of the messages that measure the bandwidth."""
    size = _LEAST_BYTES
    while True:
        fastest_s = min(message_s(size) for _ in range(_SIZE_TRIALS))
        if fastest_s >= _LONG_S or size >= _MOST_BYTES:
            return size, fastest_s
        size *= 2


class _Ring:
    """The ranks in a ring."""

    def __init__(self, group: Group, device: torch.device) -> None:
        me = group.membership
        self._group = group
        self._device = device
        self._next = (me.rank + 1) % me.ranks
        self._previous = (me.rank - 1) % me.ranks

    def message_s(self, size: int, count: int = 1) -> float:
        """Return the seconds per message when every rank sends `count` in a row to the next one; the slowest rank counts."""
        sent = torch.zeros(size, dtype=torch.uint8, device=self._device)
        received = torch.empty_like(sent)
        self._group.barrier()
        start = time.perf_counter()
        for _ in range(count):
            self._shift(sent, received)
        own_s = (time.perf_counter() - start) / count
        return max(self._group.exchange(own_s))

    def _shift(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        messages = [
            dist.P2POp(dist.isend, sent, self._next),
            dist.P2POp(dist.irecv, received, self._previous),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _device(step: Exchanging) -> torch.device:
    """Return the device of a step's gradients."""
    return step.device if isinstance(step, RankStep) else torch.device("cpu")


def _kind(group: Group, device: torch.device) -> LinkKind:
    nodes = len(set(group.exchange(group.membership.node)))
    if nodes > 1:
        return LinkKind.NETWORK
    return LinkKind.LOOPBACK if device.type == "cpu" else LinkKind.DEVICES
