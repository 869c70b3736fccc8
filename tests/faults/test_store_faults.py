"""Faults in convert, a sample of those of ``make test-faults``: a store is whole or absent, and never lost."""

import pytest

from tests.faults.sample import Sample, names


@pytest.mark.parametrize("name", names("convert"))
def test_no_store_is_lost(name: str, sample: Sample) -> None:
    point = sample.plant(name)
    assert not point.problems, f"{point}:\n" + "\n".join(point.problems)
