"""Simulate the comparison of paired rounds: what it finds, and how often a page holds a false claim.

A page has 8 tables of 5 stores, so 32 comparisons. docs/reports.md shows some rows.
"""

import math

import numpy as np

from storebench.analysis.comparison import Verdict, compare

PAGES, COMPARISONS, SEED = 1000, 32, 20261127
CLAIMS = (Verdict.FASTER, Verdict.SLOWER)


def main() -> None:
    """Print one row for each spread between rounds and number of rounds."""
    random = np.random.default_rng(SEED)
    print(
        "| spread | rounds | finds 1.25x | finds 1.5x | equal at 1.00x | false claim on a page | 95% interval covers |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for spread in (0.05, 0.10, 0.20):
        for rounds in (5, 8, 12):
            found = [_share(random, true, spread, rounds, Verdict.FASTER) for true in (1.25, 1.5)]
            equal = _share(random, 1.0, spread, rounds, Verdict.EQUAL)
            pages = [
                [_compared(random, 1.0, spread, rounds) for _ in range(COMPARISONS)] for _ in range(PAGES)
            ]
            false = sum(any(verdict in CLAIMS for verdict, _ in page) for page in pages) / PAGES
            covered = sum(covers for page in pages for _, covers in page) / (PAGES * COMPARISONS)
            shares = " | ".join(f"{share:.0%}" for share in (*found, equal))
            print(f"| {spread:.0%} | {rounds} | {shares} | {false:.1%} | {covered:.1%} |")


def _share(random: np.random.Generator, true: float, spread: float, rounds: int, verdict: Verdict) -> float:
    """Return how often one comparison of a true ratio gets a verdict."""
    return sum(_compared(random, true, spread, rounds)[0] is verdict for _ in range(PAGES)) / PAGES


def _compared(random: np.random.Generator, true: float, spread: float, rounds: int) -> tuple[Verdict, bool]:
    found = compare(np.ones(rounds), np.exp(random.normal(math.log(true), spread, rounds)))
    return found.verdict, found.low is not None and found.high is not None and found.low <= true <= found.high


if __name__ == "__main__":
    main()
