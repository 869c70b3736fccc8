"""The cost of communication, measured after the last epoch: empty barriers, and steps with and without an exchange."""

import statistics
import time

import torch

from storebench.ranks.communication import Communication
from storebench.ranks.data_parallel import Exchanging, RankStep
from storebench.ranks.group import Group
from storebench.settings.words import Sync
from storebench.training.steps import Step

BARRIERS = 50
_UNTIMED = 5
"""The first barriers connect the ranks."""

FEWEST_PAIRS = 5
MOST_PAIRS = 40
BUDGET_S = 1.5
"""Time for the pairs of one replicate; `FEWEST_PAIRS` are run even if they take longer."""


def communication(step: Step, group: Group, batch_size: int) -> Communication | None:
    """Measure the cost of communication; every rank calls it at the same time."""
    barrier_s = _barrier_s(group)
    pairs = _pairs(step, group, batch_size) if isinstance(step, Exchanging) else []
    measured = group.gather(pairs)
    if measured is None:
        return None
    slowest = [
        (max(times[0] for times in by_rank), max(times[1] for times in by_rank))
        for by_rank in zip(*measured, strict=True)
    ]
    return Communication(
        barrier_s=barrier_s,
        gradient_bytes=step.gradient_bytes if isinstance(step, Exchanging) else None,
        exposed_s=statistics.median(synced - without for synced, without in slowest) if slowest else None,
        step_s=statistics.median(without for _, without in slowest) if slowest else None,
        pairs=len(slowest),
    )


def _barrier_s(group: Group) -> float:
    seconds = []
    for _ in range(_UNTIMED + BARRIERS):
        start = time.perf_counter()
        group.barrier()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[_UNTIMED:])


def _pairs(step: Exchanging, group: Group, batch_size: int) -> list[tuple[float, float]]:
    """Return the durations of a step with and without exchange, of this rank, pair by pair."""
    if step.sync is Sync.NONE:
        return []
    if not isinstance(step, RankStep):
        return _timed_pairs(step, group)
    step.keep_last_batch(batch_size)
    buffers = [buffer.clone() for buffer in step.network.buffers()]
    devices = [step.device] if step.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        pairs = _timed_pairs(step, group)
    for buffer, kept in zip(step.network.buffers(), buffers, strict=True):
        buffer.copy_(kept)
    return pairs


def _timed_pairs(step: Exchanging, group: Group) -> list[tuple[float, float]]:
    first_s = sum(_pair(step, group, exchange_first=True))
    wanted = min(MOST_PAIRS, max(FEWEST_PAIRS, int(BUDGET_S / first_s)))
    count = group.broadcast(wanted)
    return [_pair(step, group, exchange_first=number % 2 == 0) for number in range(count)]


def _pair(step: Exchanging, group: Group, *, exchange_first: bool) -> tuple[float, float]:
    seconds: dict[bool, float] = {}
    for synchronised in (exchange_first, not exchange_first):
        group.barrier()
        seconds[synchronised] = step.rehearsal_s(synchronised=synchronised)
    return seconds[True], seconds[False]
