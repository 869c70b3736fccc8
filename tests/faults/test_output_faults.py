"""Faults in report, check and trace, a sample of those of ``make test-faults``: an output is whole or absent."""

import pytest

from tests.faults.engine import KINDS
from tests.faults.sample import Sample, names


def test_the_sample_has_47_faults_of_all_kinds() -> None:
    every = names("convert", "bench", "report", "check", "trace")
    assert len(every) == 47
    assert {name.split()[-1] for name in every} == set(KINDS)


@pytest.mark.parametrize("name", names("report", "check", "trace"))
def test_no_output_is_cut_short(name: str, sample: Sample) -> None:
    point = sample.plant(name)
    assert not point.problems, f"{point}:\n" + "\n".join(point.problems)
