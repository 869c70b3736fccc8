"""Every registered format passes the contract; the list comes from the registry."""

from storebench.formats.registry import format_names, get_format
from storebench.testing.contract import FormatContract

STORING = [name for name in format_names() if get_format(name).info.borrows is None]

for _name in STORING:
    _class_name = f"Test{_name.title()}"
    globals()[_class_name] = type(
        _class_name, (FormatContract,), {"format_name": _name, "__module__": __name__}
    )


def test_the_papers_formats_are_among_them() -> None:
    assert {"files", "hdf5", "memory", "leveldb", "lmdb"} <= set(STORING)
