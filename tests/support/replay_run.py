"""Record replicates that were measured before, as the runner does; a fault ends it at each file operation in turn."""

import dataclasses
import errno
import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storebench.errors import EXIT_INTERRUPTED, StorebenchError
from storebench.runs.folder import Run
from storebench.runs.lock import claimed
from tests.support.copies import Copy

OPERATIONS = ("fsync", "rename", "replace", "write", "unlink")


def replay(measured: Path, folder: Path) -> None:
    """Go on with the run in `folder`, with the records and step tables of `measured` in the place of cells."""
    known, run = Run.read(measured).recorded(), Run.resume(folder)
    with claimed(folder):
        run.repair()
        recorded = run.recorded()
        for work in run.left(retry_failed=True):
            with run.attempt() as tables:
                records = [dataclasses.replace(one, run_id=run.run_id) for one in known[work.key]]
                for record in records:
                    shutil.copy(measured / str(record.steps_file), tables)
                run.record(records, tables, again=work.key in recorded)
        run.finish()


def plant(operation: str, fault: str, point: int) -> None:
    """Let the n-th call of os.`operation` in this process fail, or end it; a write gets to three fifths."""
    real, calls = getattr(os, operation), itertools.count(1)

    def planted(*arguments: Any, **options: Any) -> Any:
        if next(calls) != point:
            return real(*arguments, **options)
        if operation == "write":
            real(arguments[0], bytes(arguments[1])[: len(arguments[1]) * 3 // 5])
        elif fault == "interrupt":
            real(*arguments, **options)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise KeyboardInterrupt

    setattr(os, operation, planted)


def ended(measured: Path, folder: Path) -> int:
    """Go on with a run; return the exit code that the command line would end with."""
    try:
        replay(measured, folder)
    except StorebenchError as error:
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def points(
    measured: Path, begun: Path, out: Path, fault: str, *, first: int, every: int
) -> Iterator[tuple[str, int]]:
    """Yield how processes ended that went on with a run, each with a fault at another call of an operation of files.

    For each operation and n = `first`, `first` + `every`, ... the run `begun` is copied to ``OUT/OPERATION-n``, and a copy
    of this process goes on with it until its n-th call of os.OPERATION, where `fault` happens: "kill", "full" (ENOSPC) or
    "interrupt". No fault reaches the last one of an operation. Yields the folder's name and the exit code.
    """
    for operation in OPERATIONS:
        for point in itertools.count(first, every):
            folder = shutil.copytree(begun, out / f"{operation}-{point}")

            def go_on(operation: str = operation, point: int = point, folder: Path = folder) -> int:
                plant(operation, fault, point)
                return ended(measured, folder)

            code = Copy(go_on).wait()
            yield folder.name, code
            if code == 0:
                break
