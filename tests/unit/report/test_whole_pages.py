"""Whole pages of drawn rates: how many claim anything false, and what of the truth they find."""

import itertools

import numpy as np
import pytest
import scipy

from benchmarks.drawn_pages import BACKENDS, Truth, claimed, drawn_page, false_claims
from storebench.report.claims import AMPLIFIED, ClaimKind
from storebench.report.decisions import FED_FRAC
from storebench.report.facts import derive
from storebench.report.roofline_curve import Feeding
from storebench.report.texts.advice import recommend
from storebench.stats import ALPHA, compare

EQUAL = dict.fromkeys(BACKENDS, 1000.0)


@pytest.fixture(scope="module")
def pages(request: pytest.FixtureRequest) -> int:
    """Return how many pages are drawn: enough to see a missing correction, and with --full one that is too weak."""
    return 100 if request.config.getoption("--full") else 40


def most_false(pages: int) -> int:
    """Return how many of so many pages may be false where 5% are, save once in 1,000 runs of this test."""
    return int(scipy.stats.binom.ppf(0.999, pages, 0.05))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (4, 5))])
def test_at_most_5_of_100_pages_of_equal_backends_claim_falsely(rounds: int, pages: int) -> None:
    rng = np.random.default_rng(rounds)
    false = 0
    for number in range(pages):
        truth = Truth(spread=(0.05, 0.15, 0.3)[number % 3], rounds=rounds, samples_per_s=EQUAL)
        false += bool(false_claims(drawn_page(truth, rng), truth))
    assert false <= most_false(pages)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, pytest.param(5, marks=pytest.mark.full)])
def test_at_most_5_of_100_pages_are_false_where_every_limit_is_just_met(rounds: int, pages: int) -> None:
    rng = np.random.default_rng(20 + rounds)
    false = 0
    for number in range(pages // 2):
        truth = Truth(
            spread=(0.05, 0.15, 0.3)[number % 3],
            rounds=rounds,
            samples_per_s=EQUAL,
            waits_frac=FED_FRAC,
            amplification=AMPLIFIED,
        )
        false += bool(false_claims(drawn_page(truth, rng), truth))
    assert false <= most_false(pages // 2)


@pytest.mark.slow
def test_single_intervals_would_make_many_pages_of_rooflines_false() -> None:
    rng = np.random.default_rng(4)
    alarmed = 0
    for _ in range(10):
        truth = Truth(spread=0.15, rounds=4, samples_per_s=EQUAL)
        facts = derive(drawn_page(truth, rng))
        curves = [curve for roofline in facts.rooflines for curve in roofline.concluding(ALPHA).curves]
        rights = [1000 / (0.9 if curve.loader.cell.workers else 9.0) for curve in curves]
        told = [curve.feeding(right) for curve, right in zip(curves, rights, strict=True)]
        alarmed += any(one is not Feeding.UNDECIDED for one in told)
    assert alarmed >= 3


@pytest.mark.slow
def test_without_correction_nearly_every_page_would_claim_falsely() -> None:
    rng = np.random.default_rng(1)
    alarmed = 0
    for _ in range(10):
        truth = Truth(spread=0.1, rounds=4, samples_per_s=EQUAL)
        cells = drawn_page(truth, rng)
        pairs = [
            (one.values("samples_per_s"), other.values("samples_per_s"))
            for one, other in itertools.pairwise(cells)
        ]
        p_values = [compare(list(a.values()), list(b.values())).p_value or 1.0 for a, b in pairs]
        alarmed += min(p_values) < 0.05
    assert alarmed >= 7


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.3, pytest.param(2.0, marks=pytest.mark.full)])
def test_at_most_5_of_100_pages_of_unequal_backends_claim_falsely(ratio: float, pages: int) -> None:
    rng = np.random.default_rng(9)
    false = 0
    for number in range(pages // 2):
        truth = Truth(
            spread=(0.05, 0.15, 0.3)[number % 3], rounds=5, samples_per_s=EQUAL | {"lmdb": 1000 * ratio}
        )
        false += bool(false_claims(drawn_page(truth, rng), truth))
    assert false <= most_false(pages // 2)


def test_a_large_difference_is_found_and_advised_with_few_rounds() -> None:
    truth = Truth(spread=0.05, rounds=5, samples_per_s=EQUAL | {"lmdb": 3000.0})
    for seed in range(5):
        cells = drawn_page(truth, np.random.default_rng(seed), settings=1)
        assert {advice.rule[:2] for advice in recommend(derive(cells))} >= {"R2"}
        _, said = claimed(cells)
        assert all(one.subject.backend == "lmdb" for one in said if one.kind is ClaimKind.FASTER)


def test_a_simulated_pages_sentences_do_not_contradict_each_other() -> None:
    truth = Truth(spread=0.05, rounds=5, samples_per_s=EQUAL | {"lmdb": 3000.0, "png": 500.0})
    cells = drawn_page(truth, np.random.default_rng(3))
    assert len({cell.setting + cell.dataset_key for cell in cells if not cell.is_null}) == 8
    _, said = claimed(cells)
    assert any(one.kind is ClaimKind.FASTER for one in said)
    assert not [pair for pair in itertools.combinations(said, 2) if pair[0].contradicts(pair[1])]
