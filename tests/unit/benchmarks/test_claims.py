"""What a benchmark says of a claim: the interval decides, never the ratio alone."""

import numpy as np
import pytest

from benchmarks.claims import Claim, report


def rates(centre: float, spread: float, seed: int, rounds: int = 9) -> list[float]:
    return list(centre * np.exp(np.random.default_rng(seed).normal(0, spread, rounds)))


@pytest.mark.parametrize(
    ("ratio", "spread", "verdict"),
    [(2.0, 0.02, "met"), (1.0, 0.02, "missed"), (1.6, 0.5, "undecided"), (1.4, 0.5, "undecided")],
)
def test_a_ratio_alone_is_not_enough(ratio: float, spread: float, verdict: str) -> None:
    claim = Claim(
        words="times", contender=rates(ratio, spread, 1), baselines=[rates(1.0, spread, 2)], least=1.5
    )
    line, note = report([claim])
    assert line.endswith(f"(asked: 1.5) {verdict}")
    assert note == "(1 ratios; their intervals hold together with 95%)"


def test_a_claim_against_several_must_hold_for_each() -> None:
    fast, slow = rates(1.9, 0.01, 2), rates(1.0, 0.01, 3)
    lines = report(
        [
            Claim(words="both", contender=rates(2.0, 0.01, 1), baselines=[slow, fast], least=1.5),
            Claim(words="one", contender=rates(2.0, 0.01, 1), baselines=[slow], least=1.5),
            Claim(words="no demand", contender=rates(2.0, 0.01, 1), baselines=[slow]),
        ]
    )
    assert lines[0].endswith("missed")
    assert lines[1].endswith("met")
    assert "asked" not in lines[2]


def test_more_claims_make_every_interval_wider() -> None:
    one = Claim(words="x", contender=rates(1.2, 0.1, 1), baselines=[rates(1.0, 0.1, 2)])
    low_alone = float(report([one])[0].split("[")[1].split(",")[0])
    low_of_many = float(report([one] * 30)[0].split("[")[1].split(",")[0])
    assert low_of_many < low_alone


def test_one_round_decides_nothing() -> None:
    (line, _) = report([Claim(words="x", contender=[3.0], baselines=[[1.0]], least=1.5)])
    assert line == "x: 3.00 [-] (asked: 1.5) undecided"
