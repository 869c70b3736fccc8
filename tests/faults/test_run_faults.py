"""Faults in bench, a sample of those of ``make test-faults``: what is recorded stays, and agrees with its steps."""

import pytest

from tests.faults.sample import Sample, names


@pytest.mark.parametrize("name", names("bench"))
def test_nothing_recorded_is_lost(name: str, sample: Sample) -> None:
    point = sample.plant(name)
    assert not point.problems, f"{point}:\n" + "\n".join(point.problems)
