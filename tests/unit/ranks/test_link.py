"""The link between ranks: bandwidth and latency of real messages, and the time of an ideal ring."""

import itertools
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from storebench.ranks.communication import long_enough, measure_link
from storebench.ranks.data_parallel import make_rank_step
from storebench.ranks.group import Group
from storebench.record.merging import ideal_ring_s
from storebench.record.schema import LinkKind
from storebench.settings.words import Compute, Sync
from tests.support.rank_processes import in_ranks

SIZE = 1 << 22
APART = 50.0
"""Other work on the machine may slow down either measurement."""


def measured(group: Group) -> dict[str, Any]:
    step = make_rank_step(Compute("emulated:1"), None, (28, 28, 1), 10, "cpu", sync=Sync.AFTER)
    return measure_link(step, group)


def by_hand(group: Group) -> tuple[dict[str, Any], float]:
    """Return the measured link, and the bytes per second of messages that this test sends to the next rank."""
    link, me = measured(group), group.membership
    content, received = torch.zeros(SIZE, dtype=torch.uint8), torch.empty(SIZE, dtype=torch.uint8)
    seconds = []
    for _ in range(9):
        dist.barrier()
        start = time.perf_counter()
        sending = dist.isend(content, (me.rank + 1) % me.ranks)
        dist.recv(received, (me.rank - 1) % me.ranks)
        assert sending is not None
        sending.wait()
        seconds.append(time.perf_counter() - start)
    return link, SIZE / sorted(seconds)[4]


def test_the_time_of_an_ideal_ring_all_reduce() -> None:
    # Three further ranks, two rounds: six messages of 2 MB at 1 GB/s and a millisecond each.
    assert ideal_ring_s(8_000_000, 4, 1e9, 1e-3) == pytest.approx(0.018)
    assert ideal_ring_s(8_000_000, 1, 1e9, 1e-3) == 0


def test_the_bandwidth_is_that_of_messages_between_the_ranks() -> None:
    answers = in_ranks(2, by_hand)
    links = [link for link, _ in answers]
    assert links[0] == links[1]
    link = links[0]
    assert link["link"] is LinkKind.LOOPBACK
    slowest = min(rate for _, rate in answers)
    assert slowest / APART < link["link_bytes_per_s"] < slowest * APART
    assert link["link_latency_s"] > 1e-6


@pytest.mark.parametrize(("bytes_per_s", "size"), [(1e9, 1 << 22), (1e8, 1 << 20), (1e6, 1 << 16)])
def test_messages_that_were_held_up_do_not_choose_the_size(bytes_per_s: float, size: int) -> None:
    held_up_s = itertools.cycle([0.02, 0.0, 0.03])
    chosen, seconds = long_enough(lambda sent: sent / bytes_per_s + next(held_up_s))
    assert (chosen, seconds) == (size, pytest.approx(size / bytes_per_s))


def test_a_job_that_exchanges_nothing_has_no_link() -> None:
    def work(group: Group) -> dict[str, Any]:
        step = make_rank_step(Compute("none"), None, (28, 28, 1), 10, "cpu", sync=Sync.OVERLAPPED)
        return measure_link(step, group)

    assert in_ranks(2, work) == [{}, {}]
