"""A model of LMDBIO's ladder beyond one machine, compared with 1 to 8 processes: ``python -m benchmarks.scaling_io``.

From the cells of one reader process, and the device's rate at 16 reads at a time, the model says for P processes

    rate(P) = min(P * rate(1), max(rate(1), device / (amplification * bytes per sample)), cores / CPU seconds per sample)

and for the way that loads everything first (LMM) the time of loading once, and then the same without the device. What
follows for N machines on one shared filesystem is a range as wide as the model was wrong here.

Exit codes: 0 estimates were printed, 2 the run has no cells for the model, 4 there is no estimate for a dataset.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.errors import EXIT_INCONCLUSIVE, EXIT_OK, DataNotFoundError, StorebenchError
from storebench.results import Record, Status
from storebench.runs.records import read_records
from storebench.settings.words import ComputeKind

PROCESSES = 8
"""Reader processes of each machine in the outlook."""

MOST_ERROR = 2.0
"""Beyond this factor between measured and predicted rates, nothing is estimated for many machines."""

_HINT = "Name a run of scenarios/lmdbio.toml."


def number(value: float) -> str:
    """Return two significant digits."""
    return f"{float(f'{value:.2g}'):,g}"


Cells = dict[tuple[str, int], list[Record]]
"""Records by backend and number of reader processes."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What one process measured with one way to read."""

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
    rate = min(processes * way.rate, _cpu_rate(way, place))
    if not way.load_s:
        # One process has shown that the device gives at least this much to this way of reading.
        rate = min(rate, max(way.rate, _device_rate(way, place, place.device_bytes_per_s)))
    return way.load_s + samples / rate


def cluster_seconds(way: Way, place: Place, machines: int, samples: int, shared_bytes_per_s: float) -> float:
    """Return the seconds that `machines` take for one epoch from a shared filesystem, each with `PROCESSES` readers."""
    if way.load_s:
        load_s = max(way.load_s, machines * place.store_bytes / shared_bytes_per_s)
        rate = machines * min(PROCESSES * way.rate, _cpu_rate(way, place))
        return load_s + samples / rate
    alone = samples / seconds(way, place, PROCESSES, samples)
    return samples / min(machines * alone, _device_rate(way, place, shared_bytes_per_s))


def _device_rate(way: Way, place: Place, bytes_per_s: float) -> float:
    return bytes_per_s / (max(way.amplification, 1.0) * place.sample_bytes)


def _cpu_rate(way: Way, place: Place) -> float:
    return place.cores / way.cpu_s if way.cpu_s else math.inf


def way_of(records: Sequence[Record]) -> Way:
    """Return the medians of the replicates of a cell with one process."""
    loads = records[0].cache.applies_to == "open"
    return Way(
        rate=statistics.median(record.samples_per_s or 0.0 for record in records),
        cpu_s=statistics.median(
            ((record.counters.cpu_user_s or 0.0) + (record.counters.cpu_system_s or 0.0)) / record.samples
            for record in records
        ),
        amplification=statistics.median(record.counters.read_amplification or 0.0 for record in records),
        load_s=statistics.median(record.open_s for record in records) if loads else 0.0,
    )


def place_of(records: Sequence[Record]) -> Place:
    """Return the machine as the run's ceilings and environment have it."""
    first = records[0]
    rates = [rate for record in records if (rate := record.ceilings.device_random_16_bytes_per_s)]
    cores = first.environment.match.get("cores") if first.environment else None
    if not rates or cores is None or first.store is None:
        what = "rate of the device at 16 reads at a time" if cores and first.store else "machine or store"
        lack = f"the records hold no {what}"
        raise DataNotFoundError(lack, where=first.cell.data.name, hint=_HINT)
    return Place(
        cores=int(cores),
        device_bytes_per_s=statistics.median(rates),
        sample_bytes=first.store.payload_bytes / first.store.count,
        store_bytes=first.store.file_bytes,
    )


def print_check(cells: Cells, place: Place) -> float:
    """Print measured over predicted time for each way and number of processes; return the worst error, 0 if there is none."""
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
        rates = f"{number(predicted):>12} {number(measured):>12}"
        print(f"  {backend:44} {processes:>9} {rates}  {number(ratio)}")
    return worst


