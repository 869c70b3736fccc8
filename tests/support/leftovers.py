"""Checks that the suite leaves no files outside of pytest's folders; those in memory are named for it."""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from storebench.system.scratch import sweep

MEMORY = Path("/dev/shm")
_MEMORY_PREFIX = "storebench-test-"
_OURS = ("pymp-", "storebench-", "sb-")
"""Prefixes of names from multiprocessing, storebench and its tests. Caches of libraries have other names."""

_REPORT = "storebench-error-"
"""Reports of unexpected errors stay for their reader."""


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Let this process and all that it starts put temporary files into a folder of their own, which is removed.

    Its path is short, so that there is room for the names of sockets.
    """
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="sb-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # some tests continue as another user
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir, variable = before
            if variable is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = variable


def left_in(folder: Path, *, within_s: float = 2.0) -> list[str]:
    """Return our names in a folder for temporary files, without those that the next start of storebench sweeps.

    Processes that are just ending get `within_s` seconds to remove theirs.
    """
    deadline = time.monotonic() + within_s
    while True:
        sweep(folder)
        names = sorted(path.name for path in folder.iterdir() if path.name.startswith(_OURS))
        names = [name for name in names if not name.startswith(_REPORT)]
        if not names or time.monotonic() > deadline:
            return names
        time.sleep(0.05)


def name_in_memory() -> Path:
    """Return an unused path in memory that names this process; paths of processes that were killed are removed."""
    for path in MEMORY.glob(f"{_MEMORY_PREFIX}*"):
        owner = path.name.removeprefix(_MEMORY_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove(path)
    return MEMORY / f"{_MEMORY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
