"""docs/statistics.md says what the simulations give: its tables are read there and simulated here."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from storebench.stats import ALPHA, Verdict, compare, compare_family, look_alpha, median_interval

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")

TRIALS, BOOTSTRAP_TRIALS, DRAWN = 2000, 1000, 600
SLACK = 3.0
"""Percentage points: some three standard errors, and the rounding of the page."""

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

DRAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(100, 5, shape),
    "heavy-tailed": lambda rng, shape: 100 * np.exp(0.05 * rng.standard_t(3, shape)),
    "skewed": lambda rng, shape: 100 * rng.lognormal(0, 0.5, shape),
    "stalling": lambda rng, shape: rng.normal(100, 5, shape) * np.where(rng.random(shape) < 0.1, 3, 1),
}


def rows(heading: str) -> list[tuple[int, str, int, int]]:
    """Return the rows of the table whose head has these words: replicates, data, and two shares in percent."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0]
    found = re.findall(r"^\| (\d+) \| ([a-z-]+) \| (\d+)% \| (\d+)% \|$", table, re.MULTILINE)
    assert found
    return [(int(count), data, int(first), int(second)) for count, data, first, second in found]


def sides(data: str, count: int, ratio: float, trials: int = TRIALS) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(count)
    return DRAWS[data](rng, (trials, count)), ratio * DRAWS[data](rng, (trials, count))


def called(data: str, count: int, ratio: float) -> float:
    pairs = zip(*sides(data, count, ratio), strict=True)
    verdicts = [compare(*pair).verdict for pair in pairs]
    return 100 * float(np.mean([verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts]))


def covered_by_bootstrap(data: str, count: int) -> float:
    drawn = np.random.default_rng(3).integers(0, count, (DRAWN, count))
    held = []
    for first, second in zip(*sides(data, count, 1.0, BOOTSTRAP_TRIALS), strict=True):
        ratios = np.median(second[drawn], axis=1) / np.median(first[drawn], axis=1)
        low, high = np.percentile(ratios, [2.5, 97.5])
        held.append(low <= 1 <= high)
    return 100 * float(np.mean(held))


@pytest.mark.parametrize(("count", "data", "student", "bootstrap"), rows("| paired t on logarithms |"))
def test_intervals_cover_as_often_as_the_page_says(
    count: int, data: str, student: int, bootstrap: int
) -> None:
    found = [compare(*pair) for pair in zip(*sides(data, count, 1.7), strict=True)]
    held = 100 * np.mean([(one.low or 0) <= 1.7 <= (one.high or 0) for one in found])
    assert held == pytest.approx(student, abs=SLACK)
    assert covered_by_bootstrap(data, count) == pytest.approx(bootstrap, abs=SLACK)


@pytest.mark.parametrize(("count", "data", "power", "alarms"), rows("| a true difference of 10% |"))
def test_differences_are_found_as_often_as_the_page_says(
    count: int, data: str, power: int, alarms: int
) -> None:
    assert called(data, count, 1.1) == pytest.approx(power, abs=SLACK)
    assert called(data, count, 1.0) == pytest.approx(alarms, abs=SLACK)


@pytest.mark.parametrize("data", DRAWS)
def test_the_interval_of_a_median_of_five(data: str) -> None:
    assert "in 95% to 97% of the simulations on normal, heavy-tailed, skewed and stalling data" in PAGE
    truth = float(np.median(DRAWS[data](np.random.default_rng(1), (1_000_000,))))
    values, _ = sides(data, 5, 1.0)
    intervals = [median_interval(row) for row in values]
    held = 100 * np.mean(
        [interval is not None and interval.low <= truth <= interval.high for interval in intervals]
    )
    assert 95 - 1.5 <= held <= 97 + 1.5


@pytest.mark.parametrize(("spread", "low", "high"), [(5, 0.35, 0.5), (10, 0.99, 1.0)])
def test_a_bare_threshold_raises_false_alarms(spread: float, low: float, high: float) -> None:
    assert "in 4 of 10 simulated suites\nof 40 cells" in PAGE
    rng = np.random.default_rng(9)
    first, second = (np.median(rng.normal(100, spread, (1000, 40, 5)), axis=2) for _ in range(2))
    suites = (np.abs(np.log(second / first)) > np.log(1.1)).any(axis=1)
    assert low <= suites.mean() <= high


def test_the_intervals_of_a_family_hold_all_at_once() -> None:
    held = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        pairs = [(rng.normal(100, 5, 5), 1.3 * rng.normal(100, 5, 5)) for _ in range(12)]
        held.append(
            all(
                (comparison.low or 0) <= 1.3 <= (comparison.high or 0) for comparison in compare_family(pairs)
            )
        )
    assert np.mean(held) >= 0.95 - 0.03


def test_further_looks_spend_what_the_page_says() -> None:
    assert "the first 4%, the second 0.5%, the third 0.25%" in PAGE
    assert [look_alpha(look) for look in (1, 2, 3)] == pytest.approx([0.04, 0.005, 0.0025])
    assert sum(look_alpha(look) for look in range(1, 50)) <= ALPHA