def print_outlook(
    cells: Cells, place: Place, machines: int, shared_bytes_per_s: float, *, error: float
) -> None:
    """Print what follows for one epoch of the whole store on many machines: what the model says, times and over its error."""
    samples = next(iter(cells.values()))[0].store
    assert samples is not None
    print(f"\n  {machines} machines, {PROCESSES} readers each, {shared_bytes_per_s / 1e9:g} GB/s shared:")
    compared = {backend for backend, processes in cells if processes > 1}
    ways = {
        backend: way_of(records)
        for (backend, processes), records in cells.items()
        if processes == 1 and backend in compared
    }
    took = {
        name: cluster_seconds(way, place, machines, samples.count, shared_bytes_per_s)
        for name, way in ways.items()
    }
    slowest = max(took.values())
    for name, time_s in sorted(took.items(), key=lambda pair: -pair[1]):
        rate = samples.count / time_s
        ends = f"{number(rate / error)} to {number(rate * error)} samples/s"
        print(f"  {name:44} {ends:>32}, {number(slowest / time_s):>5} times the slowest")


def refusal(dataset: str, machines: int, error: float) -> str:
    """Return why nothing is estimated for a dataset, and the remedy; "" if the model is good enough."""
    lead = f"{dataset}: no estimate for {machines} machines: "
    if not error:
        return (
            f"{lead}no way to read was measured with 1 reader process and with more, so the model's error is unknown."
            " Measure both: workers = [1, 2, 4, 8]."
        )
    if error > MOST_ERROR:
        return (
            f"{lead}on one machine the model is off by a factor of {number(error)} at worst, and beyond"
            f" {MOST_ERROR:g} nothing follows from it. Measure again on an idle machine, with more replicates or at most as"
            " many reader processes as cores."
        )
    return ""


def datasets_of(run: Path) -> dict[str, tuple[Cells, Place]]:
    """Return the cells for the model in a run, and their place, by dataset."""
    found: dict[str, list[Record]] = {}
    for record in read_records(run):
        cell = record.cell
        reads = cell.cache == "cold" and cell.compute.kind is ComputeKind.NONE
        if record.status is Status.OK and reads and cell.workers and cell.ranks == 1:
            found.setdefault(cell.data.name, []).append(record)
    datasets: dict[str, tuple[Cells, Place]] = {}
    for dataset, records in found.items():
        cells: Cells = {}
        for record in records:
            cells.setdefault((record.cell.backend.name, record.cell.workers), []).append(record)
        datasets[dataset] = cells, place_of(records)
    if not datasets:
        raise DataNotFoundError(
            'no cold cell of reader processes that computes nothing (compute = "none", workers = 1 and more)',
            where=run,
            hint=_HINT,
        )
    return datasets


def main() -> int:
    """Read a run of scenarios/lmdbio.toml and print both tables for each dataset."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of scenarios/lmdbio.toml")
    parser.add_argument("--machines", type=int, default=64)
    parser.add_argument("--shared-gb-per-s", type=float, default=25.0)
    options = parser.parse_args()
    if options.machines < 1 or not 0 < options.shared_gb_per_s < math.inf:
        parser.error("--machines and --shared-gb-per-s must be positive")
    try:
        datasets = datasets_of(options.run)
    except StorebenchError as error:
        print(f"scaling_io: {error}", file=sys.stderr)
        return error.exit_code
    code = EXIT_OK
    for dataset, (cells, place) in datasets.items():
        gives = f"the device gives {number(place.device_bytes_per_s / 1e9)} GB/s, 16 reads at a time"
        print(f"\n{dataset}, cold: {gives}")
        worst = print_check(cells, place)
        if refused := refusal(dataset, options.machines, worst):
            code = EXIT_INCONCLUSIVE
            print(f"scaling_io: {refused}", file=sys.stderr)
            continue
        print(f"  the model is off by a factor of {number(worst)} at worst")
        print_outlook(cells, place, options.machines, options.shared_gb_per_s * 1e9, error=worst)
    return code


if __name__ == "__main__":
    sys.exit(main())
