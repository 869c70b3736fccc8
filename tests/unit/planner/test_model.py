"""The formulas of the planner: each limit binds where it should, and the cache hits as often as a simulated one."""

import dataclasses
import math
import random
from collections import OrderedDict

import pytest

from storebench.planner.errors import half_width
from storebench.planner.model import Demand, Limit, Loop, Machine, delivered, hit_rate, limits, recency_of

DEMAND = Demand(cpu_s=2e-3, producing_s=2e-3)
"""A sample that takes 2 ms to decode."""
READS = dataclasses.replace(DEMAND, wait_s=6e-3, device_bytes=1e5, requests=2.0)

CASES: list[tuple[Demand, Loop, Machine, Limit, float]] = [
    (DEMAND, Loop(), Machine(cores=4), Limit.LOOP, 500),
    (DEMAND, Loop(samples_per_s=250), Machine(cores=4), Limit.ACCELERATORS, 1 / 6e-3),
    (DEMAND, Loop(workers=2), Machine(cores=4), Limit.WORKERS, 1000),
    (DEMAND, Loop(workers=8), Machine(cores=4), Limit.CORES, 2000),
    (DEMAND, Loop(workers=8, accelerators=2), Machine(cores=15), Limit.CORES, 7500),
    (DEMAND, Loop(workers=8, samples_per_s=100), Machine(cores=4), Limit.ACCELERATORS, 100),
    (DEMAND, Loop(workers=4, accelerators=3, samples_per_s=100), Machine(cores=64), Limit.ACCELERATORS, 300),
    (dataclasses.replace(DEMAND, handoff_s=5e-3), Loop(workers=4), Machine(cores=8), Limit.HANDOFF, 200),
    (READS, Loop(), Machine(cores=4), Limit.LATENCY, 125),
    (READS, Loop(workers=4), Machine(cores=8), Limit.LATENCY, 500),
    (READS, Loop(workers=64), Machine(cores=128, bytes_per_s=1e8), Limit.BANDWIDTH, 1000),
    (READS, Loop(workers=64), Machine(cores=128, requests_per_s=500), Limit.REQUESTS, 250),
    (dataclasses.replace(DEMAND, scale=0.5), Loop(workers=2), Machine(cores=4), Limit.WORKERS, 500),
]


@pytest.mark.parametrize(("demand", "loop", "machine", "limit", "rate"), CASES)
def test_the_scarcest_resource_is_the_limit(
    demand: Demand, loop: Loop, machine: Machine, limit: Limit, rate: float
) -> None:
    found = limits(demand, loop, machine)
    assert next(iter(found)) is limit
    assert found[limit] == pytest.approx(rate)


def test_two_near_limits_deliver_less_than_either_and_far_ones_the_lower() -> None:
    near = {Limit.ACCELERATORS: 1000.0, Limit.BANDWIDTH: 1000.0}
    assert delivered(near, 2.0) == pytest.approx(1000 / math.sqrt(2))
    assert delivered(near | {Limit.BANDWIDTH: 1e6}, 2.0) == pytest.approx(1000, rel=1e-3)
    assert delivered({Limit.WORKERS: 1000.0, Limit.CORES: 1000.0}, 2.0) == 1000
    assert delivered({Limit.BANDWIDTH: math.inf}, 2.0) == math.inf


def simulated(resident: float, *, recent: bool, count: int = 400, epochs: int = 12) -> float:
    """Return the hit rate of a cache over shuffled epochs, without the first two."""
    shuffling = random.Random(7)
    cache: OrderedDict[int, None] = OrderedDict()
    slots, hits = round(resident * count), 0
    for epoch in range(epochs):
        for sample in shuffling.sample(range(count), count):
            if sample in cache:
                hits += epoch >= 2
                cache.move_to_end(sample)
                continue
            if len(cache) >= slots:
                victim = next(iter(cache)) if recent else shuffling.choice(list(cache))
                del cache[victim]
            cache[sample] = None
    return hits / (count * (epochs - 2))


@pytest.mark.parametrize("resident", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("recency", [0.0, 1.0])
def test_a_simulated_cache_hits_as_often_as_the_formula_says(resident: float, recency: float) -> None:
    hits = hit_rate(resident, recency)
    assert hits == pytest.approx(simulated(resident, recent=recency == 1), abs=0.02)
    assert recency_of(resident, hits) == pytest.approx(recency, abs=1e-6)


@pytest.mark.parametrize(("resident", "hits"), [(0.0, 0.0), (-1.0, 0.0), (1.0, 1.0), (3.0, 1.0)])
def test_nothing_or_all_of_a_store_is_resident(resident: float, hits: float) -> None:
    assert hit_rate(resident, 0.5) == hits


def test_an_interval_needs_nine_errors() -> None:
    assert half_width([0.1] * 8) is None
    assert half_width([0.1 * n for n in range(1, 10)]) == pytest.approx(0.9)
    assert half_width([0.1 * n for n in range(1, 20)]) == pytest.approx(1.8)
