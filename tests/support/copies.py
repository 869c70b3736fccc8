"""Forks of this process instead of fresh interpreters: the modules that these would import are already loaded."""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_NEW_MOUNTS, _PRIVATE = 0x20000, 0x4000 | 0x40000  # CLONE_NEWNS; MS_REC | MS_PRIVATE
_SET_DUMPABLE = 4  # linux/prctl.h
_NOBODY = 65534


class Copy:
    """A copy of this process that does some work and ends, with an interface like `subprocess.Popen`."""

    def __init__(self, work: Callable[[], int | None], *, session: bool = False) -> None:
        self.returncode: int | None = None
        ready, begun = os.pipe()
        with warnings.catch_warnings():
            # From Python 3.12 on: this process may have threads, of pytest-xdist or of torch, which no copy needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            os.close(ready)
            os._exit(_run(work, begun, session=session))
        os.close(begun)
        os.read(ready, 1)  # it leads its session from now on
        os.close(ready)

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code; raise `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self.poll() is None:
            handle = os.pidfd_open(self.pid)
            try:
                ended, _, _ = select.select([handle], [], [], timeout)
            finally:
                os.close(handle)
            if not ended:
                raise subprocess.TimeoutExpired("a copy of this process", timeout or 0)
        while (code := self.poll()) is None:
            pass  # it is a zombie, to be waited for at once
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def _run(work: Callable[[], int | None], begun: int, *, session: bool) -> int:
    """Run in the copy: handle signals as a fresh interpreter does, work, and return the exit code."""
    try:
        if session:
            os.setsid()
        os.close(begun)
        _handle_signals_anew()
        return work() or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the copy must not go on as what it is a copy of
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def _handle_signals_anew() -> None:
    default = {signal.SIGINT: signal.default_int_handler}
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, default.get(number, signal.SIG_DFL))


def become(variables: Mapping[str, str], *, out: int, error: int, folder: Path | None = None) -> None:
    """Set environment variables, standard streams and the current folder in a copy."""
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    if folder is not None:
        os.chdir(folder)
    os.dup2(out, 1)
    os.dup2(error, 2)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the life of the copy
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115


def run_code(
    code: str,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    first: Callable[[], object] = bool,
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a copy, as ``python -c CODE ARGUMENTS`` would, and return how that ended.

    This is for code that needs a separate process, but not a fresh interpreter.
    """
    words = ["-c", *map(str, arguments)]

    def work() -> None:
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # no team of threads survives the fork
        first()
        sys.argv = words
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as the interpreter does
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})

    return _ended(work, words, cwd, env)


def run_storebench(
    *arguments: object, cwd: Path, env: Mapping[str, str], first: Callable[[], object]
) -> subprocess.CompletedProcess[str]:
    """Run ``storebench ARGUMENTS`` in a copy that first drops some privileges, and return how that ended."""
    words = ["storebench", *map(str, arguments)]

    def work() -> int:
        from tests.support.quick_cli import run_command

        first()
        sys.argv = words
        return run_command()

    return _ended(work, words, cwd, env)


def own_mounts(script: str) -> None:
    """Give this process mounts of its own, and run a script for the shell that changes them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, _PRIVATE, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    subprocess.run(["sh", "-ec", script], check=True)


def be_nobody() -> None:
    """Switch this process to an unprivileged user."""
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 1)  # or its own files in /proc are closed to it


def _ended(
    work: Callable[[], int | None], words: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:

        def redirected() -> int | None:
            become(env or dict(os.environ), out=out.fileno(), error=error.fileno(), folder=cwd)
            return work()

        returncode = Copy(redirected).wait()
        said = [_content(stream) for stream in (out, error)]
    return subprocess.CompletedProcess(list(words), returncode, *said)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
