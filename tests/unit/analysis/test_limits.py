"""The law of limits: each binds where it should, and the cache hits as often as a simulated one."""

import dataclasses
import random

import pytest

from storebench.analysis.limits import Demand, Node, limits
from storebench.analysis.plan.measured import missing_shares
from storebench.analysis.plan.prediction_errors import half_width
from storebench.settings.words import Limit

DEMAND = Demand(cpu_s=2e-3, producing_s=2e-3)
"""A sample that takes 2 ms to decode."""
READS = dataclasses.replace(DEMAND, wait_s=6e-3, device_bytes=1e5, requests=2.0)

CASES: list[tuple[Demand, Node, Limit, float]] = [
    (DEMAND, Node(cores=4), Limit.LOOP, 500),
    # The loop takes CPU time, too: 64 workers on 64 cores make less than 64 times what one does alone.
    (dataclasses.replace(DEMAND, cpu_s=2.5e-3), Node(cores=64, workers=64), Limit.CORES, 25_600),
    (DEMAND, Node(cores=4, samples_per_s=250), Limit.LOOP, 1 / 6e-3),
    (DEMAND, Node(cores=4, samples_per_s=50), Limit.COMPUTE, 1 / 22e-3),
    (DEMAND, Node(cores=4, workers=2), Limit.WORKERS, 1000),
    (DEMAND, Node(cores=4, workers=8), Limit.CORES, 2000),
    (DEMAND, Node(cores=4, workers=8, samples_per_s=100), Limit.COMPUTE, 100),
    (DEMAND, Node(cores=64, workers=4, accelerators=3, samples_per_s=100), Limit.COMPUTE, 300),
    (dataclasses.replace(DEMAND, handoff_s=5e-3), Node(cores=8, workers=4), Limit.HANDOFF, 200),
    (
        dataclasses.replace(DEMAND, handoff_s=1e-3),
        Node(cores=8, workers=4, samples_per_s=600),
        Limit.HANDOFF,
        375,
    ),
    (READS, Node(cores=4), Limit.LATENCY, 125),
    (READS, Node(cores=8, workers=4), Limit.LATENCY, 500),
    (READS, Node(cores=128, bytes_per_s=1e8, workers=64), Limit.STORAGE, 1000),
    (READS, Node(cores=128, requests_per_s=500, workers=64), Limit.REQUESTS, 250),
    (dataclasses.replace(DEMAND, scale=0.5), Node(cores=4, workers=2), Limit.WORKERS, 500),
]


@pytest.mark.parametrize(("demand", "node", "limit", "rate"), CASES)
def test_the_scarcest_resource_is_the_limit(demand: Demand, node: Node, limit: Limit, rate: float) -> None:
    found = limits(demand, node)
    assert next(iter(found)) is limit
    assert found[limit] == pytest.approx(rate)


def missed(resident: float, nodes: int, epochs: int, count: int = 3200) -> list[float]:
    """Return the share of reads that misses in each epoch on one of some nodes that divide a new permutation."""
    shuffling, room = random.Random(7), round(resident * count)
    held, place = list[int](), dict[int, int]()
    shares = []
    for _ in range(epochs):
        own = shuffling.sample(range(count), count)[: count // nodes]
        misses = 0
        for sample in own:
            if sample in place:
                continue
            misses += 1
            if len(held) < room:
                place[sample] = len(held)
                held.append(sample)
            else:
                slot = shuffling.randrange(room)
                del place[held[slot]]
                held[slot], place[sample] = sample, slot
        shares.append(misses / len(own))
    return shares


@pytest.mark.parametrize(
    ("resident", "nodes", "epochs"),
    [
        (1.0, 1, 5),
        (0.5, 1, 8),
        (1.0, 16, 90),
        (0.5, 16, 60),
        (0.4, 64, 200),
    ],
)
def test_nodes_that_divide_each_epoch_miss_as_often_as_simulated_ones(
    resident: float, nodes: int, epochs: int
) -> None:
    parts = list(missing_shares(resident, nodes, epochs))
    assert sum(count for count, _ in parts) == epochs
    told = [share for count, share in parts for _ in range(count)]
    truth = missed(resident, nodes, epochs)
    assert sum(told) == pytest.approx(sum(truth), rel=0.03)
    for start in range(0, epochs, 10):
        few = slice(start, start + 10)
        assert sum(told[few]) == pytest.approx(sum(truth[few]), abs=0.08 * len(told[few]))
    [(_, steady)] = missing_shares(resident, nodes, None)
    assert told[-1] >= steady - 1e-12


def test_an_interval_needs_nine_errors() -> None:
    assert half_width([0.1] * 8) is None
    assert half_width([0.1 * n for n in range(1, 10)]) == pytest.approx(0.9)
    assert half_width([0.1 * n for n in range(1, 20)]) == pytest.approx(1.8)
