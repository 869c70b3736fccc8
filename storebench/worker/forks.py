"""The interpreter that has imported everything: fork a process for each replicate of a group, which waits for its job."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from storebench.names import name_of_text
from storebench.probes.loop_mount import enter_own_namespace
from storebench.system.forking import Pages, file_pages, own_pages
from storebench.system.processes import mark_again

_LONGEST_NAME = 1 << 16


def job_of_a_fork(requests: Path) -> str | None:
    """Fork a process for each place in a file of requests, and return in each of them the name of its job."""
    places: list[dict[str, Any]] = json.loads(requests.read_bytes())
    touched = file_pages()
    for place in places:
        if os.fork() == 0:
            _become(place, [other["line"] for other in places if other is not place], touched)
            return _awaited(place["line"])
    os._exit(0)


def _become(place: dict[str, Any], others: list[int], touched: list[Pages]) -> None:
    """Make this fork a process of its own, as if it had been started for its place."""
    os.setsid()
    log = os.open(name_of_text(place["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    for line in others:
        os.close(line)
    scratch = Path(name_of_text(place["scratch"]))
    mark_again(scratch)
    if place["tmpdir"]:
        os.environ["TMPDIR"] = str(scratch)
        tempfile.tempdir = None
    if place["mounts"]:
        enter_own_namespace()
    np.random.seed()  # noqa: NPY002 - Python seeds its generator in a fork, NumPy leaves siblings with equal draws
    own_pages(touched)


def _awaited(line: int) -> str | None:
    """Say on a socket which process waits, and return the job that comes back; None if the runner has ended."""
    try:
        os.write(line, str(os.getpid()).encode())
        job = os.read(line, _LONGEST_NAME)
    except OSError:
        return None
    os.close(line)
    return os.fsdecode(job) or None
