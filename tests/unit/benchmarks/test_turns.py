"""Two sides that take turns: what they cost is told, in spite of stalls, and nothing is made up."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.turns import FEWEST_ROUNDS, TURNS, WARM_UP_TURNS, Compared, take_turns, words


def side(rng: np.random.Generator, factor: float, log: list[str], name: str) -> Callable[[int], float]:
    """Return a side that takes 100 ms and varies by 1%; one turn in twenty stalls and takes five times as long."""

    def turn(_number: int) -> float:
        log.append(name)
        stall = 5.0 if rng.random() < 0.05 else 1.0
        return float(0.1 * factor * np.exp(rng.normal(0, 0.01)) * stall)

    return turn


def compared(factor: float, seed: int, log: list[str] | None = None) -> Compared:
    rng, log = np.random.default_rng(seed), [] if log is None else log
    return take_turns(side(rng, 1.0, log, "a"), side(rng, factor, log, "b"), 0.0)


def test_sides_take_turns_at_running_first() -> None:
    log: list[str] = []
    found = compared(1.0, 0, log)
    assert len(found.before) == len(found.after) == FEWEST_ROUNDS
    timed = "".join(log[2 * WARM_UP_TURNS :])
    pairs = [timed[at : at + 2] for at in range(0, len(timed), 2)]
    assert len(pairs) == FEWEST_ROUNDS * TURNS
    assert set(itertools.pairwise(pairs)) == {("ab", "ba"), ("ba", "ab")}


@pytest.mark.parametrize(
    ("factor", "said", "never"), [(1.03, ": MORE THAN 1%", "under"), (1.0, ": under 1%", "MORE")]
)
def test_stalls_hide_no_cost_and_make_none_up(factor: float, said: str, never: str) -> None:
    lines = [words(compared(factor, seed), "b over a", 1.01) for seed in range(20)]
    assert sum(line.endswith(said) for line in lines) >= 15
    assert not any(never in line for line in lines)


@pytest.mark.parametrize(
    ("after", "meaning"),
    [
        ([1.005, 1.006, 1.004], "under 1%"),
        ([0.9, 0.91, 0.9], "MORE THAN 1% FASTER"),
        ([1.0, 1.02, 1.01, 0.99, 1.01], "not told from 1%: --seconds "),
        ([0.5, 2.0, 1.0], "not told from 1%: a quieter machine would"),
    ],
)
def test_the_interval_decides(after: list[float], meaning: str) -> None:
    line = words(Compared(before=[1.0] * len(after), after=after, elapsed_s=3.0), "b over a", 1.01)
    assert line.partition("in 3 s: ")[2].startswith(meaning)


def test_what_is_added_is_told_in_microseconds_per_part() -> None:
    added = Compared(before=[0.1] * 5, after=[0.1001] * 5, elapsed_s=1.0).added_us(10)
    assert added.mid == pytest.approx(10)
    assert added.low == pytest.approx(10)
