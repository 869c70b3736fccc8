"""Every registered format passes the contract; the list comes from the registry."""

import pytest

from storebench.formats.registry import format_names, get_format, is_installed
from storebench.testing.contract import FormatContract

STORING = [name for name in format_names() if is_installed(name) and get_format(name).info.borrows is None]


@pytest.mark.thinned("reader damage")
class OwnContract(FormatContract):
    """The contract; each test has every codec and every reader of a format, all together have every pair of them."""


for _name in STORING:
    _class_name = f"Test{_name.title()}"
    globals()[_class_name] = type(_class_name, (OwnContract,), {"format_name": _name, "__module__": __name__})


def test_the_papers_formats_are_among_them() -> None:
    assert {"files", "hdf5", "memory", "leveldb", "lmdb"} <= set(STORING)
