"""What the benchmark of a single rank says of rates whose ratio is known."""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks import torchrun as torchrun_benchmark
from benchmarks.torchrun import answer_to, differs, lines, together, words
from storebench.stats import Comparison, compare_family

Pair = tuple[list[float], list[float]]


def pair(ratio: float, spread: float, *, rounds: int = 20, seed: int = 0) -> Pair:
    """Return rates of the plain process and of the rank, by round, in a machine that gets slower all the time."""
    draw = np.random.default_rng(seed)
    machine = np.linspace(1000.0, 500.0, rounds)
    plain, ranked = (machine * np.exp(draw.normal(0, spread, rounds)) for _ in range(2))
    return plain.tolist(), (ratio * ranked).tolist()


def compared(*pairs: Pair) -> Comparison:
    (found,) = compare_family([together(pairs)])
    return found


def test_the_cells_together_are_their_geometric_mean_by_round() -> None:
    plain, ranked = together([([1.0, 2.0], [4.0, 2.0]), ([9.0, 8.0], [1.0, 2.0])])
    assert plain == pytest.approx([3.0, 4.0])
    assert ranked == pytest.approx([2.0, 2.0])


def test_cells_together_tell_what_none_of_them_tells() -> None:
    pairs = [pair(1.0, 0.035, seed=seed) for seed in range(4)]
    alone = compare_family(pairs)
    assert all("not told from 3%: more rounds" in words(one) for one in alone)
    assert words(compared(*pairs)).endswith("20 rounds: equal within 3%")


@pytest.mark.parametrize(("ratio", "differing"), [(0.9, True), (0.99, False), (1.0, False), (1.1, True)])
def test_only_a_difference_beyond_doubt_fails(ratio: float, differing: bool) -> None:
    found = compared(*(pair(ratio, 0.02, seed=seed) for seed in range(4)))
    assert differs(found) is differing
    assert ("DIFFERENT BY MORE THAN 3%" in words(found)) is differing
    assert found.ratio is not None
    assert math.log(found.ratio / ratio) == pytest.approx(0, abs=0.02)


def test_a_single_round_has_no_interval_and_fails_nothing() -> None:
    found = compared(pair(0.5, 0.01, rounds=1))
    assert "no interval: more rounds" in words(found)
    assert not differs(found)


def test_only_training_cells_answer() -> None:
    training = {f"lenet, {workers} workers": pair(1.0, 0.01, seed=workers) for workers in (0, 1)}
    loading = {"loader only, 0 workers": pair(0.5, 0.01)}
    first, *cells, alone = lines(training, loading)
    assert first.startswith("training, one rank over plain process: ")
    assert first.endswith("20 rounds: equal within 3%")
    assert not differs(answer_to(training))
    assert [line.partition(":")[0].strip() for line in cells] == list(training)
    assert alone.startswith("  loader only, 0 workers, a single interval: 0.5")
    assert len(list(lines(training, {}))) == 3


def test_a_difference_of_the_training_cells_fails_whatever_loading_does() -> None:
    training = {str(seed): pair(0.9, 0.01, seed=seed) for seed in range(2)}
    assert differs(answer_to(training))


def test_each_round_runs_both_sides_of_every_cell_and_begins_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, bool]] = []

    def rate_of(job: str, *, torchrun: bool) -> float:
        runs.append((job, torchrun))
        return 10.0 * len(runs) + torchrun

    monkeypatch.setattr(torchrun_benchmark, "rate_of", rate_of)
    jobs: list[Any] = ["first", "second"]
    pairs = torchrun_benchmark.pairs_of(jobs, rounds=2)
    assert [len(rates) for pair in pairs for rates in pair] == [2] * 4, "the first round does not count"
    assert all(rate % 10 == 0 for plain, _ in pairs for rate in plain)
    assert all(rate % 10 == 1 for _, ranked in pairs for rate in ranked)
    begins = [torchrun for job, torchrun in runs[::2] if job == "first"]
    assert begins == [True, False, True]
