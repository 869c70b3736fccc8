"""The program of a replicate's process: import everything, then run the job."""

import atexit
import contextlib
import os
import signal
import sys
from pathlib import Path

from storebench.system.imports import uncollected


def _leave(code: int) -> None:
    """End the process as `sys.exit` does, but skip the teardown of its modules, which takes a tenth of a second."""
    atexit._run_exitfuncs()  # noqa: SLF001 - nothing public runs them; multiprocessing does the same in its children
    with contextlib.suppress(OSError):  # a log on a full disk: the answer is complete
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    waits = sys.argv[1] == "--wait"
    if waits and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to clean up yet, and nothing to say
    with uncollected():
        import pyarrow.parquet  # noqa: F401 - every job writes with it at its end, and each begins with the same memory

        from storebench.worker.replicate import main

        if waits:  # every job needs these
            from storebench.probes.code import running_checkout
            from storebench.worker.forks import job_of_a_fork
            from storebench.worker.job import job_reader

            job_reader()
            running_checkout()
    job = job_of_a_fork(Path(sys.argv[2])) if waits else sys.argv[1]
    _leave(main([job]) if job else 0)
