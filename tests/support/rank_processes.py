"""Ranks of a job without torchrun: copies of this process that join a group of torch.distributed over gloo.

Tests of the launch start torchrun.
"""

import contextlib
import functools
import multiprocessing
import os
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from storebench.formats.origin import code_facts
from storebench.probes.environment import environment
from storebench.ranks.group import Group, TorchGroup
from storebench.ranks.membership import Membership
from tests.support.copies import RANKS, copy_of, import_now

TIMEOUT_S = 60.0

T = TypeVar("T")


def in_ranks(ranks: int, work: Callable[[Group], T]) -> list[T]:
    """Run `work` in that many processes that are one group, and return what each returned, in rank order."""
    code_facts("lmdb")  # so that no copy finds them out again
    environment(Path.cwd())
    import_now(RANKS[1:])
    with tempfile.TemporaryDirectory(prefix="sb-ranks-") as folder:
        pipes = [multiprocessing.Pipe(duplex=False) for _ in range(ranks)]
        copies = [
            copy_of(functools.partial(_rank, rank, ranks, Path(folder), work, sender))
            for rank, (_, sender) in enumerate(pipes)
        ]
        try:
            answers: list[Any] = [
                receiver.recv() if receiver.poll(TIMEOUT_S) else "a rank did not answer"
                for receiver, _ in pipes
            ]
        finally:
            for copy in copies:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    copy.wait(1)
                copy.kill()
                copy.wait()
    for answer in answers:
        assert not isinstance(answer, str), answer
    return [answer for [answer] in answers]


def _rank(rank: int, ranks: int, folder: Path, work: Callable[[Group], T], sender: Connection) -> None:
    answer: Any
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks
        )
        answer = (work(TorchGroup(Membership(rank=rank, ranks=ranks, local_rank=rank, local_ranks=ranks))),)
    except BaseException:  # noqa: BLE001 - the test shows it
        answer = f"rank {rank}: {traceback.format_exc()}"
    sender.send(answer)
    sender.close()
    os._exit(0)
