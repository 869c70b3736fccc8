"""Facts of one record that contradict each other: a highest rate and the rates, a ratio and its parts."""

from collections.abc import Iterator

from storebench.report.validation.findings import ROUNDING, Finding, Rule, agree, finding
from storebench.results import CacheFacts, Ceilings, Record

_DEVICE_RATES = (
    "device_random_1_bytes_per_s",
    "device_random_4_bytes_per_s",
    "device_random_16_bytes_per_s",
    "device_random_32_bytes_per_s",
    "device_sequential_bytes_per_s",
)


def check_agreement(record: Record) -> Iterator[Finding]:
    """Yield every fact of a usable record that another fact of it contradicts."""
    if record.cache is not None:
        yield from _residency(record, record.cache)
    if record.ceilings is not None:
        yield from _ceilings(record, record.ceilings)
    yield from _read_ahead(record)
    yield from _amplification(record)


def _residency(record: Record, cache: CacheFacts) -> Iterator[Finding]:
    """Find a largest residency that is below a sampled one."""
    most = max((point.resident_frac for point in cache.curve), default=0.0)
    if cache.resident_max_frac is not None and cache.resident_max_frac < most - ROUNDING:
        message = f"{cache.resident_max_frac:.4g} at most, but {most:.4g} was sampled"
        yield finding(Rule.CACHE, record, "cache.resident_max_frac", message)


def _ceilings(record: Record, ceilings: Ceilings) -> Iterator[Finding]:
    """Find a highest rate that is not the highest of the rates behind it."""
    rates = [rate for name in _DEVICE_RATES if (rate := getattr(ceilings, name)) is not None]
    best = ceilings.device_best_bytes_per_s
    if best is not None and rates and not agree(best, max(rates)):
        message = f"{best:.6g}, but the highest rate of the device is {max(rates):.6g}"
        yield finding(Rule.CEILING, record, "ceilings.device_best_bytes_per_s", message)
    gather, copied = ceilings.gather_samples_per_s, ceilings.copy_ceiling_samples_per_s
    if gather is not None and copied is not None and gather > copied * (1 + ROUNDING):
        message = f"{gather:.6g} is above the ceiling of copying, {copied:.6g}, which is the fastest of several ways"
        yield finding(Rule.CEILING, record, "ceilings.gather_samples_per_s", message)


def _read_ahead(record: Record) -> Iterator[Finding]:
    """Find a device of the cell's own whose read-ahead is not the cell's."""
    device = record.environment.notes.get("own_device") if record.environment else None
    wanted = record.cell.readahead_kib
    if wanted is None or not isinstance(device, dict):
        return
    if device.get("read_ahead_kb") != str(wanted):
        message = f"{device.get('read_ahead_kb')}, but the cell's read-ahead is {wanted} KiB"
        yield finding(Rule.CACHE, record, "environment.notes.own_device.read_ahead_kb", message)


def _amplification(record: Record) -> Iterator[Finding]:
    """Find a read amplification that is not the delivered bytes over the requested ones."""
    counters = record.counters
    if counters is None or counters.read_amplification is None or record.job is not None:
        return
    read, requested = counters.device_read_bytes, record.payload_bytes
    if read is None or requested <= 0:
        return
    if not agree(counters.read_amplification, read / requested):
        message = (
            f"{counters.read_amplification:.6g}, but {read} bytes were delivered and {requested} requested"
        )
        yield finding(Rule.ARITHMETIC, record, "counters.read_amplification", message)
