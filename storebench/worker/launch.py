"""The process of one cell: started in a fresh interpreter, ended with its descendants, and explained if it failed.

It never outlives the runner. The kernel signals it when the runner ends, and the runner locks the temporary folder that
it works in, so the next start of storebench finds what a killed runner left and ends it (`storebench.system.scratch`).
If memory runs out, the cell ends, not the runner.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from storebench.probes.cgroup import oom_kills
from storebench.probes.code import cell_environment
from storebench.probes.machine import read_text
from storebench.surroundings import Surroundings
from storebench.system.interrupts import Held
from storebench.system.processes import end_processes, expend, marked
from storebench.system.scratch import sweep_segments
from storebench.worker.job import EXIT_NO_ANSWER, CellJob, write_job

GRACE_S = 3.0
"""Time for a process to end by itself before it is killed."""

_NO_ANSWER_AFTER = "no answer after"
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/pymp-12345678/listener-12345678"


def answer_of(
    job: CellJob, scratch: Path, log: Path, around: Surroundings, timeout_s: float
) -> dict[str, Any]:
    """Run a job in a fresh process and return its answer: "records" and "package", or "failure" in one line.

    Parameters
    ----------
    scratch
        A folder for the process, including its temporary files.
    log
        File to which the process's output is appended.
    timeout_s
        Seconds after which the process is killed with its descendants.
    """
    write_job(job, scratch / "job.json")
    memory = OomWatch(job.memory_group)
    code = _fresh_process(scratch / "job.json", log, around, timeout_s)
    answer: dict[str, Any] = json.loads(job.out.read_text(encoding="utf-8")) if job.out.is_file() else {}
    if "records" in answer:
        return answer
    sweep_segments()
    # The output of a cell that is being killed only reports its own end.
    reported = None if code is None else answer.get("failure")
    if reported and answer.get("see_log"):
        reported = f"{reported}; see {log.parent.name}/{log.name}"
    failure = reported or _no_answer(code, scratch, log, timeout_s)
    return {"failure": _with_memory(around.explained(failure, job.cell), failure, memory)}


class OomWatch:
    """Detect that the kernel killed a process because memory ran out.

    It checks the control group of this process and the given one; if neither counts kills, the whole machine.
    """

    def __init__(self, group: Path | None = None) -> None:
        self._groups = (None, group) if group is not None else (None,)
        self._before = self._count()

    def killed(self) -> bool:
        """Return whether a kill happened since this watch was created."""
        return self._count() > self._before

    def _count(self) -> int:
        counts = [count for count in map(oom_kills, self._groups) if count is not None]
        return sum(counts) if counts else _machine_oom_kills()


def _machine_oom_kills() -> int:
    for line in (read_text("/proc/vmstat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0


def _with_memory(explained: str, failure: str, memory: OomWatch) -> str:
    """Return the reason of a failure, with memory named if the kernel killed a process for it."""
    if explained != failure or "SIGKILL" not in failure or not memory.killed():
        return explained
    return (
        "out of memory: the kernel killed a process of the cell; use fewer workers, smaller batches or a smaller "
        f"--size, or give it more memory ({failure})"
    )


def _fresh_process(job: Path, log: Path, around: Surroundings, timeout_s: float) -> int | None:
    """Run one job in a fresh interpreter and return its exit code, None if it ran out of time; it never outlives us.

    Its remaining descendants end as well, before their control group is removed.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            around.command([sys.executable, "-P", "-m", "storebench.worker.replicate", str(job)]),
            env=_environment(job.parent),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        expend(process.pid)
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() != 0:
            with Held():
                end(process)
                end_processes([job.parent])


def end(process: subprocess.Popen[Any], grace_s: float = GRACE_S) -> None:
    """Ask a process to end, even a stopped one, and kill it if it does not; a process that has ended is no error."""
    process.terminate()
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(scratch: Path) -> dict[str, str]:
    variables = marked(scratch, cell_environment())
    # torch puts its sockets into the folder for temporary files, and the kernel accepts no longer path for one.
    if len(os.fsencode(scratch)) + len(_SOCKET_NAME) <= _SOCKET_PATH_BYTES:
        variables["TMPDIR"] = str(scratch)
    return variables


def out_of_time(timeout_s: float) -> str:
    """Return the reason and the advice for a process that was killed after `timeout_s`."""
    return (
        f"{_NO_ANSWER_AFTER} {timeout_s:g} s; give it more time with --timeout, or timeout_s in the scenario"
    )


def ran_out_of_time(failure: str) -> bool:
    """Return whether a failure is that of a process that was killed because of its time limit."""
    return _NO_ANSWER_AFTER in failure


def ending(code: int) -> str:
    """Return the words for an exit code: the code itself, or the signal."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _no_answer(code: int | None, scratch: Path, log: Path, timeout_s: float) -> str:
    if code is None:
        return f"the cell was killed: {out_of_time(timeout_s)}"
    if code == EXIT_NO_ANSWER:
        return f"{scratch.parent}: the disk is full; free some space, or name another folder with TMPDIR"
    return f"the cell's process ended with {ending(code)}; see {log.parent.name}/{log.name}"
