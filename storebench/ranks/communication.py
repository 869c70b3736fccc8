"""The cost of communication between ranks: the link before their epochs, barriers and exchanges after them."""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from storebench.ranks.data_parallel import Exchanging, RankStep
from storebench.ranks.group import Group
from storebench.record.schema import LinkKind
from storebench.settings.words import Sync
from storebench.training.compute import Step

# Time for messages of the chosen size; `FEWEST_MESSAGES` are sent even if they take longer.
BUDGET_S = 0.2

FEWEST_MESSAGES = 5
MOST_MESSAGES = 30

_LEAST_BYTES, _MOST_BYTES = 1 << 16, 1 << 22
# Messages that take at least this long are long enough to measure the bandwidth.
_LONG_S = 0.01

# Messages of each size that are tried. The fastest counts: one that was held up says nothing about its size.
_SIZE_TRIALS = 3

_SMALL_BYTES = 8
_SMALL_TRIALS, _SMALL_IN_A_ROW = 5, 20


def measure_link(step: Step, group: Group) -> dict[str, Any]:
    """Return the fields of `JobFacts` about the link between the ranks; empty if the step exchanges nothing.

    All ranks call it together, before anything is timed. Each sends to the next one and receives from the previous one.
    """
    device = step.device if isinstance(step, RankStep) else torch.device("cpu")
    if not isinstance(step, Exchanging):
        return {}
    message_s = functools.partial(_message_s, group, device)
    message_s(_SMALL_BYTES)  # connects neighbours
    small = [message_s(_SMALL_BYTES, _SMALL_IN_A_ROW) for _ in range(_SMALL_TRIALS)]
    size, fastest_s = long_enough(message_s)
    # All ranks know the slowest one's time, so they agree on the number.
    count = min(MOST_MESSAGES, max(FEWEST_MESSAGES, int(BUDGET_S / fastest_s)))
    large = [message_s(size) for _ in range(count)]
    kind = LinkKind.LOOPBACK if device.type == "cpu" else LinkKind.DEVICES
    if len(set(group.exchange(group.membership.node))) > 1:
        kind = LinkKind.NETWORK
    bytes_per_s, latency_s = size / statistics.median(large), statistics.median(small)
    return {"link": kind, "link_bytes_per_s": bytes_per_s, "link_latency_s": latency_s}


def long_enough(message_s: Callable[[int], float]) -> tuple[int, float]:
    """Choose the size of the messages that measure the bandwidth."""
    size = _LEAST_BYTES
    while True:
        fastest_s = min(message_s(size) for _ in range(_SIZE_TRIALS))
        if fastest_s >= _LONG_S or size >= _MOST_BYTES:
            return size, fastest_s
        size *= 2


def _message_s(group: Group, device: torch.device, size: int, count: int = 1) -> float:
    """Return the slowest rank's seconds per message when every rank sends `count` in a row to the next one."""
    me = group.membership
    sent = torch.zeros(size, dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)
    group.barrier()
    start = time.perf_counter()
    for _ in range(count):
        to_next = dist.P2POp(dist.isend, sent, (me.rank + 1) % me.ranks)
        from_previous = dist.P2POp(dist.irecv, received, (me.rank - 1) % me.ranks)
        for work in dist.batch_isend_irecv([to_next, from_previous]):
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    own_s = (time.perf_counter() - start) / count
    return max(group.exchange(own_s))


BARRIERS = 50
# The first barriers connect the ranks.
_UNTIMED = 5

FEWEST_PAIRS = 5
MOST_PAIRS = 40
# Time for the pairs of one replicate; `FEWEST_PAIRS` are run even if they take longer.
PAIRS_BUDGET_S = 1.5


def communication(step: Step, group: Group, batch_size: int) -> dict[str, Any]:
    """Return the fields of `JobFacts` about the cost of communication on rank 0; every rank calls it at once."""
    barriers_s = []
    for _ in range(_UNTIMED + BARRIERS):
        start = time.perf_counter()
        group.barrier()
        barriers_s.append(time.perf_counter() - start)
    pairs = _pairs(step, group, batch_size) if isinstance(step, Exchanging) else []
    measured = group.gather(pairs)
    if measured is None:
        return {}
    slowest = [
        (max(times[0] for times in by_rank), max(times[1] for times in by_rank))
        for by_rank in zip(*measured, strict=True)
    ]
    facts: dict[str, Any] = {
        "barrier_s": statistics.median(barriers_s[_UNTIMED:]),
        "exposed_pairs": len(slowest),
    }
    if isinstance(step, Exchanging):
        facts["gradient_bytes"] = step.gradient_bytes
    if slowest:
        facts["exposed_communication_s"] = statistics.median(synced - without for synced, without in slowest)
        facts["step_without_sync_s"] = statistics.median(without for _, without in slowest)
    return facts


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
    wanted = min(MOST_PAIRS, max(FEWEST_PAIRS, int(PAIRS_BUDGET_S / first_s)))
    count = group.exchange(wanted)[0]
    return [_pair(step, group, exchange_first=number % 2 == 0) for number in range(count)]


def _pair(step: Exchanging, group: Group, *, exchange_first: bool) -> tuple[float, float]:
    seconds: dict[bool, float] = {}
    for synchronised in (exchange_first, not exchange_first):
        group.barrier()
        seconds[synchronised] = step.rehearsal_s(synchronised=synchronised)
    return seconds[True], seconds[False]
