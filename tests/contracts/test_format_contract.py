"""Every registered format passes the contract; the list comes from the registry."""

import pytest

from storebench.formats.registry import format_names, get_format
from storebench.testing.contract import FormatContract

STORING = [name for name in format_names() if get_format(name).info.borrows is None]


class OwnContract(FormatContract):
    """The contract, with one reader of each format in spawned processes: each of those imports everything anew."""

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
