"""What sampling residency costs the epoch that is sampled: ``python -m benchmarks.sampler``.

Cold epochs with the sampler and without it take turns. Exit code 1 where sampling costs more than 2% beyond doubt.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import ratio_words
from storebench.comparison import Ratio, compare
from storebench.datasets import DatasetSpec
from storebench.formats.registry import get_format, parse_backend
from storebench.loading.batch import EpochPlan, LoadJob
from storebench.loading.loader import ProcessLoader
from storebench.loading.order import epoch_order, split_batches
from storebench.manifest import Manifest
from storebench.probes.page_cache import evict
from storebench.probes.residency import ResidencyCurve, Sampler
from storebench.settings.backend import Backend
from storebench.stores.convert import BuildOptions, ensure_store
from storebench.training.loop import run_epoch
from storebench.training.steps import NoStep
from storebench.units import Better

BACKENDS = ("png", "hdf5", "leveldb", "lmdb", "lmdb:direct", "hdf5:direct")
SAMPLES, BATCH, ROUNDS = 5_000, 64, 20
MOST = 1.02


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch: its wall time, and what sampling it took; 0 points and seconds without a sampler."""

    seconds: float
    points: int = 0
    cpu_s: float = 0.0


def run(store: Path, backend: Backend, number: int, *, sampled: bool) -> Epoch:
    """Run one cold epoch."""
    manifest = Manifest.read(store)
    files = get_format(manifest.format).data_files(store)
    batches = split_batches(epoch_order(manifest.count, seed=0, epoch=number), BATCH)
    evict(files)
    with ProcessLoader(LoadJob(store=store, backend=backend, batch_size=BATCH), workers=0) as loader:
        loader.open()
        evict(files)
        sampler = Sampler(files) if sampled else None
        gc.collect()
        if sampler is not None:
            sampler.begin()
        start = time.perf_counter()
        run_epoch(loader.epoch(EpochPlan(epoch=number, batches=batches)), NoStep())
        seconds = time.perf_counter() - start
        curve = ResidencyCurve() if sampler is None else sampler.stop()
    return Epoch(seconds=seconds, points=len(curve.at_ns), cpu_s=curve.cpu_s or 0.0)


def measure(store: Path, backend: Backend, rounds: int) -> tuple[Ratio, list[Epoch]]:
    """Return sampled over unsampled time, paired by round, and the sampled epochs."""
    sides: dict[bool, list[Epoch]] = {True: [], False: []}
    for number in range(-1, rounds):
        for sampled in (True, False) if number % 2 else (False, True):
            done = run(store, backend, number + 1, sampled=sampled)
            if number >= 0:
                sides[sampled].append(done)
    plain, watched = ([one.seconds for one in sides[sampled]] for sampled in (False, True))
    return compare(plain, watched, better=Better.LOWER), sides[True]


def words(name: str, found: Ratio, epochs: Sequence[Epoch]) -> str:
    """Return one line: the ratio, its interval, and what the sampler itself used."""
    wall_s = sum(epoch.seconds for epoch in epochs)
    cores = sum(epoch.cpu_s for epoch in epochs) / wall_s
    points = sum(epoch.points for epoch in epochs) / len(epochs)
    return (
        f"{name:14} sampled over unsampled {ratio_words(found, 3)}, {found.rounds} rounds of {wall_s / len(epochs):.2f} s; "
        f"{points:.0f} points per epoch, {cores:.1%} of one core"
    )


def main() -> int:
    """Measure every backend and print the ratios."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each backend")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of the store")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, help="which backends")
    parser.add_argument("--stores", type=Path, help="where stores are kept; a temporary folder otherwise")
    arguments = parser.parse_args()
    spec = DatasetSpec(name="cifar10", limit=arguments.samples, synthetic=True)
    too_much = False
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.backends:
            backend = parse_backend(name)
            store = ensure_store(
                spec, backend, arguments.stores or Path(scratch), options=BuildOptions(verify=False)
            ).path
            found, epochs = measure(store, backend, arguments.rounds)
            print(words(name, found, epochs), flush=True)
            too_much |= found.low is not None and found.low > MOST
    return int(too_much)


if __name__ == "__main__":
    sys.exit(main())
