"""Two ways to do the same work that take turns, for a number of rounds that depends on the clock alone.

A side counts with the median of its turns of a round, so a stall of the machine in one of them has no weight.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.ratios import ratio_words
from storebench.analysis.comparison import Estimate, Ratio, compare, estimate, rounds_needed
from storebench.units import Better, format_duration

TURNS = 7
FEWEST_ROUNDS = 8
WARM_UP_TURNS = 2

Turn = Callable[[int], float]
"""Does the work once and returns the seconds that count; the number tells apart the turns of one side."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The rounds of two sides."""

    before: list[float]
    after: list[float]
    elapsed_s: float

    @property
    def ratio(self) -> Ratio:
        """The second side's time over the first's."""
        return compare(self.before, self.after, better=Better.LOWER)

    def added_us(self, parts: int) -> Estimate:
        """Return the microseconds that the second side adds to each of `parts` parts of a turn."""
        pairs = zip(self.before, self.after, strict=True)
        return estimate([1e6 * (after - before) / parts for before, after in pairs])


def take_turns(before: Turn, after: Turn, seconds: float, *, turns: int = TURNS) -> Compared:
    """Let two sides take turns for some seconds, at least `FEWEST_ROUNDS` rounds."""
    number = 0
    for number in range(WARM_UP_TURNS):
        before(number)
        after(number)
    medians: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.freeze()  # what exists now is collected before no turn, which makes the collections below short
    started = time.perf_counter()
    try:
        while len(medians[0]) < FEWEST_ROUNDS or time.perf_counter() - started < seconds:
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(turns):
                number += 1
                for side in (0, 1) if number % 2 else (1, 0):
                    gc.collect()
                    taken[side].append((before, after)[side](number))
            for side in (0, 1):
                medians[side].append(statistics.median(taken[side]))
    finally:
        gc.unfreeze()
    return Compared(before=medians[0], after=medians[1], elapsed_s=time.perf_counter() - started)


def words(compared: Compared, sides: str, most: float) -> str:
    """Return the meaning of a ratio and its interval for a limit, such as 1.01 for 1%."""
    found = compared.ratio
    assert found.low is not None
    assert found.high is not None
    limit = f"{most - 1:.0%}"
    if found.low > most:
        meaning = f"MORE THAN {limit}"
    elif found.high < 1 / most:
        meaning = f"MORE THAN {limit} FASTER"
    elif found.high < most:
        meaning = f"under {limit}"
    else:
        rounds = rounds_needed(found.spread or 0.0, most - 1)
        needed_s = None if rounds is None else rounds * compared.elapsed_s / found.rounds
        more = "a quieter machine would" if needed_s is None else f"--seconds {needed_s:.0f} would"
        meaning = f"not told from {limit}: {more}"
    took = format_duration(compared.elapsed_s)
    return f"{sides} {ratio_words(found, 4)}, {found.rounds} rounds in {took}: {meaning}"
