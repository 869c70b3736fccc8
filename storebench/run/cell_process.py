"""The process of one cell: started, waited for, ended with all of its descendants, and explained if it failed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
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
from storebench.units import format_bytes
from storebench.worker.forks import ForkServer
from storebench.worker.job import CellJob, job_text

# Time for a process to end by itself before it is killed.
GRACE_S = 3.0

_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/pymp-12345678/listener-12345678"
_SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where batch systems give jobs folders with long names


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
    tell: Tell = tell_nobody,
    server: ForkServer | None = None,
) -> dict[str, Any]:
    """Run a job and return its answer: "records" and "package", or "failure" in one line; no process outlives us.

    A job of one rank is a fork of `server`; others are processes of torchrun.
    """
    path = scratch / "job.json"
    path.write_text(job_text(job), encoding="utf-8")
    killed = _oom_kills()
    if server is not None and job.cell.ranks == 1:
        ending = _forked(server, job, path, log, around, tell)
    else:
        ending = _by_torchrun(job, path, log, around, tell)
    answer: dict[str, Any] = json.loads(job.out.read_text(encoding="utf-8")) if job.out.is_file() else {}
    if "records" in answer or (job.node and ending.code == 0):
        if log.is_file() and not log.stat().st_size:
            log.unlink()
        return answer if "records" in answer else {}
    sweep_segments()
    failure, see_log = ending.failure, ending.see_log
    if failure is None and ending.code is not None:
        # The output of a cell that is being killed only reports its own end.
        failure, see_log = answer.get("failure"), bool(answer.get("see_log"))
    if failure and see_log:
        failure = f"{failure}; see {log.parent.name}/{log.name}"
    failure = failure or _no_answer(ending.code, scratch, log, job.timeout_s)
    if job.cell.memory_bytes is not None and oom_kills(job.memory_group):
        limit = format_bytes(job.cell.memory_bytes)
        failure = (
            f"out of memory: the limit of {limit} was too small for the process itself: "
            f"the kernel killed it when no page cache was left to free; ask for more memory ({failure})"
        )
    elif "SIGKILL" in failure and _oom_kills() > killed:
        failure = (
            "out of memory: the kernel killed a process of the cell; use fewer workers, smaller batches or a smaller "
            f"--size, or give it more memory ({failure})"
        )
    return {"failure": failure, "consequence": ending.consequence, "position": ending.position}


def _forked(
    server: ForkServer, job: CellJob, path: Path, log: Path, around: Surroundings, tell: Tell
) -> JobEnding:
    """Run a job as a fork. Unless it succeeds, all of its descendants end with it."""
    scratch, deadline = path.parent, time.monotonic() + job.timeout_s
    try:
        process = server.fork(
            path,
            log,
            variables_of(scratch),
            number=job.replicate,
            namespace=around.image is not None,
            within_s=job.timeout_s,
        )
    except subprocess.TimeoutExpired:
        return JobEnding(code=None)
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return JobEnding(code=process.wait(min(1.0, left_s)))
            tell([Position.of(scratch, 0)])
        return JobEnding(code=None)
    finally:
        if process.poll() != 0:
            with Held():
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                server.close()


def _by_torchrun(job: CellJob, path: Path, log: Path, around: Surroundings, tell: Tell) -> JobEnding:
    """Run this node's ranks of a job. Unless they succeed, all of their descendants end with them."""
    scratch, folder = path.parent, path.parent / RANKS_DIR
    team = Team(ranks=job.cell.ranks, nodes=job.nodes, node=job.node, rendezvous=job.rendezvous)
    folder.mkdir()
    watch = RankWatch(folder, team, job.stall_s)
    command = agent_command(team, folder, ["-P", "-m", "storebench.worker", str(path)])
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
        ending = watch.wait(process, job.timeout_s, tell)
    finally:
        if process.poll() != 0:
            with Held():
                end(process)
                end_processes([scratch])
    collect_output(folder, log)
    return ending


def _oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory, in its own group or anywhere."""
    if (count := oom_kills()) is not None:
        return count
    of_machine = re.search(r"^oom_kill (\d+)", read_text("/proc/vmstat") or "", re.MULTILINE)
    return int(of_machine[1]) if of_machine else 0


def _no_answer(code: int | None, scratch: Path, log: Path, timeout_s: float) -> str:
    if code is None:
        more = "give it more time with --timeout, or timeout_s in the scenario"
        return f"the cell was killed: {NO_ANSWER_AFTER} {timeout_s:g} s; {more}"
    if code == EXIT_NOT_WRITTEN:
        return not_written(scratch.parent)
    how = f"exit code {code}" if code >= 0 else f"signal {signal_name(code)}"
    return f"the cell's process ended with {how}; see {log.parent.name}/{log.name}"
