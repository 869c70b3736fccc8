"""Sizing: the formulas agree with simulations."""

import itertools

import pytest

from benchmarks import sizing
from benchmarks.sizing import exchange_s


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
