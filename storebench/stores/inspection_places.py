"""Random reads of a file in several folders, round by round; nothing is written but the copies that are asked for."""

import contextlib
import copy
import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from storebench.datasets.containers.base import Container
from storebench.errors import DataNotFoundError, UsageError, from_os_error
from storebench.probes.counters import CounterProbe
from storebench.probes.machine import mount_of
from storebench.probes.page_count import PAGE_BYTES, resident
from storebench.probes.rates import device_rates
from storebench.settings.words import LOCAL, CacheState, Place
from storebench.stores.inspection import (
    LIMIT_S,
    MEMORY_BYTES,
    MOST_RESIDENT_FRAC,
    SCAN_S,
    Inspection,
    first_of,
    not_cold,
)
from storebench.system.isolated import run_isolated
from storebench.system.scratch import scratch_folder

ROUNDS = 5  # as many as a verdict needs
BATCH = 16
ROUND_S = 1.0  # about the time of the cold reads of a round, where the file is
DEVICE_S = 0.1

# Cache state -> place -> figure -> value of each round.
Measured = dict[CacheState, dict[str, dict[str, dict[tuple[str, int], float]]]]


@contextlib.contextmanager
def placed(text: str, places: Sequence[str]) -> Iterator[dict[str, Container]]:
    """Yield a file where it is, and in other folders, by the place in words; copies end with the context."""
    here = first_of(text)
    try:
        wanted = [place for place in map(Place, places) if place != LOCAL]
    except ValueError as error:
        raise UsageError(str(error), where="--place") from None
    if len({(place != place.folder, os.path.realpath(place.folder)) for place in wanted}) < len(wanted):
        raise UsageError("it names a folder twice", where="--place")
    there = {place: _checked(place, here) for place in wanted}
    there = {
        place: of for place, of in there.items() if of is None or not of.files[0].samefile(here.files[0])
    }
    with contextlib.ExitStack() as copies:
        containers = {str(here.files[0].parent): here}
        for place, container in there.items():
            containers[place] = container or copies.enter_context(_copied(here, Path(place.folder)))
        yield {f"{name} ({mount_of(of.files[0]).fstype})": of for name, of in containers.items()}


def _checked(place: Place, here: Container) -> Container | None:
    """Return the container in a folder; None if it has to be copied there, and can be."""
    folder, path = Path(place.folder), here.files[0]
    sizes = [file.stat().st_size for file in here.files]
    if not place.folder or not folder.is_dir():
        what = "there is no such folder" if place.folder else "a file is inspected in folders"
        raise UsageError(what, where=place, hint="Name a folder from /, or copy:FOLDER.")
    if place != place.folder:
        if not os.access(folder, os.W_OK | os.X_OK) or shutil.disk_usage(folder).free < sum(sizes):
            raise UsageError(f"no copy of {sum(sizes):,} bytes can be written here", where=folder)
        return None
    names = (folder / path.name, folder / path.parent.name / path.name)
    if (name := next((name for name in names if name.is_file()), None)) is None:
        hint = f"'copy:{folder}' copies it there first."
        raise DataNotFoundError(f"there is no {path.name} here", where=folder, hint=hint)
    container = first_of(name, here.asked)
    if [file.stat().st_size for file in container.files] != sizes:
        raise UsageError(f"not of the size of {path}", where=name, hint="Name copies of one file.")
    return container


@contextlib.contextmanager
def _copied(here: Container, folder: Path) -> Iterator[Container]:
    with scratch_folder("copied", folder) as scratch:
        try:
            for file in here.files:
                target = scratch / file.relative_to(here.files[0].parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        except OSError as error:
            raise from_os_error(error, folder) from error
        yield first_of(scratch / here.files[0].name, here.asked)


def side_by_side(
    containers: dict[str, Container], inspection: Inspection, samples: int
) -> tuple[Measured, list[str]]:
    """Return the figures of the same reads in each place, and a line for each state that a place cannot hold."""
    took = [reads.median_s for reads in (inspection.cold, inspection.warm) if reads and reads.median_s]
    count = max(BATCH, min(samples, int(ROUND_S / took[0]))) if took else BATCH
    return run_isolated(
        partial(_measured, containers, count, (inspection.sample_bytes or (1, 1, 1))[1]),
        doing="reading it in several places",
        where=inspection.path,
        limit_s=LIMIT_S * len(containers),
        memory_bytes=MEMORY_BYTES,
    )


def _measured(containers: dict[str, Container], count: int, sample_bytes: int) -> tuple[Measured, list[str]]:
    scanned = {name: _scanned(container) for name, container in containers.items()}
    numbers = range(min(len(container.classes.labels) for container in scanned.values()))
    measured: Measured = {CacheState.COLD: {}, CacheState.WARM: {}}
    reasons: dict[tuple[str, CacheState], str] = {}
    for number in range(ROUNDS):
        rng = random.Random(number)
        items = rng.sample(numbers, min(count, len(numbers)))
        for name in rng.sample([*containers], len(containers)):
            container = scanned[name]
            single = device_rates(container.files, sample_bytes, limit_s=DEVICE_S).single_requests
            reads = {f"read {p}, µs": 1e6 * single[f"read_1_{p}_s"] for p in ("p50", "p99") if single}
            for state, places in measured.items():
                values, why = _read(container, items, state)
                if why:
                    reasons.setdefault((name, state), why)
                    continue
                for figure, value in (values | reads).items():
                    places.setdefault(name, {}).setdefault(figure, {})["", number] = value
    in_order = {
        state: {name: on[name] for name in containers if name in on} for state, on in measured.items()
    }
    return in_order, [f"{n}, {s}: left out: {w}" for (n, s), w in reasons.items() if n not in measured[s]]


def _scanned(container: Container) -> Container:
    """Return a container whose samples are known, and which is not open: mapped pages cannot be evicted."""
    scanned = copy.copy(container)
    scanned.deadline = time.perf_counter() + SCAN_S
    scanned.scan()
    return copy.copy(scanned)


def _read(container: Container, items: Sequence[int], state: CacheState) -> tuple[dict[str, float], str]:
    """Return the figures of some reads, and the reason why the state was not held; warm ones repeat the cold ones."""
    files = container.files_of(items)
    why_not = not_cold(files) if state is CacheState.COLD else ""
    if state is CacheState.WARM:
        sum(_batches(container, items))
    before, probe = resident(files).pages_resident or 0, CounterProbe([os.getpid()], files[0])
    probe.start()
    begun, batches = time.perf_counter(), _batches(container, items)
    read_bytes, first_s = next(batches), time.perf_counter() - begun
    read_bytes += sum(batches)
    seconds = time.perf_counter() - begun
    device_reads = probe.stop().block_device_reads
    came = (resident(files).pages_resident or 0) - before
    if state is CacheState.WARM and came * PAGE_BYTES > MOST_RESIDENT_FRAC * read_bytes:
        why_not = f"{came} pages came into the page cache meanwhile"
    figures = {
        "images/s": len(items) / seconds,
        "MiB/s": read_bytes / seconds / 2**20,
        "first batch, ms": 1000 * first_s,
    }
    return figures | ({} if device_reads is None else {"device requests/s": device_reads / seconds}), why_not


def _batches(container: Container, items: Sequence[int]) -> Iterator[int]:
    """Read samples in batches through a new reader, and yield the bytes of each batch."""
    reader = copy.copy(container)
    for at in range(0, len(items), BATCH):
        values = reader.read_many(items[at : at + BATCH])
        yield sum(len(value) if isinstance(value, bytes) else value.nbytes for value in values)
