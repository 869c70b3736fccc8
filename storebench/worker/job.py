"""The job of a replicate's process and its answer, and the files that carry them."""

import contextlib
import dataclasses
import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.errors import EXIT_INTEGRITY, CellFailedError, StorebenchError, from_os_error
from storebench.plain_text import name_of_text, text_of_name
from storebench.probes.code import package_folder
from storebench.ranks.launch import MOST_WAIT_S
from storebench.record.lines import record_to_dict
from storebench.record.schema import Cell, Record
from storebench.system.unexpected import summary
from storebench.system.whole_files import EXIT_NOT_WRITTEN, write_message


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """One replicate to run."""

    cell: Cell
    replicate: int
    run_id: str
    run: Path
    tables: Path
    store: Path
    test_store: Path | None = None
    out: Path
    ceilings: bool = True
    drop_caches: bool = False
    memory_group: Path | None = None
    tier_group: Path | None = None
    image: Path | None = None
    url: str = ""
    counters: str = ""
    stall_s: float = 600.0
    timeout_s: float = 21_600.0
    nodes: int = 1
    node: int = 0
    rendezvous: str = ""

    @property
    def wait_s(self) -> float:
        """Most seconds that ranks wait for each other; the launcher ends hanging ranks sooner."""
        return min(self.timeout_s, MOST_WAIT_S)


def read_job(path: Path) -> CellJob:
    from pydantic import TypeAdapter

    job = TypeAdapter(CellJob).validate_json(path.read_bytes())
    paths = {name: value for name, value in vars(job).items() if isinstance(value, Path)}
    changed: dict[str, Any] = {name: Path(name_of_text(str(path))) for name, path in paths.items()}
    return dataclasses.replace(job, **changed)


def job_text(job: CellJob) -> str:
    # JSON is text, but names of folders may be any bytes.
    fields = {**dataclasses.asdict(job), "cell": job.cell.fields()}
    return json.dumps(fields, default=lambda value: text_of_name(str(value)))


def write_records(job: CellJob, records: Sequence[Record]) -> int:
    """Write the answer of a job that succeeded, and return the exit code."""
    answer = {"records": [record_to_dict(record) for record in records], "package": str(package_folder())}
    return write_answer(job, answer, 0)


def write_answer(job: CellJob, answer: dict[str, Any], exit_code: int) -> int:
    """Write the answer and return the exit code, or `EXIT_NOT_WRITTEN` if the answer cannot be written."""
    try:
        write_message(job.out, answer)
    except OSError:
        return EXIT_NOT_WRITTEN
    return exit_code


def failed_answer(job: CellJob, error: Exception) -> tuple[dict[str, Any], int]:
    """Return the failure of a job and its exit code, and print the traceback of an unexpected error."""
    if isinstance(error, MemoryError):
        less = "Use fewer workers, smaller batches or a smaller --size."
        error = CellFailedError("out of memory", hint=less)
    elif not isinstance(error, StorebenchError):
        with contextlib.suppress(OSError):  # the disk may be full
            traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno is not None:
        error = from_os_error(error, error.filename or job.run)
    if isinstance(error, StorebenchError):
        return {"failure": str(error)}, error.exit_code
    return {"failure": f"unexpected error: {summary(error)}", "see_log": True}, EXIT_INTEGRITY
