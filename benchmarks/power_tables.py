"""Print the tables of power and of false claims for docs/statistics.md, by simulation.

``python -m benchmarks.power_tables [--pages N] [--trials N]``
"""

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.adaptive_rounds import budgeted_ratios, outcomes, sequential_ratios
from benchmarks.drawn_pages import BACKENDS, Truth, drawn_page, false_claims
from storebench.report.decisions import LEAD_FRAC
from storebench.report.facts import derive
from storebench.report.texts.advice import recommend
from storebench.rounds import StoppingRule
from storebench.stats import ADDED_ROUNDS_FRAC, compare_family, look_alpha, rounds_needed

SPREADS = (0.02, 0.05, 0.10, 0.20, 0.30)
RATIOS = (1.1, 1.25, 1.5, 2.0)
ROUNDS = (3, 5, 8, 12, 20)
EQUAL = dict.fromkeys(BACKENDS, 1000.0)
RULES = (
    StoppingRule(until=0.1, min_replicates=5, max_replicates=12),
    StoppingRule(until=0.1, min_replicates=5, max_replicates=12, budget_s=350),
    StoppingRule(until=0.25, min_replicates=5, max_replicates=20),
)
"""Rules whose pages are simulated; the 42 cells of a page take a second each, so the budget allows 8 or 9 rounds of all."""

ONE_RATIO_ALPHA = look_alpha(1) * LEAD_FRAC / 3
"""The error of one comparison on the smallest page: one ratio, and whether the loop is fed with each of two stores."""

BUDGET_S, BUDGET_ROUNDS = 20.0, 16
"""Budget and fixed number of rounds of the pairs that a budget ends; a round takes 2 s, so there is time for about 10."""

ADDED_SPREADS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12)


def page_alpha() -> float:
    """Return the error that one comparison may spend in the leading settings of a page of 8 tables."""
    truth = Truth(spread=0.1, rounds=3, samples_per_s=EQUAL)
    return derive(drawn_page(truth, np.random.default_rng(0))).decisions.lead_alpha


def told(spread: float, rounds: int, ratio: float, alpha: float, trials: int) -> float:
    """Return the share of simulated comparisons in which a true ratio is told from 1."""
    rng = np.random.default_rng(round(1000 * spread) + rounds)
    logs = spread * rng.standard_normal((trials, 2, rounds))
    pairs = [(np.exp(one), ratio * np.exp(other)) for one, other in logs]
    found = [compare_family([pair], alpha=alpha)[0].verdict for pair in pairs]
    return sum(one == "faster" for one in found) / trials


def power_rows(alpha: float, trials: int) -> list[list[str]]:
    """Return one row per spread and number of rounds, one column per true ratio."""
    return [
        [f"{spread:.0%}", str(rounds)]
        + [f"{told(spread, rounds, ratio, alpha, trials):.0%}" for ratio in RATIOS]
        for spread in SPREADS
        for rounds in ROUNDS
    ]


def page_rows(pages: int) -> list[list[str]]:
    """Return pages of 8 tables with a false claim, and how often the truly fastest store is advised."""
    rows = []
    for ratio in (1.0, 1.25, 1.5, 2.0):
        for rounds in (3, 5, 10):
            rng = np.random.default_rng(rounds)
            false = named = 0
            for number in range(pages):
                rates = EQUAL | {"lmdb": 1000 * ratio}
                truth = Truth(spread=(0.05, 0.15, 0.3)[number % 3], rounds=rounds, samples_per_s=rates)
                cells = drawn_page(truth, rng)
                false += bool(false_claims(cells, truth))
                parts = derive(cells).datasets.values()
                part = next(part for part in parts if part.cells[0].cell.data.name == "imagenet")
                advice = recommend(part)
                named += any(one.rule.startswith("R2") for one in advice)
            rows.append([f"{ratio:g}", str(rounds), f"{false} of {pages}", f"{named} of {pages}"])
    return rows


def added_ratio_rows(alpha: float, trials: int) -> list[list[str]]:
    """Return one row per rule and spread: rounds, narrow intervals, coverage, and how often the error is exceeded."""
    rows = []
    for rule in RULES:
        for spread in () if rule.budget_s else ADDED_SPREADS:
            found = sequential_ratios(rule, spread, ADDED_ROUNDS_FRAC * alpha, trials, seed=2)
            rows.append(
                [
                    _named(rule),
                    f"{spread:.0%}",
                    f"{found.rounds:.1f}",
                    f"{found.precise_frac:.0%}",
                    f"{1 - found.single_missed_frac:.1%}",
                    f"{found.missed_frac / alpha:.1f}",
                ]
            )
    return rows


