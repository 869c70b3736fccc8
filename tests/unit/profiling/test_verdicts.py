"""Planted limits are named; `benchmarks.profile_cases` has more of them, and the gains."""

import pytest

from benchmarks import profile_cases

# Those that sleep: the others compute, and another process on the machine would be part of what they measure.
NAMES = (
    "slow network, generator",
    "sleeping reads",
    "compute",
    "lock among 4 workers",
    "slow start of workers",
    "stalls every 50 steps",
)


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_limit_is_named(name: str) -> None:
    loop = next(loop for loop in profile_cases.LOOPS if loop.name == name)
    report, seconds = profile_cases.report_on(loop)
    assert report.bound is loop.planted, str(report)
    assert report.gain > 1.3
    assert report.total_s == pytest.approx(seconds, rel=0.2)
    assert len(str(report).splitlines()) <= 12
