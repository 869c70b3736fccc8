"""Without --full, spawned processes read two formats: a fresh interpreter takes seconds, and the code is the same."""

import pytest

SPAWNED = ("TestLmdb", "TestFiles")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        case = getattr(item, "callspec", None)
        if case and case.params.get("method") == "spawn" and item.parent and item.parent.name not in SPAWNED:
            item.add_marker(pytest.mark.full)
