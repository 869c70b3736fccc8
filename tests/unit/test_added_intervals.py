"""Rounds that are added until ratios are precise: how often intervals hold, and how many pages claim anything false.

docs/statistics.md holds the tables of `make power-tables`; the same rules are simulated here, with fewer draws.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy

from benchmarks.adaptive_rounds import budgeted_ratios, grown_page, outcomes, sequential_ratios
from benchmarks.drawn_pages import BACKENDS, Truth
from benchmarks.power_tables import BUDGET_ROUNDS, BUDGET_S, ONE_RATIO_ALPHA, page_alpha
from storebench.rounds import StoppingRule
from storebench.stats import ADDED_ROUNDS_FRAC, ALPHA, look_alpha
from storebench.student_t import t_two_sided

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
EQUAL = dict.fromkeys(BACKENDS, 1000.0)
TRIALS = 15_000
FEWEST_COVERED = 0.93
MISSES_MOST = 1.3
"""Misses over the permitted error: 5% of pages in all, where the first look at a page of fixed rounds spends 4%."""


def rule_of(name: str) -> StoppingRule:
    """Return the rule that a table calls "10%, 5 to 12"."""
    found = re.fullmatch(r"(\d+)%, (\d+) to (\d+)", name)
    assert found is not None
    until, least, most = map(int, found.groups())
    return StoppingRule(until=until / 100, min_replicates=least, max_replicates=most)


def rows() -> list[tuple[float, str, int, float, float, float]]:
    """Return each row of the two tables: error, rule, spread in percent, rounds, coverage in percent, misses."""
    found = []
    for words, error in (
        ("On a page of one ratio:", ONE_RATIO_ALPHA),
        ("On a page of 8 tables:", page_alpha()),
    ):
        table = PAGE[PAGE.index(words) :].split("\n\n")[1]
        cells = re.findall(
            r"^\| (\d[^|]+) \| (\d+)% \| ([\d.]+) \| \d+% \| ([\d.]+)% \| ([\d.]+) \|$", table, re.MULTILINE
        )
        assert len(cells) == 9
        found += [
            (error, name, int(spread), float(rounds), float(held), float(missed))
            for name, spread, rounds, held, missed in cells
        ]
    return found


@pytest.mark.parametrize(("error", "name", "spread", "rounds", "coverage", "misses"), rows())
def test_intervals_hold_as_often_as_the_page_says(
    error: float, name: str, spread: int, rounds: float, coverage: float, misses: float
) -> None:
    found = sequential_ratios(rule_of(name), spread / 100, ADDED_ROUNDS_FRAC * error, TRIALS, seed=5)
    held = 1 - found.single_missed_frac
    assert found.rounds == pytest.approx(rounds, abs=0.1)
    assert 100 * held == pytest.approx(coverage, abs=0.6)
    assert held >= FEWEST_COVERED - 0.006, "three standard errors of this simulation"
    # The misses of a page of 8 tables are one in thousands, too few for a bound from below.
    expected = TRIALS * error * misses
    assert TRIALS * found.missed_frac <= scipy.stats.poisson.ppf(0.9999, expected + 0.05 * TRIALS * error)
    assert misses <= MISSES_MOST


def test_a_budget_leaves_the_intervals_as_good_as_they_were() -> None:
    table = PAGE[PAGE.index("## Rounds cut short by a budget") :].split("\n\n")[2]
    found = re.findall(r"^\| (\d+)% \| ([\d.]+) \| ([\d.]+)% \| ([\d.]+)% \|$", table, re.MULTILINE)
    assert len(found) == 5
    for spread, rounds, ratios, rates in found:
        drawn = budgeted_ratios(int(spread) / 100, BUDGET_S, BUDGET_ROUNDS, 2_000, seed=4)
        assert drawn.rounds == pytest.approx(float(rounds), abs=0.15)
        assert 100 * (1 - drawn.ratios_missed_frac) == pytest.approx(float(ratios), abs=2)
        assert 100 * (1 - drawn.rates_missed_frac) == pytest.approx(float(rates), abs=2)
        assert float(ratios) >= 100 * FEWEST_COVERED


def test_stopping_at_significance_would_exceed_the_error() -> None:
    logs = 0.05 * np.random.default_rng(3).standard_normal((2000, 12))
    alarmed = [
        any(
            t_two_sided(float(row[:n].mean() / (row[:n].std(ddof=1) / np.sqrt(n))), n - 1) < ALPHA
            for n in range(5, 13)
        )
        for row in logs
    ]
    assert np.mean(alarmed) > 2 * ALPHA


def test_all_looks_of_the_rule_spend_less_than_one_look_without_it() -> None:
    for looks in (1, 2, 3):
        assert look_alpha(looks, by_precision=True) == pytest.approx(ADDED_ROUNDS_FRAC * look_alpha(looks))


def test_noisy_cells_get_more_rounds_than_steady_ones() -> None:
    rule = StoppingRule(until=0.1, min_replicates=5, max_replicates=12)
    counts = {}
    for spread in (0.003, 0.02, 0.3):
        truth = Truth(spread=spread, rounds=12, samples_per_s=EQUAL)
        page = grown_page(truth, rule, np.random.default_rng(2), settings=2)
        counts[spread] = [len(cell.rows) for cell in page if not cell.is_null]
    assert set(counts[0.003]) == {5}
    assert 5 < np.mean(counts[0.02]) < 12
    assert set(counts[0.3]) == {12}


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, pytest.param(1.1, marks=pytest.mark.full)])
def test_at_most_5_of_100_pages_with_added_rounds_claim_falsely(
    ratio: float, request: pytest.FixtureRequest
) -> None:
    rule = StoppingRule(until=0.1, min_replicates=5, max_replicates=10)
    pages = 40 if request.config.getoption("--full") else 20
    truths = (
        Truth(spread=(0.01, 0.03, 0.08)[number % 3], rounds=10, samples_per_s=EQUAL | {"lmdb": 1000 * ratio})
        for number in range(pages)
    )
    found = list(outcomes(truths, rule, seed=4, settings=2))
    most = scipy.stats.binom.ppf(0.999, pages, 0.05)
    assert sum(one.false > 0 for one in found) <= most
    assert sum(not one.held for one in found) <= most
    rates = [held for one in found for held in one.rates]
    assert np.mean(rates) >= FEWEST_COVERED
