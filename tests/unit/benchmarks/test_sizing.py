"""Sizing: the formulas agree with simulations."""

import itertools

import pytest

from benchmarks import sizing
from benchmarks.sizing import accelerators_for, exchange_s, servers_for, speed_up


def slots(workers: int, servers: int, pieces: int) -> int:
    """Simulate one direction: each worker sends `pieces` to each server, and each node one piece at a time."""
    left = dict.fromkeys(itertools.product(range(workers), range(servers)), pieces)
    taken = 0
    while any(left.values()):
        width = max(workers, servers)
        for worker in range(workers):
            server = (worker + taken) % width
            if left.get((worker, server), 0):
                left[worker, server] -= 1
        taken += 1
    return taken


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 2), (2, 3), (5, 4)])
def test_an_exchange_takes_as_long_as_in_a_simulation(workers: int, servers: int) -> None:
    pieces, piece_bytes, bytes_per_s = 12, 100, 1e6
    size = servers * pieces * piece_bytes
    simulated_s = 2 * slots(workers, servers, pieces) * piece_bytes / bytes_per_s
    assert exchange_s(size, workers, servers, bytes_per_s) == pytest.approx(simulated_s)


@pytest.mark.parametrize("compute_s", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("workers", [1, 64])
def test_the_fewest_servers_that_hide_the_exchange(workers: int, compute_s: float) -> None:
    size, rate = 1e6, 20e6
    hides = [
        number for number in range(1, 2 * workers) if exchange_s(size, workers, number, rate) <= compute_s
    ]
    assert servers_for(size, workers, rate, compute_s) == (hides[0] if hides else None)


@pytest.mark.parametrize("ratio", [0.1, 0.9])
@pytest.mark.parametrize("wish", [1.0, 1.5, 11.0, 20.0])
def test_the_fewest_accelerators_that_reach_a_speed_up(wish: float, ratio: float) -> None:
    def simulated(accelerators: int) -> float:
        """Divide the compute of 1,000 steps; each step has the whole overhead."""
        times = [sum(part / each + ratio for part in [1.0] * 1000) for each in (1, accelerators)]
        return times[0] / times[1]

    assert speed_up(7, ratio) == pytest.approx(simulated(7))
    reached = [number for number in range(1, 2000) if speed_up(number, ratio) >= wish * (1 - 1e-9)]
    assert accelerators_for(wish, ratio) == (reached[0] if reached else None)


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (
            "--compute-ms 250 --workers 64 --speed-up 2",
            ("A speed-up of 2: 6 accelerators.", "64 workers: 42 parameter servers to hide the exchange."),
        ),
        (
            "--compute-ms 100 --overhead-ms 50 --speed-up 3",
            (
                "No number of accelerators is 3 times as fast as one: the limit is 3 times.",
                "No number of servers hides the exchange: a worker's own link takes 163.2 ms.",
            ),
        ),
    ],
)
def test_answers_for_the_figures_of_a_cluster(
    words: str, answers: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--parameters-mb", "102", "--link-mb-per-s", "1250"]
    sizing.main([*given, *words.split()])
    assert tuple(capsys.readouterr().out.splitlines()[-2:]) == answers
