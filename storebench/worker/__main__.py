"""The program of a replicate's process: import everything, then run the job.

The runner starts ``python -P -m storebench.worker JOB.json``, a fresh process for every replicate; in a job of ranks,
torchrun starts it once per rank. With ``--wait`` instead of a job, the process imports everything, says so on the
socket that is its standard input, and waits there for the name of its job. If the runner ends first, so does the process.
"""

import atexit
import contextlib
import os
import signal
import sys

from storebench.system.imports import uncollected

_LONGEST_NAME = 1 << 16


def _leave(code: int) -> None:
    """End the process as `sys.exit` does, but skip the teardown of its modules, which takes a tenth of a second."""
    atexit._run_exitfuncs()  # noqa: SLF001 - nothing public runs them; multiprocessing does the same in its children
    with contextlib.suppress(OSError):  # a log on a full disk: the answer is complete
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _ready_for(line: int) -> str | None:
    """Say on a socket that everything is imported, and return the job that comes back; None if the runner has ended."""
    try:
        os.write(line, b".")
        job = os.read(line, _LONGEST_NAME)
    except OSError:
        return None
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, line)
    os.close(nothing)
    return os.fsdecode(job) or None


if __name__ == "__main__":
    job: str | None = sys.argv[1]
    waits = job == "--wait"
    if waits and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to clean up yet, and nothing to say
    with uncollected():
        from storebench.probes.code import running_checkout
        from storebench.worker.job import job_reader
        from storebench.worker.replicate import main

        if waits:  # every job begins with these
            job_reader()
            running_checkout()
    if waits:
        job = _ready_for(sys.stdin.fileno())
    _leave(main([job]) if job else 0)
