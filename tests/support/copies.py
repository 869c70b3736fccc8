"""Processes that are copies of this one instead of fresh interpreters: what they would import is already loaded."""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import util as process_util
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest import mock

from storebench.system import processes
from storebench.system.processes import fork_when_settled

RANKS = ("torch.distributed.launcher.api", "torch._dynamo")
"""What the agent and the ranks of a job import, the second for DistributedDataParallel."""

_PROGRAMS = ("storebench.worker", "storebench.ranks.agent")
_NEW_MOUNTS, _PRIVATE = 0x20000, 0x4000 | 0x40000  # CLONE_NEWNS; MS_REC | MS_PRIVATE


class Copy(subprocess.Popen[Any]):
    """`subprocess.Popen` that runs a function, or a program of the package, in a copy of this process."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        work = args if callable(args) else _program(args)
        if work is None:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        cwd, env, pipes, session = others[4], others[5], others[9:15], others[20]
        ready, begun = os.pipe()
        with warnings.catch_warnings():
            # From Python 3.12 on: this process may have threads, of pytest-xdist or of torch, which no copy needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            if session:
                os.setsid()
            os.close(ready)
            os.close(begun)
            _become(work, cwd, env, pipes)
        self._child_created = True
        os.close(begun)
        os.read(ready, 1)  # it leads its session from now on
        os.close(ready)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def copy_of(work: Callable[[], int | None], **options: Any) -> Copy:
    """Run a function in a copy of this process, with the options of `subprocess.Popen`."""
    return Copy(cast("Any", work), **options)


def _become(
    work: Callable[[], int | None], cwd: Any, env: Mapping[str, str] | None, pipes: Sequence[int]
) -> NoReturn:
    """Take over folder, environment and streams, handle signals as a fresh interpreter does, work, and end."""
    code = 1
    try:
        for sent in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(sent) is not signal.SIG_IGN:
                handler: Any = signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL
                signal.signal(sent, handler)
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
            _show(env)
        tempfile.tempdir = None
        _forget_endings()
        read, their_write, their_read, write, their_errors, errors = pipes
        for number, stream in ((0, read), (1, write), (2, errors)):
            if stream != -1:
                os.dup2(stream, number)
        for handle in {their_write, their_read, their_errors, read, write, errors} - {-1, 0, 1, 2}:
            os.close(handle)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        code = work() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the copy must not go on as what it is a copy of
        traceback.print_exc()
    finally:
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                output.flush()
        os._exit(code)


def _forget_endings() -> None:
    """Do not run at the end of a copy what is to be run at the end of the process that it is a copy of."""
    registered: list[weakref.finalize[..., object]] = list(weakref.finalize._registry)  # type: ignore[attr-defined]
    for finalizer in registered:
        finalizer.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit._clear()
    atexit.register(process_util._exit_function)  # type: ignore[attr-defined]


def _show(variables: Mapping[str, str]) -> None:
    """Write variables where others find a process by them: over those of its start."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    ours = sorted(variables, key=lambda name: not name.startswith(("STOREBENCH_", "FAULTS_")))
    block = b"".join(os.fsencode(f"{name}={variables[name]}\0") for name in ours).ljust(end - start, b"\0")
    ctypes.memmove(start, block, end - start)


def _program(command: Sequence[Any]) -> Callable[[], None] | None:
    """Return a function that does what a command of the package's own does; None for any other command."""
    words = list(map(str, command))
    if words[0] != sys.executable or "-m" not in words[:3] or words[words.index("-m") + 1] not in _PROGRAMS:
        return None
    return functools.partial(_run_program, *words[words.index("-m") + 1 :])


def _run_program(module: str, *arguments: str) -> None:
    if module == "storebench.worker":
        from tests.support.short_yardsticks import shorten  # imports torch, which the newest Python may lack

        shorten()
    if module == "storebench.ranks.agent":
        handlers = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
        vars(importlib.import_module(handlers))["Popen"] = Copy
        # Or a rank may wait for ever: the store's thread looks up the name of each rank, and holds the resolver's lock.
        fork_when_settled()
    sys.argv = [module, *arguments]
    # A test of the same process may have imported the module.
    warnings.filterwarnings("ignore", "'storebench", RuntimeWarning, "runpy")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@contextlib.contextmanager
def warm_cells() -> Iterator[None]:
    """Let the cells and ranks of a run in this process run in copies of it."""
    with mock.patch.object(processes, "start_program", Copy):
        yield


def import_now(names: Sequence[str]) -> None:
    """Import modules by name, and spare the garbage collector of this process and of its copies what they hold."""
    for name in names:
        importlib.import_module(name)
    if names:
        gc.freeze()


def run_in_copy(
    work: Callable[[], int | None], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a function in a copy, and return how that ended."""
    with copy_of(work, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as copy:
        out, errors = copy.communicate()
    return subprocess.CompletedProcess([], copy.returncode, out, errors)


def run_code(
    code: str,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    first: Callable[[], object] = bool,
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a copy, as ``python -c CODE ARGUMENTS`` would, and return how that ended."""

    def work() -> None:
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # no team of threads survives the fork
        first()
        sys.argv = ["-c", *map(str, arguments)]
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as the interpreter does
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})

    return run_in_copy(work, cwd, env)


def own_mounts(script: str) -> None:
    """Give this process mounts of its own, and run a script for the shell that changes them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, _PRIVATE, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    subprocess.run(["sh", "-ec", script], check=True)
