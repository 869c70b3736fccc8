"""The selection of cases that run by default: every value, every pair that is asked for, and few cases."""

import itertools
import subprocess
import sys
from pathlib import Path

from tests.support.thinning import SHARE, covering, some

ROOT = Path(__file__).resolve().parents[2]


def product(**counts: int) -> list[dict[str, int]]:
    """Return the cases of parameters with so many values each."""
    values = itertools.product(*map(range, counts.values()))
    return [dict(zip(counts, one, strict=True)) for one in values]


def test_each_value_is_kept_in_as_few_cases_as_there_can_be() -> None:
    cases = product(reader=4, codec=3, damage=2)
    for first in range(len(cases)):
        kept = covering(cases, first=first)
        assert len(kept) == 4
        for name, count in (("reader", 4), ("codec", 3), ("damage", 2)):
            assert {cases[position][name] for position in kept} == set(range(count))
    assert len({frozenset(covering(cases, first=first)) for first in range(len(cases))}) > 1


def test_crossed_parameters_have_every_pair() -> None:
    cases = product(reader=4, codec=3, damage=2)
    kept = covering(cases, [["reader", "damage"], ["reader", "no such parameter"]])
    assert len(kept) == 8
    assert len({(cases[position]["reader"], cases[position]["damage"]) for position in kept}) == 8
    assert {cases[position]["codec"] for position in kept} == {0, 1, 2}


def test_only_combinations_that_there_are_can_be_kept() -> None:
    pairs = [(0, 0), (0, 2), (1, 2), (2, 1)]
    cases = [{"loader": one, "workers": two, "fault": fault} for one, two in pairs for fault in range(7)]
    kept = [cases[position] for position in covering(cases, [["loader", "workers"]])]
    assert len(kept) == 7
    assert {(case["loader"], case["workers"]) for case in kept} == {*pairs}
    assert covering([]) == set()


TEST = """
import pytest

from tests.support.thinning import some

@pytest.mark.thinned
@pytest.mark.parametrize("a", range(5))
@pytest.mark.parametrize("b", [0, 1, pytest.param(2, marks=pytest.mark.full)])
def test_thinned(a, b):
    pass

@pytest.mark.parametrize("a", range(3))
def test_whole(a):
    assert some(20) == SOME

@pytest.mark.thinned(whole=["test_that_skips"])
@pytest.mark.parametrize("a", range(3))
class TestBoth:
    @pytest.mark.parametrize("b", range(2))
    def test_that_skips(self, a, b):
        if a != b:
            pytest.skip("this case tests nothing")

    @pytest.mark.parametrize("b", range(2))
    def test_thinned(self, a, b):
        pass
"""
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--full", action="store_true")

def pytest_collection_modifyitems(config, items):
    if not config.getoption("--full"):
        leave_out(config, items)

from tests.support.thinning import leave_out, pytest_sessionstart
"""


def test_the_cases_left_out_run_with_full_or_by_name(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  thinned\n  full\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    assert some(20) in {20 // SHARE, 20}
    for words, drawn, counted in (
        ((), 5, "13 passed, 9 skipped, 8 deselected"),
        (("--full",), 20, "26 passed, 4 skipped"),
        (("test_it.py::test_thinned[0-3]",), 5, "1 passed"),
    ):
        (tmp_path / "test_it.py").write_text(TEST.replace("SOME", str(drawn)))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
        )
        assert counted in done.stdout.splitlines()[-1], done.stdout + done.stderr
