"""The command line in a process that has imported everything: what it does, prints and returns, in a tenth of the time.

A server imports the package once. For each command it forks a child, which runs `storebench.__main__.main` with
that command's arguments, folder and environment, and ends as any interpreter does. The cells of a run are copies of it in
turn (`tests.support.warm_cells`). Tests of starting, of imports, of signals, and of what a process inherits start an
interpreter of their own instead.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CompletedText = subprocess.CompletedProcess[str]

HEAVY = (
    "numpy", "PIL.Image", "PIL.PngImagePlugin", "PIL.JpegImagePlugin", "pydantic", "pandas", "pyarrow.parquet",
    "matplotlib.figure", "matplotlib.backends.backend_svg", "jinja2", "rich.console", "psutil", "torch",
    "torch.utils.data",
)  # fmt: skip
NOT_YET = ("storebench.__main__", "storebench.formats.leveldb", "storebench.testing")
"""What is not imported beforehand: a test lets plyvel be missing, and no command needs the tests of plugins."""
FORMATS = ("h5py", "lmdb")  # not plyvel, which a test lets be missing
NUMBER = struct.Struct("<q")
RECORDS = ROOT / "tests" / "golden" / "records_v1.jsonl"


class Command:
    """A command that was started; it is waited for as `subprocess.Popen` is."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, negative for a signal; raise `subprocess.TimeoutExpired` after so many seconds."""
        if self._code is None:
            if not select.select([self._control], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("storebench", timeout or 0)
            self._code = _received(self._control)
        return self._code

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class CommandServer:
    """A process that runs commands one after another, each in a child of its own; started by the first one.

    Parameters
    ----------
    variables
        Variables of the server's own environment, beside those of this process.
    """

    def __init__(self, **variables: str) -> None:
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def run(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        timeout: float = 120,
        more_memory: int | None = None,
        largest_file: int | None = None,
    ) -> CompletedText:
        """Run ``storebench ARGUMENTS``.

        Parameters
        ----------
        timeout
            Seconds after which the command is killed.
        more_memory
            Bytes of address space that it may have beyond what is loaded; None for no limit.
        largest_file
            Bytes beyond which it can write no file; None for no limit.

        Raises
        ------
        subprocess.TimeoutExpired
            It took longer.
        """
        (out, child_out), (error, child_error) = os.pipe(), os.pipe()
        streams = child_out, child_error
        limits = {"more_memory": more_memory, "largest_file": largest_file}
        command = self.start(*arguments, cwd=cwd, env=env, streams=streams, limits=limits)
        os.close(child_out)
        os.close(child_error)
        try:
            said = _read_all((out, error), time.monotonic() + timeout)
        except TimeoutError:
            command.kill()
            command.wait()
            raise subprocess.TimeoutExpired(["storebench", *arguments], timeout) from None
        except BaseException:
            command.kill()
            self.close()  # what it would still answer belongs to nobody
            raise
        finally:
            os.close(out)
            os.close(error)
        return subprocess.CompletedProcess(["storebench", *arguments], command.wait(), *said)

    def start(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        streams: tuple[int, int],
        limits: Mapping[str, int | None] | None = None,
        session: bool = False,
    ) -> Command:
        """Start ``storebench ARGUMENTS``; wait for its end before the next one is started.

        Parameters
        ----------
        streams
            Descriptors of its standard output and its standard error.
        limits
            "more_memory" and "largest_file", as `run` has them.
        session
            Whether it leads a session of its own.
        """
        request = {
            "arguments": arguments,
            "cwd": str(cwd),
            "env": dict(env),
            "limits": dict(limits or {}),
            "session": session,
        }
        body, control = json.dumps(request).encode(), self._started()
        socket.send_fds(control, [NUMBER.pack(len(body))], list(streams))
        control.sendall(body)
        return Command(_received(control), control)

    def _started(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.quick_cli", str(theirs.fileno())],
                cwd=ROOT,
                # Threads of numerical libraries would not survive the fork.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **self._variables},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
        return self._control

    def close(self) -> None:
        """End the server."""
        if self._control is not None and self._process is not None:
            self._control.shutdown(socket.SHUT_RDWR)  # a forked process may hold it, too
            self._control.close()
            self._process.wait()
            self._control = self._process = None


SERVER = CommandServer()
"""The server of this process of the suite; `tests/conftest.py` ends it with the session."""


def storebench(folder: Path, *arguments: object, timeout: float = 240, **variables: str) -> CompletedText:
    """Run ``storebench ARGUMENTS`` in a folder, with variables beside those of this process."""
    return SERVER.run(*map(str, arguments), cwd=folder, env={**os.environ, **variables}, timeout=timeout)


def _read_all(handles: tuple[int, int], deadline: float) -> tuple[str, str]:
    """Read two pipes to their ends; raise `TimeoutError` at the deadline."""
    said = dict.fromkeys(handles, b"")
    with selectors.DefaultSelector() as selector:
        for handle in handles:
            selector.register(handle, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                said[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
    out, error = (said[handle].decode() for handle in handles)
    return out, error


def _received(control: socket.socket) -> int:
    number: int
    [number] = NUMBER.unpack(_exactly(control, NUMBER.size))
    return number


def _exactly(control: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = control.recv(size - len(found))
        if not piece:
            raise EOFError("the server of commands has ended")
        found += piece
    return found


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answer requests until there are no more; in each child, return its request and the pipes it writes to."""
    while True:
        head, pipes, _, _ = socket.recv_fds(control, NUMBER.size, 2)
        if not head:
            return None
        body = _exactly(control, *NUMBER.unpack(head))
        child = os.fork()
        if not child:
            control.close()
            return json.loads(body), pipes
        for handle in pipes:
            os.close(handle)
        control.sendall(NUMBER.pack(child))
        _, status = os.waitpid(child, 0)
        control.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def become(request: Mapping[str, Any], pipes: list[int]) -> None:
    """Take over a command's session, folder, environment, streams, limits and arguments."""
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    sys.path[:0] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    for number, handle in enumerate(pipes, start=1):
        os.dup2(handle, number)
        os.close(handle)
    limit(**request["limits"])
    if "FAULTS_CONTROL" in os.environ:  # this is the command whose operations `tests.faults` counts
        ctypes.CDLL(None).faults_begin()
    sys.argv = ["storebench", *request["arguments"]]


def limit(more_memory: int | None = None, largest_file: int | None = None) -> None:
    """Limit what this process may take from now on; see `CommandServer.run`."""
    if more_memory is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + more_memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))


def preload() -> None:
    """Import what commands import when they need it, and do once what each would do for the first time."""
    import storebench

    own = (module.name for module in pkgutil.walk_packages(storebench.__path__, "storebench."))
    for name in (*HEAVY, *(name for name in own if not name.startswith(NOT_YET)), "tests.support.warm_cells"):
        importlib.import_module(name)
    for name in FORMATS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    warm_up()


def warm_up() -> None:
    """Fill what the package, pandas and matplotlib keep for the life of a process; a command finds it in its copy."""
    import typer.main

    from storebench.cli.main import app
    from storebench.formats.origin import code_facts
    from storebench.probes.environment import environment
    from storebench.report.build import content_of
    from storebench.report.page import html
    from storebench.runs.records import record_from_dict

    code_facts("lmdb")
    environment(ROOT)
    lines = RECORDS.read_text(encoding="utf-8").splitlines()
    html(content_of([(record_from_dict(json.loads(line), where=str(RECORDS)), RECORDS) for line in lines]))
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)


def main() -> None:
    """Serve on the socket that the first argument numbers; a child goes on as the command line."""
    preload()
    gc.collect()
    gc.freeze()  # so that a child does not copy what it never changes
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        become(*found)
        leave(run_command())


def run_command() -> int:
    """Run the command line; return its exit code."""
    from storebench.__main__ import main as command
    from tests.support.warm_cells import warm_cells

    try:
        with warm_cells():
            command()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def leave(code: int) -> None:
    """End this process as Python would, but for taking apart all that was imported, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
