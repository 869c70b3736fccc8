"""Every registered format passes the contract; the list comes from the registry."""

import inspect

import pytest

from storebench.formats.registry import format_names, get_format, is_installed
from storebench.testing.contract import FormatContract

STORING = [name for name in format_names() if is_installed(name) and get_format(name).info.borrows is None]


SKIPPING = (
    "test_a_call_for_windows_is_one_batch_of_the_plan",
    "test_encoded_payloads_are_not_pixels",
    "test_held_pixels_need_no_disk",
    "test_impossible_windows_are_refused",
    "test_only_the_rows_asked_for_are_written",
    "test_several_processes_read_at_once",
)
"""Tests of which some readers and codecs skip themselves; a case that is skipped tests no value."""


@pytest.mark.thinned("reader damage", "reader wrong", whole=SKIPPING)
class OwnContract(FormatContract):
    """The contract, with one reader of each format in spawned processes: each of those imports everything anew.

    Each test has every codec and every reader of a format; all tests together have every pair of them.
    """

    @pytest.fixture(autouse=True)
    def one_spawned(self, request: pytest.FixtureRequest) -> None:
        params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
        default = params.get("reader") == get_format(self.format_name).info.default_reader
        if params.get("method") == "spawn" and not default and not request.config.getoption("--full"):
            pytest.skip("spawned processes open the default reader, with --full every reader")


for _name in STORING:
    _class_name = f"Test{_name.title()}"
    globals()[_class_name] = type(_class_name, (OwnContract,), {"format_name": _name, "__module__": __name__})


def test_the_papers_formats_are_among_them() -> None:
    assert {"files", "hdf5", "memory", "leveldb", "lmdb"} <= set(STORING)


def test_tests_that_skip_themselves_are_not_thinned() -> None:
    tests = {name: getattr(OwnContract, name) for name in dir(OwnContract) if name.startswith("test_")}
    skipping = {name for name, test in tests.items() if "pytest.skip(" in inspect.getsource(test)}
    assert skipping <= set(SKIPPING) <= set(tests)
