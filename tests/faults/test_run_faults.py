"""Faults in bench, report, check and trace, a sample of those of ``make test-faults``: records and outputs are whole."""

import pytest

from tests.faults.engine import KINDS
from tests.faults.sample import Sample, names

VERBS = ("bench", "report", "check", "trace")


def test_the_sample_has_sixty_faults_of_all_kinds() -> None:
    every = names("convert", *VERBS)
    assert len(every) == 60
    assert {name.split()[-1] for name in every} == set(KINDS)


@pytest.mark.parametrize("name", names(*VERBS))
def test_nothing_recorded_is_lost(name: str, sample: Sample) -> None:
    point = sample.plant(name)
    assert not point.problems, f"{point}:\n" + "\n".join(point.problems)