def added_page_rows(pages: int) -> list[list[str]]:
    """Return one row per rule and true ratio: pages that claim anything false, and intervals that hold."""
    rows = []
    for rule in RULES:
        for ratio in (1.0, 1.1, 1.5):
            rates = EQUAL | {"lmdb": 1000 * ratio}
            truths = (
                Truth(spread=(0.02, 0.05, 0.1)[number % 3], rounds=rule.max_replicates, samples_per_s=rates)
                for number in range(pages)
            )
            found = list(outcomes(truths, rule, seed=rule.min_replicates))
            rows.append(
                [
                    _named(rule),
                    f"{ratio:g}",
                    f"{sum(one.false > 0 for one in found)} of {pages}",
                    f"{sum(one.held for one in found)} of {pages}",
                    f"{np.mean([held for one in found for held in one.rates]):.1%}",
                    f"{np.mean([count for one in found for count in one.rounds]):.1f}",
                    f"{np.mean([precise for one in found for precise in one.precise]):.0%}",
                ]
            )
    return rows


def budget_rows(trials: int) -> list[list[str]]:
    """Return one row per spread: rounds within a budget, and the coverage of the intervals of ratios and rates."""
    rows = []
    for spread in SPREADS:
        found = budgeted_ratios(spread, BUDGET_S, BUDGET_ROUNDS, trials, seed=3)
        rows.append(
            [
                f"{spread:.0%}",
                f"{found.rounds:.1f}",
                f"{1 - found.ratios_missed_frac:.1%}",
                f"{1 - found.rates_missed_frac:.1%}",
            ]
        )
    return rows


def _named(rule: StoppingRule) -> str:
    budget = "" if rule.budget_s is None else f", {rule.budget_s:.0f} s"
    return f"{rule.until:.0%}, {rule.min_replicates} to {rule.max_replicates}{budget}"


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    for line in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(line) + " |", flush=True)
    print(flush=True)


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=60, help="pages per row")
    parser.add_argument("--trials", type=int, default=1000, help="comparisons per figure")
    options = parser.parse_args()
    alpha = page_alpha()
    titles = [f"{ratio:g} times" for ratio in RATIOS]
    print(f"A difference on a page of 8 tables is told (error of one comparison: {alpha:.5f}):\n")
    show(["spread", "rounds", *titles], power_rows(alpha, options.trials))
    print("The same, by itself:\n")
    show(["spread", "rounds", *titles], power_rows(look_alpha(1), options.trials))
    print("Rounds that tell 1.25 times with a probability of 80%:\n")
    needed = [
        [f"{spread:.0%}", *(str(rounds_needed(spread * 2**0.5, 0.25, alpha=one) or "over 200")
          for one in (look_alpha(1), alpha))]
        for spread in SPREADS
    ]  # fmt: skip
    show(["spread", "one comparison", "page of 8 tables"], needed)
    print("Whole pages; LMDB is truly so many times as fast as the four other stores:\n")
    show(
        ["ratio", "rounds", "pages with a false claim", "pages that advise LMDB (R2)"],
        page_rows(options.pages),
    )
    for words, error in (("of one ratio", ONE_RATIO_ALPHA), ("of 8 tables", alpha)):
        print(
            f"Rounds added until a ratio of a page {words} is precise (error of one comparison: {error:.5f}):\n"
        )
        show(
            ["rule", "spread", "rounds", "precise", "95% intervals that hold", "misses over error"],
            added_ratio_rows(error, 200 * options.trials),
        )
    print(f"{BUDGET_ROUNDS} rounds of two cells that a budget for {BUDGET_S / 2:.0f} of them ends:\n")
    show(["spread", "rounds", "ratios that hold", "rates that hold"], budget_rows(20 * options.trials))
    print("Whole pages under the rule; LMDB is truly so many times as fast as the four other stores:\n")
    show(
        ["rule", "ratio", "a false claim", "all intervals hold", "rates that hold", "rounds", "precise"],
        added_page_rows(options.pages),
    )


if __name__ == "__main__":
    main()
