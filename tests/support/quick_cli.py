"""The command line in a process that has imported everything: what it does, prints and returns, in a tenth of the time.

A server imports the package once. For each command it forks a child, which runs `storebench.__main__.main` with
that command's arguments, folder and environment, and ends as any interpreter does. Several commands may run at a time.
The cells of a run are copies of it in turn (`tests.support.warm_cells`). Tests of starting, of imports, of signals, and of
what a process inherits start an interpreter of their own instead.

``python -m tests.support.quick_cli here WORDS...`` is ``storebench WORDS...`` in that interpreter, whose cells and ranks are
copies of it.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import re
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

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
RANKS = ("torch.distributed.launcher.api", "torch._dynamo")
"""What the agent and the ranks of a job import, the second for DistributedDataParallel; most commands start none."""
NUMBER = struct.Struct("<q")


class Command:
    """A command that was started; it is waited for as `subprocess.Popen` is."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, negative for a signal; raise `subprocess.TimeoutExpired` after so many seconds."""
        if self._code is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("storebench", timeout or 0)
            self._code = _received(self._connection)
            self._connection.close()
        return self._code

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class CommandServer:
    """A process that runs commands, each in a child of its own; started by the first one."""

    def __init__(self, **variables: str) -> None:
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._address = b""

    @property
    def address(self) -> str:
        """The socket on which it listens, in hexadecimal digits; it is started."""
        return self._started().hex()

    def run(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        timeout: float = 120,
        more_memory: int | None = None,
        largest_file: int | None = None,
        group: Path | None = None,
    ) -> CompletedText:
        """Run ``storebench ARGUMENTS``."""
        (out, child_out), (error, child_error) = os.pipe(), os.pipe()
        streams = child_out, child_error
        limits = {
            "more_memory": more_memory,
            "largest_file": largest_file,
            "group": None if group is None else str(group),
        }
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
        limits: Mapping[str, Any] | None = None,
        session: bool = False,
    ) -> Command:
        """Start ``storebench ARGUMENTS``."""
        request = {
            "arguments": arguments,
            "cwd": str(cwd),
            "env": dict(env),
            "limits": dict(limits or {}),
            "session": session,
            "imports": _imports(arguments, cwd),
        }
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._started())
        return Command(_asked(connection, request, streams), connection)

    def join(self, address: str) -> None:
        """Let commands run by the server that listens there, which somebody else starts and ends."""
        self._address = bytes.fromhex(address)

    def _started(self) -> bytes:
        if not self._address:
            self._control, theirs = socket.socketpair()
            with theirs, socket.socket(socket.AF_UNIX) as listener:
                listener.bind("")  # to a name that is no file
                listener.listen()
                self._address = listener.getsockname()
                numbers = theirs.fileno(), listener.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.quick_cli", *map(str, numbers)],
                    cwd=ROOT,
                    # Threads of numerical libraries would not survive the fork.
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": "1",
                        "OPENBLAS_NUM_THREADS": "1",
                        **self._variables,
                    },
                    stdin=subprocess.DEVNULL,
                    pass_fds=numbers,
                )
        return self._address

    def close(self) -> None:
        """End the server."""
        if self._control is not None and self._process is not None:
            self._control.shutdown(socket.SHUT_RDWR)  # a forked process may hold it, too
            self._control.close()
            self._process.wait()
            self._control = self._process = None
            self._address = b""


SERVER = CommandServer()
"""The server of the suite: one for all processes of ``pytest -n``. `tests/conftest.py` ends it with the session."""


def storebench(folder: Path, *arguments: object, timeout: float = 240, **variables: str) -> CompletedText:
    """Run ``storebench ARGUMENTS`` in a folder, with variables beside those of this process."""
    return SERVER.run(*map(str, arguments), cwd=folder, env={**os.environ, **variables}, timeout=timeout)


def _imports(arguments: Sequence[str], cwd: Path) -> Sequence[str]:
    """Return what to import first: a command with ranks, or of a scenario with ranks, starts them by torchrun."""
    if "--dry-run" in arguments:
        return ()
    files = [cwd / word for word in arguments if word.endswith(".toml")]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files if _is_short(path)]
    ranked = "--ranks" in arguments or any(re.search(r"^ranks\b", text, re.MULTILINE) for text in texts)
    return RANKS if ranked else ()


def _is_short(path: Path) -> bool:
    """Whether a path is a file that can be read at once: some tests hand over a terabyte."""
    return path.is_file() and path.stat().st_size < 1 << 20


def _asked(connection: socket.socket, request: Mapping[str, Any], streams: tuple[int, int]) -> int:
    """Send a request; return the process id of the command."""
    body = json.dumps(request).encode()
    socket.send_fds(connection, [NUMBER.pack(len(body))], list(streams))
    connection.sendall(body)
    return _received(connection)


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


def serve(control: socket.socket, listener: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answer requests until `control` ends; in the process of each command, return its request and its streams."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([control, listener, *running], [], [])
        for handle in running.keys() & set(ready):
            _tell_end(*running.pop(handle))
            os.close(handle)
        if control in ready:
            return None
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        head, streams, _, _ = socket.recv_fds(connection, NUMBER.size, 2)
        if head:
            request = json.loads(_exactly(connection, *NUMBER.unpack(head)))
            import_now(request["imports"])
            command = os.fork()
            if not command:
                for one in (control, listener, connection, *(waiting for _, waiting in running.values())):
                    one.close()
                for handle in running:
                    os.close(handle)
                return request, streams
            running[os.pidfd_open(command)] = command, connection
            with contextlib.suppress(OSError):  # nobody waits any more
                connection.sendall(NUMBER.pack(command))
        else:
            connection.close()
        for handle in streams:
            os.close(handle)


def _tell_end(command: int, connection: socket.socket) -> None:
    """Tell whoever started a command its exit code; it has ended."""
    _, status = os.waitpid(command, 0)
    with connection, contextlib.suppress(OSError):  # nobody waits any more
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def import_now(names: Sequence[str]) -> None:
    """Import modules by name, and spare the garbage collector of this process and of its copies what they hold."""
    for name in names:
        importlib.import_module(name)
    if names:
        gc.freeze()


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


def limit(more_memory: int | None = None, largest_file: int | None = None, group: str | None = None) -> None:
    """Limit what this process may take from now on; see `CommandServer.run`."""
    if group is not None:
        Path(group, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
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
    importlib.import_module("tests.support.warm_package").warm_up()


def main() -> None:
    """Serve on the sockets that the arguments number, and go on as the command line in each child; or as the words say."""
    first, *others = sys.argv[1:]
    if first == "here":
        here(*others)
    from tests.support.forks import leave_finalizers_to_this_process, ready_to_fork

    gc.disable()  # it would look through what is imported again and again
    unsaid, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    preload()  # and leave the package compiled to the interpreters that tests start
    sys.dont_write_bytecode = unsaid
    leave_finalizers_to_this_process()
    ready_to_fork()
    gc.enable()
    control, listener = (socket.socket(fileno=int(number)) for number in (first, *others))
    found = serve(control, listener)
    if found is None:
        leave(0)
    become(*found)
    leave(run_command())


def here(*arguments: str) -> NoReturn:
    """Be ``storebench ARGUMENTS`` with ranks, and import first what its cells would import."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    gc.disable()
    import_now(("storebench.worker.replicate", *RANKS))
    gc.enable()
    sys.argv = ["storebench", *arguments]
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


def leave(code: int) -> NoReturn:
    """End this process as Python would, but for taking apart all that was imported, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
