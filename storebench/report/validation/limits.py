"""The limits of one record: rates below every ceiling, and bytes whose origin is accounted for."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from storebench.matrix import MODEL_CROPS
from storebench.probes.limited import LIMIT_HEADROOM
from storebench.probes.residency import SAMPLING_ERROR_FRAC
from storebench.report.texts.labels import size
from storebench.report.validation.findings import ROUNDING, Finding, Rule, finding
from storebench.results import BelowCache, PortionKind, Record
from storebench.settings.words import BOUNDED_STATES, CacheState, Share
from storebench.units import number_of

_HEADROOM = 1.25
"""A ceiling is measured for half a second, in which the machine may have been slower than during the epoch."""

_CPU_HEADROOM = 1.1
"""The timed steps may need less CPU time per sample than the epoch that is counted: 1.04 was seen with two workers on two cores."""

_CPU_BESIDE_S = 0.1
"""CPU seconds of each process that may belong to the begin and the end of an epoch instead of its samples."""

DEVICE_LEAST_FRAC = 0.9
"""Block layers and counters disagree by a few percent; if a tenth is missing, something else served it."""

_WARM_MOST_FRAC = 0.05
_WARM_MOST_BYTES = 16 << 20
_WARM_OTHER_BYTES = 2 << 20
"""What a warm epoch may take from a device: a share of the requested bytes or the first number of bytes, and at most the same share
of the store, which several passes request again, and the second number. The machine may reclaim pages, and read its libraries."""


@dataclass(frozen=True, kw_only=True)
class BestRates:
    """What memory and device can do at best, in bytes per second; None where no record says.

    Other work slows single measurements down, and a ceiling is the best that a machine can do.

    Attributes
    ----------
    memory
        The fastest memory that any replicate of the cell found.
    device
        The fastest device that any cell on the same device found; a run measures it once in many rounds.
    """

    memory: float | None = None
    device: float | None = None


def best_rates(records: Sequence[Record]) -> list[BestRates]:
    """Return the best rates that count for each of some records."""
    memory: dict[Hashable, float] = {}
    device: dict[Hashable, float] = {}
    for record in records:
        _keep_best(memory, _cell_of(record), record.ceilings.memory_bytes_per_s)
        _keep_best(device, _place_of(record), record.ceilings.device_best_bytes_per_s)
    return [
        BestRates(memory=memory.get(_cell_of(record)), device=device.get(_place_of(record)))
        for record in records
    ]


def _keep_best(best: dict[Hashable, float], key: Hashable, rate: float | None) -> None:
    if rate is not None:
        best[key] = max(rate, best.get(key, 0.0))


def _place_of(record: Record) -> Hashable:
    """Return the machine, file system and device of a record."""
    return record.environment and record.environment.key


def _cell_of(record: Record) -> Hashable:
    return _place_of(record), record.cell.cell_id


def check_limits(record: Record, best: BestRates | None = None) -> Iterator[Finding]:
    """Yield a finding for each figure of a usable record that is impossibly high or low.

    Parameters
    ----------
    record
        A record of a cell that ended.
    best
        The best rates that count for it (`best_rates`); None for the record's own.
    """
    [best] = best_rates([record]) if best is None else [best]
    if not record.cell.backend.is_null:
        yield from _cpu_ceiling(record)
        yield from _memory_ceiling(record, best.memory)
        yield from _device_ceiling(record, best.device)
        yield from _device_floor(record)
        yield from _warm_reads(record)
        yield from _limit(record)
    yield from _portion(record)


def _cpu_ceiling(record: Record) -> Iterator[Finding]:
    """Find a rate at which the epoch's CPU seconds per sample would need more cores than there are."""
    cores, spent_s = _cores(record), record.counters.cpu_s
    if cores is None or spent_s is None:
        return
    cpu_s = spent_s - _CPU_BESIDE_S * record.cell.ranks * (1 + record.cell.workers)
    if cpu_s <= 0:
        return
    nodes = record.job.nodes if record.job else 1
    most = nodes * cores * record.samples / cpu_s
    if record.samples_per_s > most * _CPU_HEADROOM:
        message = f"{record.samples_per_s:.4g}, but {number_of(nodes * cores, 'core')} do {most:.4g} at {1000 * cpu_s / record.samples:.3g} ms each"
        yield finding(Rule.CEILING, record, "samples_per_s", message)


