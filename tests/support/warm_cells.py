"""Cells that need no interpreter of their own: each runs in a copy of a process that has imported torch already.

What a cell does, counts, writes and returns is the same; the second and a half of importing is missing, and the machine's
ceilings are measured for a moment only (`tests.support.short_yardsticks`). The ranks of a job are copies as well: the agent
that runs torchrun is a copy of the runner, and starts copies of itself. Tests of the launch itself, of
what kills a cell, and of limited memory start interpreters (`storebench.run.launch`).
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from storebench.probes.code import cell_environment
from storebench.ranks import agent, nodes
from storebench.ranks import rendezvous as board
from storebench.ranks.launch import AGENT
from storebench.run import launch
from storebench.run.launch import end, started, variables_of
from storebench.run.resources import Surroundings
from storebench.system.interrupts import Held
from storebench.system.processes import expend, fork_when_settled
from storebench.worker import replicate
from storebench.worker.forks import Fork, ForkServer
from tests.support.copies import Copy, become
from tests.support.short_yardsticks import shorten

_fork = ForkServer.fork


def warm_fork(
    server: ForkServer, job: Path, log: Path, variables: dict[str, str], *, namespace: bool, **more: Any
) -> Copy | Fork:
    """Start a job as a copy of this process.

    A cell with a memory limit or a device of its own gets a copy of a fresh one: its memory and its mounts are counted.
    """
    if namespace or json.loads(job.read_text(encoding="utf-8"))["memory_group"] is not None:
        return _fork(server, job, log, variables, namespace=namespace, **more)
    with log.open("ab") as output:
        process = Copy(functools.partial(_cell, job, {**cell_environment(), **variables}, output.fileno()))
    expend(process.pid)
    return process


def _variables(scratch: Path) -> dict[str, str]:
    return {**cell_environment(), **variables_of(scratch)}


def _cell(job: Path, variables: Mapping[str, str], output: int) -> int:
    become(variables, out=output, error=output)
    shorten()
    return replicate.main([str(job)])


@contextlib.contextmanager
def warm_agent(
    command: Sequence[str], scratch: Path, log: Path, around: Surroundings
) -> Iterator[Copy | subprocess.Popen[bytes]]:
    """Start the agent of a job of ranks as a copy of this process; whatever else is started gets a fresh one."""
    if AGENT not in command or around.group is not None or around.image is not None:
        with started(list(command), scratch, log, around) as fresh:
            yield fresh
        return
    arguments = command[command.index(AGENT) + 1 :]
    with log.open("ab") as output:
        process = Copy(functools.partial(_agent, arguments, _variables(scratch), output.fileno()))
    try:
        expend(process.pid)
        yield process
    finally:
        if process.poll() != 0:
            with Held():
                _end_all(process)


def _end_all(process: Copy) -> None:
    """End an agent as the launcher does, and then its ranks, which cannot be found by their environment."""
    ranks: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        ranks = psutil.Process(process.pid).children(recursive=True)
    end(process)  # type: ignore[arg-type]
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()


def _agent(arguments: Sequence[str], variables: Mapping[str, str], output: int) -> int:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    become(variables, out=output, error=output)
    # Or a rank may wait for ever: the store's thread looks up the name of each rank that connects, and holds the resolver's lock.
    fork_when_settled()
    with mock.patch.object(subprocess_handler.SubprocessHandler, "_popen", _started_rank):
        return agent.main(arguments)


def _started_rank(handler: Any, command: Sequence[str], variables: Mapping[str, str]) -> Copy:
    """Start a rank, in the place of ``SubprocessHandler._popen`` of torchrun."""
    streams = handler._stdout.fileno(), handler._stderr.fileno()
    return Copy(functools.partial(_rank, command[-1], variables, streams), session=True)


def _rank(job: str, variables: Mapping[str, str], streams: tuple[int, int]) -> int:
    become(variables, out=streams[0], error=streams[1])
    shorten()
    return replicate.main([job])


class BoardProcess(Copy):
    """The process beside a node's runner that reaches the board, with the arguments of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        (commands, ours), (theirs, answers) = os.pipe(), os.pipe()

        def work() -> int:
            os.close(ours)
            os.close(theirs)
            os.dup2(commands, 0)
            sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the life of the copy
            become(env, out=answers, error=os.open(os.devnull, os.O_WRONLY))
            return board.main(command[command.index(board.__name__) + 1 :])

        super().__init__(work)
        os.close(commands)
        os.close(answers)
        self.stdin = os.fdopen(ours, "w", encoding="utf-8")
        self.stdout = os.fdopen(theirs, encoding="utf-8")


@contextlib.contextmanager
def warm_cells() -> Iterator[None]:
    """Let every cell of a run in this process run in a copy of it, and so every rank."""
    copying = types.SimpleNamespace(**vars(subprocess) | {"Popen": BoardProcess})
    with (
        mock.patch.object(ForkServer, "fork", warm_fork),
        mock.patch.object(launch, "started", warm_agent),
        mock.patch.object(nodes, "subprocess", copying),
    ):
        yield
