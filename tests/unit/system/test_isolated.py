"""A function in a process of its own: its answer or its error comes back, whatever it does to itself."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from storebench.errors import CorruptDataError
from storebench.system.isolated import run_isolated

MEMORY = 256 << 20
LIMITED: Any = {"doing": "reading it", "where": Path("a.h5"), "memory_bytes": MEMORY}


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def refuse() -> None:
    raise CorruptDataError("it is damaged", where="file.h5", hint="Write it again.")


def fail() -> None:
    raise ZeroDivisionError("no reason")


def test_a_crash_names_the_signal() -> None:
    with pytest.raises(CorruptDataError, match="ended by SIGSEGV"):
        run_isolated(crash, limit_s=10, **LIMITED)


def test_a_process_that_ends_by_itself_gives_its_exit_code() -> None:
    with pytest.raises(CorruptDataError, match="ended with exit code 3"):
        run_isolated(lambda: os._exit(3), limit_s=10, **LIMITED)


def test_a_process_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def wait() -> None:
        note.write_text(str(os.getpid()))
        time.sleep(60)

    with pytest.raises(CorruptDataError, match="took longer than 1 s"):
        run_isolated(wait, limit_s=1, **LIMITED)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_a_known_error_comes_back_as_it_is() -> None:
    with pytest.raises(CorruptDataError) as caught:
        run_isolated(refuse, limit_s=10, **LIMITED)
    assert str(caught.value) == "file.h5: it is damaged. Write it again."


def test_an_unknown_error_comes_back_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: no reason") as caught:
        run_isolated(fail, limit_s=10, **LIMITED)
    assert "in fail" in caught.value.__notes__[0]


def test_memory_is_limited() -> None:
    with pytest.raises(CorruptDataError, match="takes more than"):
        run_isolated(lambda: bytearray(2 * MEMORY), limit_s=10, **LIMITED)
