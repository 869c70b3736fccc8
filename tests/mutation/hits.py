"""While mutmut learns which test reaches which function: tell it of those that other processes reach as well.

mutmut counts calls in its own process. `tests.mutation.run` puts this file into the copy of the package, so every process that
a test starts, such as a rank or a cell of the command line, writes the names of the functions that it calls to a file. The
copy's conftest.py imports the hooks, which read the file after each test.
"""

import importlib
import os
from pathlib import Path
from typing import Any

VARIABLE = "STOREBENCH_MUTATION_HITS"
"""Names the file. mutmut's own settings are not where most of these processes run."""

_trampoline: Any = importlib.import_module("mutmut.mutation.trampoline")
_state: Any = importlib.import_module("mutmut.state").state
_told: set[str] = set()


def _tell(name: str, caller: str | None = None) -> None:
    if name not in _told:
        _told.add(name)
        with Path(os.environ[VARIABLE]).open("ab", buffering=0) as file:
            file.write(f"{name}\n".encode())


os.register_at_fork(after_in_child=_told.clear)
if VARIABLE in os.environ:
    _trampoline.record_trampoline_hit = _tell


def pytest_runtest_setup() -> None:
    """Let this process tell again what the test reaches."""
    _told.clear()


def pytest_runtest_teardown() -> None:
    """Give mutmut the functions that any process has reached since the test before."""
    path = Path(os.environ.get(VARIABLE, os.devnull))
    if path.is_file():
        read = path.rename(path.with_suffix(".read"))
        _state()._stats.update(read.read_text(encoding="utf-8").split())
