"""The process of one cell: started, waited for, ended with all of its descendants, and explained if it failed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from storebench.probes.cgroup import oom_kills
from storebench.probes.code import cell_environment
from storebench.probes.machine import read_text
from storebench.ranks.heartbeat import Position
from storebench.ranks.launch import (
    RANKS_DIR,
    JobEnding,
    RankWatch,
    Team,
    Tell,
    agent_command,
    collect_output,
    tell_nobody,
)
from storebench.record.schema import NO_ANSWER_AFTER
from storebench.run.resources import Surroundings
from storebench.system import processes
from storebench.system.interrupts import Held
from storebench.system.processes import end_processes, expend, marked, signal_name, started_here
from storebench.system.scratch import sweep_segments
from storebench.system.whole_files import EXIT_NOT_WRITTEN, not_written
from storebench.worker.forks import Fork, ForkServer
from storebench.worker.job import CellJob, job_text

# Time for a process to end by itself before it is killed.
GRACE_S = 3.0

_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/pymp-12345678/listener-12345678"
_SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where batch systems give jobs folders with long names


def program(*arguments: str) -> list[str]:
    """Return the arguments with which an interpreter becomes the process of a replicate."""
    return ["-P", "-m", "storebench.worker", *arguments]


@contextlib.contextmanager
def started(
    command: list[str], scratch: Path, log: Path, around: Surroundings
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a cell's process. Unless it succeeds, it ends with the with statement, and so do all of its descendants."""
    with log.open("ab") as output:
        process = processes.start_program(
            around.command(command),
            env={**cell_environment(), **variables_of(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        expend(process.pid)
        yield process
    finally:
        if process.poll() != 0:
            with Held():
                end(process)
                end_processes([scratch])


def exit_code(
    process: subprocess.Popen[bytes] | Fork, timeout_s: float, each_second: Callable[[], None]
) -> int | None:
    """Return the exit code of a process once it has ended, None if it ran out of time."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(1.0, left_s))
        each_second()
    return None


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, even a stopped one, and kill it if it does not; a process that has ended is no error."""
    process.terminate()
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def variables_of(scratch: Path) -> dict[str, str]:
    """Return the environment variables that differ between the processes that this one starts for temporary folders."""
    variables = started_here(marked(scratch, {}))
    # torch puts its sockets into the folder for temporary files, and the kernel accepts no longer path for one.
    places = (str(scratch), os.environ.get("TMPDIR", ""), *_SHORT_PLACES)
    short = (
        place
        for place in places
        if place and len(os.fsencode(place)) + len(_SOCKET_NAME) <= _SOCKET_PATH_BYTES
    )
    if (place := next((place for place in short if os.access(place, os.W_OK | os.X_OK)), None)) is not None:
        variables["TMPDIR"] = place
    return variables


def answer_of(
    job: CellJob,
    scratch: Path,
    log: Path,
    around: Surroundings,
    timeout_s: float,
    tell: Tell = tell_nobody,
    server: ForkServer | None = None,
) -> dict[str, Any]:
    """Run a job in a process of its own and return its answer: "records" and "package", or "failure" in one line."""
    (scratch / "job.json").write_text(job_text(job), encoding="utf-8")
    memory = OomWatch(job.memory_group)
    ending = _ending(job, scratch, log, around, timeout_s, tell, server)
    answer: dict[str, Any] = json.loads(job.out.read_text(encoding="utf-8")) if job.out.is_file() else {}
    if "records" in answer:
        return answer
    if job.node and ending.code == 0:
        return {}
    sweep_segments()
    failure, see_log = ending.failure, ending.see_log
    if failure is None and ending.code is not None:
        # The output of a cell that is being killed only reports its own end.
        failure, see_log = answer.get("failure"), bool(answer.get("see_log"))
    if failure and see_log:
        failure = f"{failure}; see {log.parent.name}/{log.name}"
    failure = failure or _no_answer(ending.code, scratch, log, timeout_s)
    explained = around.explained(failure, job.cell)
    if explained == failure and "SIGKILL" in failure and memory.killed():
        explained = (
            "out of memory: the kernel killed a process of the cell; use fewer workers, smaller batches or a smaller "
            f"--size, or give it more memory ({failure})"
        )
    return {"failure": explained, "consequence": ending.consequence, "position": ending.position}


def _ending(
    job: CellJob,
    scratch: Path,
    log: Path,
    around: Surroundings,
    timeout_s: float,
    tell: Tell,
    server: ForkServer | None,
) -> JobEnding:
    """Run a job in one process, or in as many as it has ranks, and return how that ended; they never outlive us."""
    path = scratch / "job.json"
    if not job.by_torchrun:
        command = [sys.executable, *program(str(path))]
        alone = (
            started(command, scratch, log, around)
            if server is None
            else _forked(server, job, scratch, log, around)
        )
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired), alone as process:
            code = exit_code(process, timeout_s, lambda: tell([Position.of(scratch, 0)]))
        return JobEnding(code=code)
    folder = scratch / RANKS_DIR
    team = Team(ranks=job.cell.ranks, nodes=job.nodes, node=job.node, rendezvous=job.rendezvous)
    folder.mkdir()
    watch = RankWatch(folder, team, job.stall_s)
    command = agent_command(team, folder, program(str(path)))
    with started(command, scratch, log, around) as process:
        ending = watch.wait(process, timeout_s, tell)
    collect_output(folder, log)
    return ending


class OomWatch:
    """Detect that the kernel killed a process because memory ran out."""

    def __init__(self, group: Path | None = None) -> None:
        self._groups = (None, group) if group is not None else (None,)
        self._before = self._count()

    def killed(self) -> bool:
        """Whether a kill happened since this watch was created."""
        return self._count() > self._before

    def _count(self) -> int:
        counts = [count for count in map(oom_kills, self._groups) if count is not None]
        if counts:
            return sum(counts)
        of_machine = re.search(r"^oom_kill (\d+)", read_text("/proc/vmstat") or "", re.MULTILINE)
        return int(of_machine[1]) if of_machine else 0


@contextlib.contextmanager
def _forked(
    server: ForkServer, job: CellJob, scratch: Path, log: Path, around: Surroundings
) -> Iterator[Fork]:
    """Start a job as a fork. Unless it succeeds, it ends with the with statement, and so do all of its descendants."""
    namespace = around.image is not None
    process = server.fork(
        scratch / "job.json",
        log,
        variables_of(scratch),
        number=job.replicate,
        namespace=namespace,
        within_s=job.timeout_s,
    )
    try:
        yield process
    finally:
        if process.poll() != 0:
            with Held():
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                server.close()


def _no_answer(code: int | None, scratch: Path, log: Path, timeout_s: float) -> str:
    if code is None:
        more = "give it more time with --timeout, or timeout_s in the scenario"
        return f"the cell was killed: {NO_ANSWER_AFTER} {timeout_s:g} s; {more}"
    if code == EXIT_NOT_WRITTEN:
        return not_written(scratch.parent)
    how = f"exit code {code}" if code >= 0 else f"signal {signal_name(code)}"
    return f"the cell's process ended with {how}; see {log.parent.name}/{log.name}"
