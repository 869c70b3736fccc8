"""Two ways to do the same work that take turns, each for a moment: the statistics of `benchmarks.overhead`.

A round is `TURNS` turns of each side, in the order A B, B A, and so on. A side counts with the median of its turns, so a
stall of the machine in one of them has no weight. The rounds are judged by the package's own paired comparison. They go
on until the time is over, so their number depends on the clock and not on the results.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from storebench import stats
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
    def ratio(self) -> stats.Comparison:
        """The second side's time over the first's."""
        return stats.compare(self.before, self.after, better=Better.LOWER)

    def added_us(self, parts: int) -> tuple[float, stats.Interval]:
        """Return the microseconds that the second side adds to each of `parts` parts of a turn, with their interval."""
        added = [
            1e6 * (after - before) / parts for before, after in zip(self.before, self.after, strict=True)
        ]
        interval = stats.mean_interval(added)
        assert interval is not None
        return statistics.fmean(added), interval

    def seconds_to_tell(self, frac: float) -> float | None:
        """Return the seconds of measuring that would detect a difference of `frac`; None if no practicable time would."""
        spread = stats.spread([after / before for before, after in zip(self.before, self.after, strict=True)])
        rounds = None if spread is None else stats.rounds_needed(spread, frac)
        return None if rounds is None else rounds * self.elapsed_s / len(self.before)


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
    comparison = compared.ratio
    assert comparison.ratio is not None
    assert comparison.low is not None
    assert comparison.high is not None
    limit = f"{most - 1:.0%}"
    if comparison.low > most:
        meaning = f"MORE THAN {limit}"
    elif comparison.high < 1 / most:
        meaning = f"MORE THAN {limit} FASTER"
    elif comparison.high < most:
        meaning = f"under {limit}"
    else:
        needed = compared.seconds_to_tell(most - 1)
        more = "a quieter machine would" if needed is None else f"--seconds {needed:.0f} would"
        meaning = f"not told from {limit}: {more}"
    figures = f"{comparison.ratio:.4f} [{comparison.low:.4f}, {comparison.high:.4f}]"
    return (
        f"{sides} {figures}, {comparison.rounds} rounds in {format_duration(compared.elapsed_s)}: {meaning}"
    )
