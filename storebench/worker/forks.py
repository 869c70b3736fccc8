"""An interpreter that has imported everything and forks the process of each replicate, which so starts at once."""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from storebench.probes.code import cell_environment, running_checkout, running_digest
from storebench.system import processes
from storebench.system.libc import LIBC
from storebench.system.processes import end_processes, end_with_starter, expend, marked, started_here
from storebench.system.scratch import locked_folder, remove

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 0x40000  # linux/sched.h, linux/mount.h


class Fork:
    """The process of one replicate, with those methods of `subprocess.Popen` that its runner needs."""

    def __init__(self, server: "subprocess.Popen[bytes]", within_s: float) -> None:
        self._server = server
        self._code: int | None = None
        # Of an interpreter that has ended, `wait` returns the exit code.
        self.pid = self._answer(within_s) or server.pid

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or raise `subprocess.TimeoutExpired`."""
        if self._code is None:
            code = self._answer(timeout)
            self._code = self._server.wait() if code is None else code
        return self._code

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _answer(self, timeout: float | None) -> int | None:
        """Return the next number that the server writes; None if it has ended."""
        output = self._server.stdout
        assert output is not None
        if not select.select([output], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self._server.args, timeout or 0.0)
        line = output.readline()
        return int(line) if line.endswith(b"\n") else None


class ForkServer:
    """Forks the processes of replicates, those of a round from one interpreter, which starts with the first of them."""

    def __init__(self) -> None:
        self._round = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def fork(
        self,
        job: Path,
        log: Path,
        variables: dict[str, str],
        *,
        number: int,
        namespace: bool,
        within_s: float,
    ) -> Fork:
        """Start the process of a job of round `number`, or raise `subprocess.TimeoutExpired`.

        Hash seed and addresses differ between rounds only.
        """
        process = self.start(number, log, within_s)
        assert process.stdin is not None
        request = {"job": str(job), "log": str(log), "variables": variables, "namespace": namespace}
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `Fork` finds its exit code
            process.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            return Fork(process, within_s)
        except BaseException:
            self.close()
            raise

    def start(self, number: int, log: Path, within_s: float) -> "subprocess.Popen[bytes]":
        """Return the interpreter of round `number`, once it has imported everything."""
        if self._round != number or self._process is None or self._process.poll() is not None:
            self.close()
            self._round, self._process = number, self._started(log)
            assert self._process.stdout is not None
            if select.select([self._process.stdout], [], [], within_s)[0]:
                self._process.stdout.readline()
        return self._process

    def cpu_s(self) -> float:
        """Return the CPU seconds of all that descends from this process, as servers of places do; once closed, 0."""
        import psutil

        total = 0.0
        for child in psutil.Process().children(recursive=True) if self._process is not None else ():
            with contextlib.suppress(psutil.Error):
                total += sum(child.cpu_times()[:4])  # its own, and those of its children that have ended
        return total

    def close(self) -> None:
        """End the interpreter and everything that descends from it."""
        self._process = None
        self._ends.close()

    def _started(self, log: Path) -> "subprocess.Popen[bytes]":
        folder, lock = locked_folder("forks")
        self._ends.callback(remove, folder, lock)
        self._ends.callback(end_processes, [folder])
        with log.open("ab") as output:
            process = processes.start_program(
                [sys.executable, "-P", "-m", "storebench.worker"],
                env={**cell_environment(), **started_here(marked(folder, {}))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                bufsize=0,
            )
        self._ends.enter_context(process)
        self._ends.callback(process.kill)
        expend(process.pid)
        return process


def serve(main: Callable[[Sequence[str]], int]) -> int:
    """Answer once; fork a process for each request on standard input, and answer with its id and its exit code."""
    end_with_starter(signal.SIGTERM)
    for cached in (running_digest, running_checkout):  # of the code that has just been imported
        cached()
    os.write(1, b"0\n")
    for line in sys.stdin.buffer:
        request, variables = json.loads(line), started_here({})
        if not (pid := os.fork()):
            _become_fresh(request, variables)
            return main([request["job"]])
        os.write(1, b"%d\n" % pid)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return 0


def _become_fresh(request: dict[str, Any], variables: dict[str, str]) -> None:
    """Give this fork what a fresh process has: a session, mounts, an environment and an output of its own."""
    os.setsid()
    if request["namespace"]:
        private = _MS_REC | _MS_PRIVATE
        if LIBC.unshare(_CLONE_NEWNS) or LIBC.mount(b"none", b"/", None, private, None):
            raise OSError(ctypes.get_errno(), "no mount namespace of its own")
    os.environ.update(request["variables"])
    os.environ.update(variables)
    tempfile.tempdir = None
    written = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, request["log"], written)):
        file = os.open(path, flags, 0o666)
        os.dup2(file, number)
        os.close(file)
    os.dup2(1, 2)
