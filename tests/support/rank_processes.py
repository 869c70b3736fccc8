"""Ranks of a job without torchrun: copies of this process that join a group of torch.distributed over gloo.

A copy need not import torch again, which takes longer than everything else that a test does. Tests of the launch start
torchrun.
"""

import functools
import gc
import importlib
import multiprocessing
import os
import tempfile
import traceback
import warnings
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

TIMEOUT_S = 60.0

T = TypeVar("T")


@functools.cache
def know_once() -> None:
    """Find out in this process what each of its copies would find out again: the code that runs, and the libraries."""
    code_facts("lmdb")
    environment(Path.cwd())


def in_ranks(ranks: int, work: Callable[[Group], T]) -> list[T]:
    """Run `work` in that many processes that are one group, and return what each returned, in rank order."""
    importlib.import_module("torch._dynamo")  # DistributedDataParallel imports it, and each copy would
    know_once()
    gc.freeze()  # so that no copy looks through it
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="sb-ranks-") as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(target=_rank, args=(rank, ranks, Path(folder), work, pipes[rank][1]))
            for rank in range(ranks)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # pytest-xdist has threads, which no rank needs
            for process in processes:
                process.start()
        try:
            answers = [_answer(receiver) for receiver, _ in pipes]
        finally:
            for process in processes:
                process.join(1 if process.is_alive() else None)
                process.kill()
                process.join()
    for answer in answers:
        assert not isinstance(answer, str), answer
    return [answer[0] for answer in answers if not isinstance(answer, str)]


def _answer(receiver: Connection) -> tuple[Any] | str:
    """Return what a rank sent: its value in a tuple, or what went wrong."""
    if not receiver.poll(TIMEOUT_S):
        return "a rank did not answer"
    answer: tuple[Any] | str = receiver.recv()
    return answer


def _rank(rank: int, ranks: int, folder: Path, work: Callable[[Group], T], sender: Connection) -> None:
    answer: tuple[T] | str
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
