"""Print the tables of power and of false claims for docs/statistics.md, by simulation.

``python -m benchmarks.power_tables [--pages N] [--trials N]``
"""

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.drawn_pages import BACKENDS, Truth, drawn_page, false_claims
from storebench.report.facts import derive
from storebench.report.texts.advice import recommend
from storebench.stats import compare_family, look_alpha, rounds_needed

SPREADS = (0.02, 0.05, 0.10, 0.20, 0.30)
RATIOS = (1.1, 1.25, 1.5, 2.0)
ROUNDS = (3, 5, 8, 12, 20)
EQUAL = dict.fromkeys(BACKENDS, 1000.0)


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


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    for line in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(line) + " |", flush=True)
    print(flush=True)


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=90, help="pages per row")
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


if __name__ == "__main__":
    main()
