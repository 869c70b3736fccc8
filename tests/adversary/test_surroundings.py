"""Bad surroundings of a loader: the cell fails with a line that names the cause and says what to do."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from storebench.errors import CellFailedError
from storebench.formats import parse_backend
from storebench.loading.batch import LoadJob
from storebench.loading.loader import get_loader
from tests.support.quick_cli import SERVER, storebench

SIZE = ("--dataset", "cifar10", "--limit", "64", "--synthetic", "--stores", "stores")
SMALLER_THAN_A_BATCH = 100_000


def test_no_room_for_a_batch_in_shared_memory_is_one_line(tmp_path: Path) -> None:
    """A limit on the size of files holds for shared memory as well, and needs no root."""
    done = storebench(tmp_path, "convert", "files+raw", *SIZE[:-2], "--out", "stores")
    assert done.returncode == 0, done.stderr
    words = (
        "run",
        "files+raw",
        *SIZE,
        "--compute",
        "none",
        "--threads",
        "1",
        "--workers",
        "1",
        "--out",
        "run",
    )
    done = SERVER.run(*words, cwd=tmp_path, env=os.environ, largest_file=SMALLER_THAN_A_BATCH)
    assert done.returncode == 5, done.stderr
    assert "/dev/shm: no shared memory for a batch of 192 KiB: File too large" in done.stderr
    assert "ring and threads do without it" in done.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterator
def test_shared_memory_that_cannot_be_written_is_not_blamed_on_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **_more: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    loader = get_loader("processes")(LoadJob(store=tmp_path, backend=parse_backend("memory")), workers=1)
    line = "^/dev/shm: no shared memory for the queues of the workers: Read-only file system. "
    with pytest.raises(CellFailedError, match=line):
        loader.open()
    assert loader.close() == []
