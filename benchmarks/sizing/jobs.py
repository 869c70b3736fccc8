"""Start a job of parameter servers, on emulated nodes where root permits, else on this machine."""

import contextlib
import dataclasses
import json
import math
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.nodes.cluster import emulated
from benchmarks.nodes.limits import Limits
from benchmarks.nodes.tools import why_not
from benchmarks.sizing.servers import Job
from storebench.errors import CellFailedError
from storebench.probes.code import cell_environment
from storebench.run.launch import end
from storebench.system.interrupts import Held
from storebench.system.processes import started_here
from storebench.system.scratch import temporary_place

_PORT = 29_200


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job runs: its nodes in words, the bandwidth of their links, and how a rank is started on each."""

    words: str
    bytes_per_s: float
    waits: bool
    commands: Sequence[Sequence[str]]
    variables: Mapping[str, str]


def here(ranks: int, link_bytes_per_s: float) -> Place:
    """Return this machine, whose links are emulated by waiting."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return Place(
        words="loopback, links emulated by waiting",
        bytes_per_s=link_bytes_per_s,
        waits=True,
        commands=[[sys.executable, "-P"]] * ranks,
        variables={**cell_environment(), **variables},
    )


@contextlib.contextmanager
def place(ranks: int, link_bytes_per_s: float) -> Iterator[Place]:
    """Set up nodes with the bandwidth that their links reach."""
    if why_not(temporary_place()):
        yield here(ranks, link_bytes_per_s)
        return
    limits = Limits(link_bytes_per_s=link_bytes_per_s, device_bytes_per_s=(math.inf,) * ranks)
    with emulated(limits) as cluster:
        first = cluster.nodes[0]
        yield Place(
            words="emulated nodes",
            bytes_per_s=statistics.median(cluster.probe().sent_bytes_per_s),
            waits=False,
            commands=[node.python() for node in cluster.nodes],
            variables={**first.variables, "MASTER_ADDR": first.address, "MASTER_PORT": str(_PORT)},
        )


def run(job: Job, place: Place) -> list[float]:
    """Run a job, and return the seconds of a step of each phase."""
    if place.waits:
        job = dataclasses.replace(job, link_bytes_per_s=place.bytes_per_s)
    arguments = ("-m", "benchmarks.sizing.servers", json.dumps(dataclasses.asdict(job)))
    processes: list[subprocess.Popen[str]] = []
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    try:
        for rank, command in enumerate(place.commands):
            numbers = {"RANK": str(rank), "WORLD_SIZE": str(job.ranks)}
            variables = started_here({**place.variables, **numbers})
            processes.append(subprocess.Popen([*command, *arguments], env=variables, text=True, **pipes))
        while not any(codes := [process.poll() for process in processes]):
            if None not in codes:
                taken: list[float] = json.loads(processes[0].communicate()[0])
                return taken
            time.sleep(0.05)
        rank, failed = next((rank, one) for rank, one in enumerate(processes) if one.poll())
        lines = failed.communicate()[1].strip().splitlines() or [f"exit code {failed.returncode}"]
        raise CellFailedError(f"rank {rank} of the parameter-server job failed ({lines[-1]})")
    finally:
        with Held():
            for process in processes:
                end(process)
