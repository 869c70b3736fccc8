"""The answer of a replicate that failed: one line for the record, the traceback for the log."""

import contextlib
import traceback

from storebench.errors import EXIT_INTEGRITY, CellFailedError, StorebenchError, from_os_error
from storebench.system.unexpected import summary
from storebench.worker.job import CellJob, write_answer

_LESS_MEMORY = "Use fewer workers, smaller batches or a smaller --size."


def answer_failure(job: CellJob, error: Exception) -> int:
    """Write why a job failed as its answer, and return the exit code of its process."""
    if isinstance(error, StorebenchError):
        return _expected(job, error)
    if isinstance(error, MemoryError):
        return _expected(job, CellFailedError("out of memory", hint=_LESS_MEMORY))
    _print_traceback(error)
    if isinstance(error, OSError) and error.errno is not None:
        return _expected(job, from_os_error(error, error.filename or job.run))
    answer = {"failure": f"unexpected error: {summary(error)}", "exit_code": EXIT_INTEGRITY, "see_log": True}
    return write_answer(job, answer, EXIT_INTEGRITY)


def _expected(job: CellJob, error: StorebenchError) -> int:
    return write_answer(job, {"failure": str(error), "exit_code": error.exit_code}, error.exit_code)


def _print_traceback(error: Exception) -> None:
    """Print the traceback into the log, unless the disk is full."""
    with contextlib.suppress(OSError):
        traceback.print_exception(error)
