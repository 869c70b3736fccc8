"""A model of LMDBIO's ladder beyond one machine, compared with 1 to 8 processes: ``python -m benchmarks.scaling_io``.

From the cells of one reader process the model takes, for each way to read: samples per second, CPU seconds per sample and
read amplification; and from the same run the device's rate, 16 reads at a time. It then says for P processes

    rate(P) = min(P * rate(1), max(rate(1), device / (amplification * bytes per sample)), cores / CPU seconds per sample)

and for the way that loads everything first (LMM) the time of loading once, and then the same without the device.
Printed are measured over predicted for each number of processes that the run has, and then what follows for N
machines on one shared filesystem of a given bandwidth, which nobody has measured here.

    python -m benchmarks.scaling_io RUN [--machines 64] [--shared-gb-per-s 25]
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.results import Record, Status
from storebench.runs.records import read_records
from storebench.settings.words import ComputeKind

PROCESSES = 8
"""Reader processes of each machine in the outlook."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What one process measured with one way to read.

    Attributes
    ----------
    rate
        Samples a second, without loading.
    cpu_s
        CPU seconds per sample, user and system, of the loop and its reader.
    amplification
        Bytes read over bytes asked for.
    load_s
        Loading before the first sample; 0 for ways that read as they go.
    """

    rate: float
    cpu_s: float
    amplification: float
    load_s: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """The machine, and the samples."""

    cores: int
    device_bytes_per_s: float
    sample_bytes: float
    store_bytes: float


def seconds(way: Way, place: Place, processes: int, samples: int) -> float:
    """Return the seconds that `processes` of one machine take for `samples` in the model."""
    rate = min(processes * way.rate, place.cores / way.cpu_s)
    if not way.load_s:
        # One process has shown that the device gives at least this much to this way of reading.
        rate = min(rate, max(way.rate, _device_rate(way, place, place.device_bytes_per_s)))
    return way.load_s + samples / rate


def cluster_seconds(way: Way, place: Place, machines: int, samples: int, shared_bytes_per_s: float) -> float:
    """Return the seconds that `machines` take for one epoch from a shared filesystem, each with `PROCESSES` readers."""
    if way.load_s:
        load_s = max(way.load_s, machines * place.store_bytes / shared_bytes_per_s)
        rate = machines * min(PROCESSES * way.rate, place.cores / way.cpu_s)
        return load_s + samples / rate
    alone = samples / seconds(way, place, PROCESSES, samples)
    return samples / min(machines * alone, _device_rate(way, place, shared_bytes_per_s))


def _device_rate(way: Way, place: Place, bytes_per_s: float) -> float:
    return bytes_per_s / (max(way.amplification, 1.0) * place.sample_bytes)


def way_of(records: Sequence[Record]) -> Way:
    """Return the medians of the replicates of a cell with one process."""
    loads = records[0].cache.applies_to == "open"
    return Way(
        rate=statistics.median(record.samples_per_s for record in records),
        cpu_s=statistics.median(
            ((record.counters.cpu_user_s or 0.0) + (record.counters.cpu_system_s or 0.0)) / record.samples
            for record in records
        ),
        amplification=statistics.median(record.counters.read_amplification or 0.0 for record in records),
        load_s=statistics.median(record.open_s for record in records) if loads else 0.0,
    )


def place_of(records: Sequence[Record]) -> Place:
    """Return the machine as the run's ceilings and environment have it."""
    rates = [record.ceilings.device_random_16_bytes_per_s for record in records]
    first = records[0]
    assert first.environment is not None, "the records name no machine"
    assert first.store is not None, "the records name no store"
    return Place(
        cores=int(first.environment.match["cores"]),
        device_bytes_per_s=statistics.median(rate for rate in rates if rate),
        sample_bytes=first.store.payload_bytes / first.store.count,
        store_bytes=first.store.file_bytes,
    )


def print_check(cells: dict[tuple[str, int], list[Record]], place: Place) -> float:
    """Print measured over predicted time for each way and number of processes; return the worst error."""
    worst = 0.0
    print(f"  {'way':44} {'processes':>9} {'predicted':>12} {'measured':>12}  measured/predicted rate")
    for (backend, processes), records in sorted(cells.items()):
        if (backend, 1) not in cells:
            continue
        way = way_of(cells[backend, 1])
        samples = records[0].timed_samples
        predicted = samples / seconds(way, place, processes, samples)
        measured = statistics.median(
            record.timed_samples / (record.timed_s + (record.open_s if way.load_s else 0.0))
            for record in records
        )
        ratio = measured / predicted
        if processes > 1:
            worst = max(worst, ratio, 1 / ratio)
        print(f"  {backend:44} {processes:>9} {predicted:>12,.0f} {measured:>12,.0f}  {ratio:.2f}")
    return worst


def print_outlook(
    cells: dict[tuple[str, int], list[Record]], place: Place, machines: int, shared_bytes_per_s: float
) -> None:
    """Print what follows for one epoch of the whole store on many machines."""
    samples = next(iter(cells.values()))[0].store
    assert samples is not None
    print(f"\n  {machines} machines, {PROCESSES} readers each, {shared_bytes_per_s / 1e9:.0f} GB/s shared:")
    ways = {backend: way_of(records) for (backend, processes), records in cells.items() if processes == 1}
    took = {
        name: cluster_seconds(way, place, machines, samples.count, shared_bytes_per_s)
        for name, way in ways.items()
    }
    slowest = max(took.values())
    for name, time_s in sorted(took.items(), key=lambda pair: -pair[1]):
        print(
            f"  {name:44} {samples.count / time_s:>14,.0f} samples/s, {slowest / time_s:8.1f} times the slowest"
        )


def main() -> None:
    """Read a run of scenarios/lmdbio.toml and print both tables for each dataset."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of scenarios/lmdbio.toml")
    parser.add_argument("--machines", type=int, default=64)
    parser.add_argument("--shared-gb-per-s", type=float, default=25.0)
    options = parser.parse_args()
    records = [
        record
        for record in read_records(options.run)
        if record.status is Status.OK
        and record.cell.cache == "cold"
        and record.cell.compute.kind is ComputeKind.NONE
    ]
    for dataset in dict.fromkeys(record.cell.data.name for record in records):
        mine = [record for record in records if record.cell.data.name == dataset]
        cells: dict[tuple[str, int], list[Record]] = {}
        for one in mine:
            cells.setdefault((one.cell.backend.name, one.cell.workers), []).append(one)
        place = place_of(mine)
        print(
            f"\n{dataset}, cold: the device gives {place.device_bytes_per_s / 1e9:.2f} GB/s, 16 reads at a time"
        )
        worst = print_check(cells, place)
        print(f"  the model is off by a factor of {worst:.2f} at worst")
        print_outlook(cells, place, options.machines, options.shared_gb_per_s * 1e9)


if __name__ == "__main__":
    main()
