"""How long an emulated accelerator waits for a batch that is ready: fetched by the loop, or received ahead by a thread.

``python -m benchmarks.receiving [--rounds N]``

Both loaders are open at once and take turns. The loop sleeps between batches for so long that the workers keep up. The wait is
counted from the moment at which the loop asks for a batch that is whole by then.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

from storebench.datasets.base import DatasetSpec
from storebench.formats.registry import parse_backend
from storebench.loading.batch import EpochPlan, LoadJob
from storebench.loading.loader import Loader, ProcessLoader, ReceivingLoader
from storebench.loading.order import epoch_order, split_batches
from storebench.stats import compare
from storebench.stores.convert import ensure_store

SAMPLES = 2_000
WORKERS = 2
PAUSE_S = 0.02
STEPS = 25
SKIPPED = 2 * WORKERS
"""First batches of an epoch, for which the loop waits because they are being made."""

BATCHES = (8, 32, 64)


def waited_s(loader: Loader, plan: EpochPlan) -> float:
    """Return the median wait of an epoch for a batch that was ready, in seconds."""
    waits = []
    asked = time.perf_counter_ns()
    for number, batch in enumerate(loader.epoch(plan)):
        got = time.perf_counter_ns()
        if number >= SKIPPED and batch.spans.ready_ns <= asked:
            waits.append((got - asked) / 1e9)
        time.sleep(PAUSE_S)
        asked = time.perf_counter_ns()
    return statistics.median(waits)


def measure(job: LoadJob, batch_size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the waits of each round: for batches that the loop fetches, and for those that a thread received."""
    order = epoch_order(SAMPLES, seed=0, epoch=0)
    plan = EpochPlan(epoch=0, batches=split_batches(order, batch_size, STEPS))
    fetched: list[float] = []
    received: list[float] = []
    with contextlib.ExitStack() as stack:
        loaders: list[Loader] = [
            stack.enter_context(kind(job, workers=WORKERS)) for kind in (ProcessLoader, ReceivingLoader)
        ]
        for loader in loaders:
            loader.open()
            waited_s(loader, plan)
        for number in range(rounds):
            sides = list(zip(loaders, (fetched, received), strict=True))
            for loader, waits in sides if number % 2 else reversed(sides):
                waits.append(waited_s(loader, plan))
    return fetched, received


def main() -> None:
    """Print a line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--stores", type=Path, help="keep the store here")
    arguments = parser.parse_args()
    backend = parse_backend("lmdb")
    with tempfile.TemporaryDirectory() as temporary:
        spec = DatasetSpec(name="imagenet", size=SAMPLES)
        store = ensure_store(spec, backend, arguments.stores or Path(temporary))
        print(
            f"ImageNet, LMDB, {WORKERS} workers, sleeps of {1000 * PAUSE_S:g} ms, {arguments.rounds} rounds"
        )
        for batch_size in BATCHES:
            job = LoadJob(store=store.path, backend=backend, batch_size=batch_size)
            fetched, received = measure(job, batch_size, arguments.rounds)
            times = compare(fetched, received)
            print(
                f"  batches of {batch_size:>2}: fetched in {1000 * statistics.median(fetched):.2f} ms, received ahead"
                f" {1000 * statistics.median(received):.2f} ms: {times.ratio:.2f} times"
                f" [{times.low:.2f}, {times.high:.2f}] as long",
                flush=True,
            )


if __name__ == "__main__":
    main()
