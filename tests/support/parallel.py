"""The suite in several processes (``pytest -n 3``): which tests share a process, and which run while no other does."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.quick_cli import SERVER

HARNESS = "tests/unit/harness/test_"
SCOPES: dict[str, tuple[str, ...]] = {
    "pages": (
        "tests/unit/probes/",
        f"{HARNESS}cold_cells.py",
        f"{HARNESS}cache_cells.py",
        f"{HARNESS}limited_cells.py",
        f"{HARNESS}leftovers.py",
        "tests/unit/formats_direct/test_planned_reads.py",
        "tests/unit/check/test_confirm.py",
        "tests/unit/check/test_benchmark_sessions.py",
        "tests/unit/formats/test_snapshot.py",
    ),
    "faults": ("tests/faults/",),
    "a real run": ("tests/adversary/test_records.py", "tests/adversary/test_rounds.py"),
    "revisions": ("tests/unit/check/test_against.py",),
    "six backends": tuple(
        f"{HARNESS}{name}.py" for name in ("same_training", "interruptions", "time_attribution", "timeline")
    ),
    "run folders": (f"{HARNESS}run_folder.py",),
    "documents": ("tests/docs/", "tests/packaging/"),
    "ends of cells": (f"{HARNESS}cell_endings.py",),
    "loaders": ("tests/unit/loading/",),
    "hostile files": ("tests/hostile/",),
    "failing stores": ("tests/unit/test_store_failures.py",),
    "contracts": ("tests/contracts/",),
    "replaced stores": ("tests/unit/test_replacing.py",),
    "proof": (f"{HARNESS}timed_proof.py", f"{HARNESS}epoch_coverage.py"),
}
"""What runs in one process, the longest first: tests that use the machine's page cache, or that share what is long in
the making, and long files. Any other file is a scope of its own. Files with quiet tests are in the first scope: its quiet
tests run in a row, before any other process has begun a long test for whose end they would wait."""


def scope_of(nodeid: str) -> str:
    """Return the name of a test's scope."""
    path = nodeid.partition("::")[0]
    return next((name for name, parts in SCOPES.items() if path.startswith(parts)), path)


class Turn:
    """Locks that the processes of one suite share: many tests side by side, or a quiet one alone.

    Whoever waits for its turn holds the gate, so that a quiet test need not wait until nobody else has one.
    """

    def __init__(self, gate: Path, floor: Path) -> None:
        self._gate, self._floor = (os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (gate, floor))
        self._alone = False

    def take(self, *, alone: bool) -> None:
        """Wait for a turn; the next of several quiet tests has it already."""
        if self._alone and alone:
            return
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._floor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._alone = alone

    def give(self, *, alone_next: bool) -> None:
        """End the turn, unless another quiet test follows a quiet one."""
        if self._alone and alone_next:
            return
        self._alone = False
        # Not by closing: a forked process that outlived its test would keep the lock.
        fcntl.flock(self._floor, fcntl.LOCK_UN)


TURN = pytest.StashKey[Turn]()


def is_quiet(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("quiet") is not None


def pytest_configure(config: pytest.Config) -> None:
    """In a process that runs beside others, open the locks (pytest's settings, and their folder), and join the server."""
    if hasattr(config, "workerinput") and config.inipath is not None:
        SERVER.join(config.workerinput.get("commands", ""))
        config.stash[TURN] = Turn(gate=config.inipath, floor=config.rootpath)
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
            # pytest-benchmark would measure nothing in the sessions of their own that tests start.
            del os.environ[name]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the one server of commands, and tell each process that is to run tests where it is."""
    node.workerinput["commands"] = SERVER.address


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
    """Run a test in its turn; waiting for it counts against no timeout."""
    turn = item.config.stash.get(TURN, None)
    if turn is None:
        return (yield)
    turn.take(alone=is_quiet(item))
    try:
        return (yield)
    finally:
        turn.give(alone_next=is_quiet(nextitem))


def in_order_of_scopes(items: list[pytest.Item]) -> None:
    """Put the longest scopes first, so that none is left over in the end, and a scope's quiet tests beside each other."""
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
