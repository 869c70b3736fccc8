"""Calibrations: fixed pieces of work, one for each kind that bounds a benchmark, to compare its rounds with.

Each function returns a calibration: it does its work, which has nothing to do with the code
under test, and returns the seconds. `storebench.check.calibration` names the kinds and says which of
them carry over to another machine.
"""

import contextlib
import math
import mmap
import multiprocessing
import os
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from storebench.probes.page_cache import ask_to_evict
from storebench.probes.rates import take_once

BATCH = 64

Calibrate = Callable[[], float]
"""Do a fixed piece of work, independent of the code under test, and return its seconds."""

_BLOCK = 4096


def gather(shape: tuple[int, ...], samples: int, *, at_least_s: float = 0.004) -> Calibrate:
    """Return a calibration for readers: `samples` shuffled uint8 samples gathered by one copy, in batches of 64.

    The gathering is repeated for `at_least_s`, and the seconds of one pass are returned.
    """
    array = np.ones((samples, *shape), np.uint8)
    order = np.random.default_rng(0).permutation(samples)
    out = np.empty((BATCH, *shape), np.uint8)

    def work() -> None:
        for start in range(0, samples, BATCH):
            rows = order[start : start + BATCH]
            take_once(array, rows, out[: len(rows)])

    return _repeated(work, at_least_s)


def drop(paths: Iterable[Path]) -> None:
    """Ask the kernel once, without waiting, to evict the clean pages of files; mapped pages stay."""
    for path in paths:
        with path.open("rb") as file:
            ask_to_evict(file.fileno())


def device_reads(paths: Iterable[Path], payload_bytes: int, *, reads: int = 64) -> Calibrate:
    """Return a calibration for cold cells: O_DIRECT reads of one payload's size at shuffled places of the files.

    They bypass the page cache, so they are as cold in every round, and change nothing in it.

    Raises
    ------
    OSError
        From the calibration: the filesystem has no direct I/O (tmpfs), so no cell on it is cold either.
    """
    step = max(1, math.ceil(payload_bytes / _BLOCK)) * _BLOCK
    places = [(path, offset) for path in paths for offset in range(0, max(1, path.stat().st_size), step)]
    chosen = np.random.default_rng(0).permutation(len(places))[:reads]
    buffer = mmap.mmap(-1, step)  # anonymous memory is aligned, as O_DIRECT demands

    def once() -> float:
        with contextlib.ExitStack() as opened:
            files = {}
            for path in {places[number][0] for number in chosen}:
                files[path] = os.open(path, os.O_RDONLY | os.O_DIRECT)
                opened.callback(os.close, files[path])
            started = time.perf_counter()
            for number in chosen:
                path, offset = places[number]
                os.preadv(files[path], [buffer], offset)
            return time.perf_counter() - started

    return once


def inflate(*, at_least_s: float = 0.004) -> Calibrate:
    """Return a calibration for encoded images: zlib inflates a fixed 1 MiB of smooth pixels repeatedly.

    It is repeated for `at_least_s`, and the seconds of one pass are returned.
    """
    rows = np.cumsum(np.random.default_rng(0).integers(-2, 3, (1024, 1024)), axis=1).astype(np.uint8)
    packed = zlib.compress(rows.tobytes(), 6)
    return _repeated(lambda: zlib.decompress(packed), at_least_s)


def interpreter(*, at_least_s: float = 0.004) -> Calibrate:
    """Return a calibration for one library call or file per sample: a fixed loop of Python over small objects.

    It is repeated for `at_least_s`, and the seconds of one pass are returned.
    """

    def loop() -> None:
        kept: dict[int, bytes] = {}
        for number in range(5_000):
            kept[number % 64] = number.to_bytes(4, "big") + b"sample"

    return _repeated(loop, at_least_s)


def _repeated(work: Callable[[], object], at_least_s: float) -> Calibrate:
    def once() -> float:
        passes, started = 0, time.perf_counter()
        while True:
            work()
            passes += 1
            took_s = time.perf_counter() - started
            if took_s >= at_least_s:
                return took_s / passes

    return once


def matrix_product(side: int = 1024, repeats: int = 1) -> Calibrate:
    """Return a calibration for training: float32 products by torch, with as many threads as training has."""
    import torch

    left = torch.full((side, side), 1 / math.sqrt(side))

    def once() -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            left @ left
        return time.perf_counter() - started

    return once


def gather_in_processes(
    shape: tuple[int, ...], samples: int, workers: int
) -> tuple[Calibrate, Callable[[], None]]:
    """Return a calibration for loaders with workers, and a function that ends its processes.

    That many processes gather batches of 64 at the same time and send them through pipes: what
    this machine's cores and pipes can do at best at this moment, without the loader under test.
    """
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(workers)]
    share = samples // max(1, workers)
    processes = [
        context.Process(target=_gather_and_send, args=(theirs, shape, share), daemon=True)
        for _, theirs in ends
    ]
    for process, (_, theirs) in zip(processes, ends, strict=True):
        process.start()
        theirs.close()  # so that a process that dies causes an error here, not an endless wait
    ours = [end for end, _ in ends]
    for end in ours:
        end.recv()

    def once() -> float:
        started = time.perf_counter()
        for end in ours:
            end.send(True)
        for _ in range(0, share, BATCH):
            for end in ours:
                end.recv_bytes()
        return time.perf_counter() - started

    def close() -> None:
        for end, process in zip(ours, processes, strict=True):
            end.close()
            process.join(10)

    return once, close


def _gather_and_send(end: Any, shape: tuple[int, ...], samples: int) -> None:
    array = np.ones((samples, *shape), np.uint8)
    order = np.random.default_rng(0).permutation(samples)
    end.send("ready")
    with contextlib.suppress(EOFError, OSError):
        while end.recv():
            for start in range(0, samples, BATCH):
                end.send_bytes(np.take(array, order[start : start + BATCH], axis=0).reshape(-1).data)
