"""The answer of a replicate that failed: one line for the record, the traceback for the log."""

import contextlib
import dataclasses
import traceback
from dataclasses import dataclass

from storebench.errors import EXIT_INTEGRITY, CellFailedError, StorebenchError, from_os_error
from storebench.system.unexpected import summary
from storebench.worker.job import CellJob, write_answer

_LESS_MEMORY = "Use fewer workers, smaller batches or a smaller --size."


@dataclass(frozen=True, kw_only=True)
class FailedAnswer:
    """Why a replicate failed."""

    failure: str
    exit_code: int
    see_log: bool = False


def answer_failure(job: CellJob, error: Exception) -> int:
    """Write why a job failed as its answer, and return the exit code of its process."""
    answer = failed_answer(job, error)
    return write_answer(job, dataclasses.asdict(answer), answer.exit_code)


def failed_answer(job: CellJob, error: Exception) -> FailedAnswer:
    """Return why a job failed, and print the traceback of an unexpected error."""
    if isinstance(error, StorebenchError):
        return _expected(error)
    if isinstance(error, MemoryError):
        return _expected(CellFailedError("out of memory", hint=_LESS_MEMORY))
    _print_traceback(error)
    if isinstance(error, OSError) and error.errno is not None:
        return _expected(from_os_error(error, error.filename or job.run))
    return FailedAnswer(failure=f"unexpected error: {summary(error)}", exit_code=EXIT_INTEGRITY, see_log=True)


def _expected(error: StorebenchError) -> FailedAnswer:
    return FailedAnswer(failure=str(error), exit_code=error.exit_code)


def _print_traceback(error: Exception) -> None:
    """Print the traceback into the log, unless the disk is full."""
    with contextlib.suppress(OSError):
        traceback.print_exception(error)
