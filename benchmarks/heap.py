"""How much faster a network trains on a CPU if the process keeps the memory that it frees: ``python -m benchmarks.heap [--rounds N]``.

Each side of a round is a process of its own with one thread of torch; the two take turns. A side counts with the median of
its steps. The factor is the time of a step with the memory kept over the time without, with Student's interval on logarithms.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from storebench.loading.batch import LOOP_WORKER, LoadedBatch, Spans
from storebench.settings.words import Compute
from storebench.stats import compare
from storebench.system.libc import keep_freed_memory
from storebench.training.models import get_model
from storebench.training.steps import make_step, warm_up

NETWORKS = {"lenet": (28, 28, 1), "cifar10_quick": (32, 32, 3), "caffenet": (227, 227, 3)}
"""The paper's networks -> shape of an image."""

BATCHES = {"lenet": 64, "cifar10_quick": 100, "caffenet": 2}
STEPS, SKIPPED = 12, 3


def side(network: str, *, keep: bool) -> tuple[float, float]:
    """Train in this process, and return the seconds and the page faults of the median step."""
    if keep and not keep_freed_memory():
        raise SystemExit("benchmarks.heap: this C library cannot keep freed memory; glibc can")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, size = NETWORKS[network], BATCHES[network]
    step = make_step(Compute("real"), get_model(network), shape, 10, "cpu")
    warm_up(step, (size, *shape))
    labels = np.arange(size, dtype=np.int64) % 10
    batch = LoadedBatch(
        pixels=torch.randint(0, 256, (size, *shape), dtype=torch.uint8),
        labels=labels,
        indices=labels,
        spans=Spans(start_ns=0, fetch_ns=0, decode_ns=0, prep_ns=0, ready_ns=0),
        payload_bytes=0,
        worker=LOOP_WORKER,
    )
    seconds, faults = [], []
    for _ in range(STEPS):
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        step.copy(batch)
        step.compute()
        seconds.append(time.perf_counter() - started)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(seconds[SKIPPED:]), statistics.median(faults[SKIPPED:])


def fresh(network: str, *, keep: bool) -> tuple[float, float]:
    """Run `side` in a new process, and return its seconds and page faults."""
    command = [sys.executable, "-m", "benchmarks.heap", "--side", network, *(["--keep"] if keep else [])]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(words[0]), float(words[1])


def main() -> None:
    """Print a line per network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--side", choices=NETWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(*side(arguments.side, keep=arguments.keep))
        return
    for network, size in BATCHES.items():
        given: list[tuple[float, float]] = []
        kept: list[tuple[float, float]] = []
        for number in range(arguments.rounds):
            for keep in (False, True) if number % 2 else (True, False):
                (kept if keep else given).append(fresh(network, keep=keep))
        times = compare([seconds for seconds, _ in given], [seconds for seconds, _ in kept])
        faults = [statistics.median(count for _, count in sides) for sides in (given, kept)]
        print(
            f"{network}, batches of {size}: a step takes {times.ratio:.2f} times [{times.low:.2f}, {times.high:.2f}] as"
            f" long if freed memory is kept, with {faults[1]:,.0f} page faults, not {faults[0]:,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
