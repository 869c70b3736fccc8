"""Planted limits are named; `benchmarks.profile_cases` has more of them, and the gains."""

from pathlib import Path

import pytest

from benchmarks import profile_cases

# Those that sleep: the others compute, and another process on the machine would be part of what they measure.
NAMES = (
    "slow disk: sleeping reads",
    "compute",
    "generator that sleeps",
    "lock among workers",
    "slow start of workers",
    "stalls every 50 steps",
)


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_limit_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_cases, "FILE_MIB", 1)
    case = next(case for case in profile_cases.cases(tmp_path) if case.name == name)
    report, seconds = profile_cases.report_on(case)
    assert report.bound is case.planted, str(report)
    assert report.gain > 1.3
    assert report.total_s == pytest.approx(seconds, rel=0.2)
    assert len(str(report).splitlines()) <= 12
