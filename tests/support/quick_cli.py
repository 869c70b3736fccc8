"""The command line in a process that has imported everything: what it does, prints and returns, in a tenth of the time.

A server imports the package once, and forks a child for each command. The cells of a run are copies of it in turn
(`tests.support.copies`). Tests of starting, of imports and of signals start an interpreter.

``python -m tests.support.quick_cli here WORDS...`` is ``storebench WORDS...``, whose cells and ranks are copies.
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
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import IO, NoReturn

from storebench.system.processes import end_with_parent
from tests.support.copies import RANKS, copy_of, import_now, warm_cells

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "reference" / "codecs" / "records.jsonl"
CompletedText = subprocess.CompletedProcess[str]

HEAVY = ("matplotlib.backends.backend_svg", "h5py", "lmdb", *RANKS)
"""Imported beforehand, beside the package; not the library of LevelDB, which a test lets be missing."""

NOT_YET = ("storebench.__main__", "storebench.formats.leveldb", "storebench.testing")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A command that is to run, its output streams as files, and what it may take."""

    arguments: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    streams: tuple[str, ...]
    limits: Mapping[str, int | str] = field(default_factory=dict)


class Command:
    """A command that was started; it is waited for as `subprocess.Popen` is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pid: int = connection.recv()
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, negative for a signal; raise `subprocess.TimeoutExpired` after so many seconds."""
        if self._code is None:
            if not self._connection.poll(timeout):
                raise subprocess.TimeoutExpired("storebench", timeout or 0)
            self._code = int(self._connection.recv())
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
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """The socket on which it listens; it is started."""
        if not self._address:
            # Threads of numerical libraries would not survive the fork.
            alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.quick_cli"],
                cwd=ROOT,
                env={**os.environ, **alone, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._process.stdout is not None
            self._address = self._process.stdout.readline().strip()
        return self._address

    def run(
        self, *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 120, **limits: int | str
    ) -> CompletedText:
        """Run ``storebench ARGUMENTS``."""
        with self._file() as out, self._file() as error:
            streams = out.fileno(), error.fileno()
            command = self.start(*arguments, cwd=cwd, env=env, streams=streams, limits=limits)
            try:
                code = command.wait(timeout)
            except BaseException:
                command.kill()
                raise
            return subprocess.CompletedProcess(["storebench", *arguments], code, out.read(), error.read())

    def _file(self) -> IO[str]:
        return tempfile.TemporaryFile("w+", encoding="utf-8", newline="")

    def start(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        streams: tuple[int, int],
        limits: Mapping[str, int | str] | None = None,
    ) -> Command:
        """Start ``storebench ARGUMENTS``."""
        connection = Client(f"\0{self.address}")
        connection.send(
            Request(
                arguments=arguments,
                cwd=cwd,
                env=dict(env),
                streams=tuple(f"/proc/{os.getpid()}/fd/{handle}" for handle in streams),
                limits=limits or {},
            )
        )
        return Command(connection)

    def join(self, address: str) -> None:
        """Let commands run by the server that listens there, which somebody else starts and ends."""
        self._address = address

    def close(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process, self._address = None, ""


SERVER = CommandServer()
"""The server of the suite: one for all processes of ``pytest -n``. `tests/conftest.py` ends it with the session."""


def storebench(folder: Path, *arguments: object, timeout: float = 240, **variables: str) -> CompletedText:
    """Run ``storebench ARGUMENTS`` in a folder, with variables beside those of this process."""
    return SERVER.run(*map(str, arguments), cwd=folder, env={**os.environ, **variables}, timeout=timeout)


def serve(listener: Listener) -> NoReturn:
    """Run a command for each request, beside others."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        with contextlib.suppress(EOFError), listener.accept() as connection:
            request = connection.recv()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                attend(request, connection)


def attend(request: Request, connection: Connection) -> NoReturn:
    """Run a command, and tell whoever has asked for it its id and its exit code."""
    with contextlib.ExitStack() as stack:
        out, error = (stack.enter_context(Path(name).open("wb")) for name in request.streams)
        command = copy_of(
            functools.partial(_run, request),
            cwd=request.cwd,
            env=request.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            start_new_session=True,
        )
    with contextlib.suppress(OSError):  # nobody waits any more
        connection.send(command.pid)
        connection.send(command.wait())
    os._exit(0)


def _run(request: Request) -> NoReturn:
    """Be a command, in its own process."""
    sys.path[:0] = [str(request.cwd), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    limit(**request.limits)  # type: ignore[arg-type]
    if "FAULTS_CONTROL" in os.environ:  # this is the command whose operations `tests.faults` counts
        ctypes.CDLL(None).faults_begin()
    run_command(*request.arguments)


def limit(more_memory: int | None = None, largest_file: int | None = None, group: str | None = None) -> None:
    """Limit what this process may take from now on."""
    if group is not None:
        Path(group, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    if more_memory is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + more_memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))


def run_command(*arguments: str) -> NoReturn:
    """Be ``storebench ARGUMENTS``, and end as Python would, but without taking apart all that was imported."""
    from storebench.__main__ import main as command

    sys.argv, code = ["storebench", *arguments], 0
    try:
        with warm_cells():
            command()
    except SystemExit as end:
        code = int(end.code or 0)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def preload() -> None:
    """Import what commands import when they need it, and do once what each would do for the first time."""
    import storebench

    ours = (module.name for module in pkgutil.walk_packages(storebench.__path__, "storebench."))
    for name in (*HEAVY, *(name for name in ours if not name.startswith(NOT_YET))):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import typer.main

    from storebench.analysis.checks.records import Results
    from storebench.cli.main import app
    from storebench.datasets import synthetic
    from storebench.formats.origin import code_facts
    from storebench.probes.environment import environment
    from storebench.record.lines import record_from_dict
    from storebench.report.content import content_of
    from storebench.report.page import markdown
    from tests.support.kept_data import keep_real_data, read_real_data

    code_facts("lmdb")
    environment(ROOT)
    synthetic._grain()
    for number in range(synthetic.FIELD_COUNT):
        for kind in (synthetic.photograph, synthetic.thumbnail):
            synthetic._field(number, kind.keywords["power"])
    keep_real_data()
    read_real_data()
    records = map(json.loads, RECORDS.read_text(encoding="utf-8").splitlines()[:2])
    nowhere = Path("run") / RECORDS.name  # without step tables, whose readers take memory
    pairs = [(record_from_dict(record, where=str(RECORDS)), nowhere) for record in records]
    markdown(content_of(Results(records=tuple(pairs))))
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)


def main(*words: str) -> None:
    """Be the server, or, after the word "here", a command with ranks."""
    gc.disable()  # it would look through what is imported again and again
    if words:
        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        import_now(("storebench.worker.replicate", *RANKS))
        gc.enable()
        run_command(*words[1:])
    end_with_parent(signal.SIGKILL)
    address = f"storebench-commands-{os.getpid()}-{time.time_ns()}"
    with Listener(f"\0{address}", backlog=64) as listener:
        print(address, flush=True)
        unsaid, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        preload()  # and leave the package compiled to the interpreters that tests start
        sys.dont_write_bytecode = unsaid
        gc.collect()
        gc.freeze()
        gc.enable()
        serve(listener)


if __name__ == "__main__":
    from tests.support import quick_cli  # requests are of a class of this name, not of the module __main__

    quick_cli.main(*sys.argv[1:])
