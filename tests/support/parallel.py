"""The suite in several processes (``pytest -n 3``): which tests share a process, and which run while no other does."""

import fcntl
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.quick_cli import SERVER

HARNESS = "tests/runs/test_"
SCOPES: dict[str, tuple[str, ...]] = {
    "pages": (
        "tests/unit/probes/",
        f"{HARNESS}cold_cells.py",
        f"{HARNESS}cache_cells.py",
        f"{HARNESS}limited_cells.py",
        "tests/unit/formats/test_planned_reads.py",
        "tests/unit/formats/test_snapshot.py",
    ),
    "faults": ("tests/faults/test_faults",),
    "documents": ("tests/docs/", "tests/packaging/"),
    "loaders": ("tests/unit/loading/",),
    "hostile files": ("tests/hostile/",),
    "contracts": ("tests/contracts/",),
}
"""What runs in one process, the longest first: tests that use the machine's page cache, or share what is long in the
making. Any other file is a scope of its own."""


def scope_of(nodeid: str) -> str:
    """Return the name of a test's scope."""
    path = nodeid.partition("::")[0]
    return next((name for name, parts in SCOPES.items() if path.startswith(parts)), path)


def is_quiet(item: pytest.Item) -> bool:
    return item.get_closest_marker("quiet") is not None


LOCKS = pytest.StashKey[tuple[int, int]]()


def pytest_configure(config: pytest.Config) -> None:
    """In a process that runs beside others, open the locks in pytest's folder, and join the server."""
    if hasattr(config, "workerinput") and config.inipath is not None:
        SERVER.join(config.workerinput.get("commands", ""))
        gate, floor = (
            os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (config.inipath, config.rootpath)
        )
        config.stash[LOCKS] = gate, floor


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the one server of commands, and tell each process that is to run tests where it is."""
    node.workerinput["commands"] = SERVER.address


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Run tests side by side, but a quiet one alone; a waiting test holds the gate, so that quiet ones get a turn."""
    if LOCKS not in item.config.stash:
        return (yield)
    gate, floor = item.config.stash[LOCKS]
    fcntl.flock(gate, fcntl.LOCK_EX)
    try:
        fcntl.flock(floor, fcntl.LOCK_EX if is_quiet(item) else fcntl.LOCK_SH)
    finally:
        fcntl.flock(gate, fcntl.LOCK_UN)
    try:
        return (yield)
    finally:
        fcntl.flock(floor, fcntl.LOCK_UN)  # not by closing: a process that outlived its test would keep it


def in_order_of_scopes(items: list[pytest.Item]) -> None:
    """Put the longest scopes first, so that none runs last, and a scope's quiet tests beside each other."""
    order = list(SCOPES)

    def position(item: pytest.Item) -> tuple[int, bool]:
        scope = scope_of(item.nodeid)
        return (order.index(scope) if scope in SCOPES else len(order), not is_quiet(item))

    items.sort(key=position)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out scope by scope; another ``--dist`` is as it was asked for."""
    from xdist.scheduler import LoadScopeScheduling

    class ByScope(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False  # the order is the items' own
    return ByScope(config, log)
