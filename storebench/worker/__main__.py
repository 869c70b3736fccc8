"""The program of a replicate's process: import everything, then run the job, or fork a process for each job to come."""

import atexit
import contextlib
import os
import sys

from storebench.system.processes import uncollected

if __name__ == "__main__":
    with uncollected():
        import pyarrow.parquet  # noqa: F401 - every job writes with it at its end, and each begins with the same memory

        from storebench.worker.forks import serve
        from storebench.worker.replicate import main
    code = main(sys.argv[1:]) if sys.argv[1:] else serve(main)
    # End as `sys.exit` does, but skip the teardown of modules, which takes a tenth of a second.
    atexit._run_exitfuncs()  # noqa: SLF001 - nothing public runs them; multiprocessing does the same in its children
    with contextlib.suppress(OSError):  # a log on a full disk: the answer is complete
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