def _memory_ceiling(record: Record, ceiling: float | None) -> Iterator[Finding]:
    """Find more bytes per second of fetching and decoding than a thread can copy into memory."""
    busy_s = (record.fetch_s + record.decode_s) * _readers(record)
    if ceiling is None:
        return
    copiers = max(1, record.cell.workers) * (record.cell.threads or 2**16) * record.cell.ranks
    together = ceiling * _HEADROOM * min(copiers, _cores(record) or copiers)
    if record.payload_bytes_per_s * rows_frac(record) * _columns_frac(record) > together:
        message = (
            f"{size(record.payload_bytes_per_s)} per second, above the {size(together)} that memory can give"
        )
        yield finding(Rule.CEILING, record, "payload_bytes_per_s", message)
    if not busy_s:
        return
    most = ceiling * _HEADROOM * _copying_s(record, busy_s)
    copied = record.payload_bytes * rows_frac(record) * _columns_frac(record)
    if copied > most:
        message = (
            f"{size(copied / busy_s)} per second of fetching and decoding, above the {size(most / busy_s)} that memory"
            " can give there"
        )
        yield finding(Rule.CEILING, record, "payload_bytes_per_s", message)


def _readers(record: Record) -> int:
    """Return the number of ranks that read. With one reader per node, the other ranks repeat its times."""
    if record.cell.share is Share.NODE and record.job is not None:
        return record.job.nodes
    return record.cell.ranks


def _cores(record: Record) -> int | None:
    cores = record.environment.match.get("cores") if record.environment else None
    return cores if isinstance(cores, int) else None


def rows_frac(record: Record) -> float:
    """Return the share of each image's rows that a reader must touch at least: some copy only the crop."""
    return _crop_frac(record, 0)


def _columns_frac(record: Record) -> float:
    return _crop_frac(record, 1)


def _crop_frac(record: Record, axis: int) -> float:
    side = MODEL_CROPS.get(record.cell.model)
    return 1.0 if side is None or record.store is None else min(1.0, side / record.store.image_shape[axis])


def _copying_s(record: Record, busy_s: float) -> float:
    """Return the seconds for which all threads together may have copied while producers were busy for `busy_s`.

    Several threads copy at once only on as many cores, and only in CPU time that was counted.
    """
    threads = min(record.cell.threads or 2**16, _cores(record) or record.cell.threads or 1)
    cpu_s = record.counters.cpu_s
    side_by_side = busy_s * max(1, threads)
    return side_by_side if cpu_s is None else min(side_by_side, max(cpu_s, busy_s))


def _device_ceiling(record: Record, best: float | None) -> Iterator[Finding]:
    """Find cold bytes that arrived faster than the device delivers at best."""
    cache, cold = record.cache, record.portion
    if best is None or cold is None or cache is None or cold.kind is not PortionKind.COLD or not cold.seconds:
        return
    if cache.below is BelowCache.SEEN and record.counters.device_read_bytes is not None:
        return  # a cache below the kernel may be faster; that a device delivered all of it is checked elsewhere
    spare = cold.excess_frac + (cache.resident_frac_before or 0.0)
    delivered = cold.payload_bytes * rows_frac(record) * max(0.0, 1 - spare) / cold.seconds
    if not cold.upper_bound and delivered > best * _HEADROOM:
        message = f"{size(delivered)} of cold data per second, but the device delivers {size(best)} at best"
        yield finding(Rule.CEILING, record, "portion.samples_per_s", message)


def _device_floor(record: Record) -> Iterator[Finding]:
    """Find an epoch for which the device delivered less than the page cache can have lacked."""
    cache, read = record.cache, record.counters.device_read_bytes
    if cache is None or cache.resident_frac_before is None or read is None:
        return
    if record.cell.cache not in BOUNDED_STATES or cache.applies_to == "open":
        return
    # Pages that a game reads first also hold samples of the training.
    read += _read_by_games(record)
    requested_bytes = record.payload_bytes * rows_frac(record)
    held, where = (
        requested_bytes * cache.resident_frac_before,
        f"{cache.resident_frac_before:.1%} of the store was resident",
    )
    if record.cell.cache == CacheState.LIMITED and record.epoch:
        # An epoch of some of the samples may request those that the one before left resident.
        held = (cache.limit_bytes or 0) * (record.job.nodes if record.job else 1)
        where = f"{size(held)} of memory were permitted"
    if read < (requested_bytes - held) * DEVICE_LEAST_FRAC:
        message = (
            f"{size(read)} came from the device, but {size(requested_bytes)} were requested and only {where}:"
            " something else held the data"
        )
        yield finding(Rule.CEILING, record, "device_read_bytes", message)


def _read_by_games(record: Record) -> int:
    """Return the bytes that the device delivered to the tournaments of a job."""
    trainers = record.job.trainers if record.job else None
    return (trainers.tournament_device_read_bytes or 0) if trainers else 0


def _warm_reads(record: Record) -> Iterator[Finding]:
    read, store = record.counters.device_read_bytes, record.store
    most = max(_WARM_MOST_BYTES, _WARM_MOST_FRAC * record.payload_bytes)
    if store is not None:
        nodes = record.job.nodes if record.job else 1
        on_disk = max(store.bytes_on_disk, store.file_bytes)
        most = min(most, nodes * (_WARM_OTHER_BYTES + _WARM_MOST_FRAC * on_disk))
    if record.cell.cache == CacheState.WARM and read is not None and read > most:
        message = f"called warm, but the device delivered {size(read)}, and {size(most)} are permitted"
        yield finding(Rule.CACHE, record, "device_read_bytes", message)


def _limit(record: Record) -> Iterator[Finding]:
    """Find moments at which a limited page cache held more than its limit."""
    cache, store, limit = record.cache, record.store, record.cell.memory_bytes
    if record.cell.cache != CacheState.LIMITED or cache is None or store is None or limit is None:
        return
    held = [point.resident_frac for point in cache.curve]
    most = max([*held, cache.resident_max_frac or 0.0]) * store.file_bytes
    error = min(cache.sampling_error_frac, SAMPLING_ERROR_FRAC) * store.file_bytes
    if most > LIMIT_HEADROOM * limit + error:
        message = f"{size(most)} of the store were resident, above the limit of {size(limit)}"
        yield finding(Rule.CACHE, record, "resident_max_frac", message)


def _portion(record: Record) -> Iterator[Finding]:
    """Find a portion that is not a part of its epoch, or whose figures contradict each other."""
    part = record.portion
    if part is None:
        return
    wanted = {CacheState.COLD: PortionKind.COLD, CacheState.LIMITED: PortionKind.STEADY}.get(
        record.cell.cache
    )
    if part.kind is not wanted:
        message = f"a {part.kind} portion in a cell whose cache state is {record.cell.cache}"
        yield finding(Rule.CACHE, record, "portion.kind", message)
    if not 0 < part.steps <= record.timed_steps or not 0 < part.samples <= record.timed_samples:
        message = (
            f"{part.steps} steps of {part.samples} samples, in an epoch of {record.timed_steps} timed ones"
        )
        yield finding(Rule.ARITHMETIC, record, "portion.steps", message)
        return
    explained = part.data_wait_s + part.h2d_s + part.compute_s
    if part.seconds <= 0 or abs(part.samples_per_s * part.seconds / part.samples - 1) > ROUNDING:
        message = f"{part.samples_per_s:.6g}, but {part.samples} samples took {part.seconds:.6g} s"
        yield finding(Rule.ARITHMETIC, record, "portion.samples_per_s", message)
    elif explained > part.seconds * (1 + ROUNDING) + 1e-6:
        message = f"wait, copy and compute add up to {explained:.6g} s, more than the {part.seconds:.6g} s"
        yield finding(Rule.ARITHMETIC, record, "portion.seconds", message)
