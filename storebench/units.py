"""The definition of every metric (name, unit, direction, meaning), and sizes as people write them."""

import enum
import itertools
import re
from dataclasses import dataclass


class Better(enum.StrEnum):
    """The direction that is an improvement."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True)
class Metric:
    """A figure that storebench reports."""

    name: str
    label: str
    unit: str
    better: Better
    meaning: str


_LOW, _HIGH, _NONE = Better.LOWER, Better.HIGHER, Better.NEITHER

_ROWS = (
    ("samples_per_s", "throughput", "samples/s", _HIGH, "samples of the timed steps over their wall time"),
    ("payload_bytes_per_s", "payload rate", "bytes/s", _HIGH, "payload bytes asked for over wall time"),
    ("epoch_s", "epoch", "s", _LOW, "asking for the first batch to the end of the last step"),
    ("timed_s", "timed wall time", "s", _LOW, "first timed step to the end of the last"),
    ("data_wait_s", "data wait", "s", _LOW, "the loop was blocked on the loader"),
    ("h2d_s", "copy to device", "s", _LOW, "host-to-device copies; 0 on a CPU"),
    ("compute_s", "compute", "s", _LOW, "forward, backward and optimizer, the device synchronised"),
    ("overhead_s", "overhead", "s", _LOW, "what wait, copy and compute leave unexplained"),
    ("data_wait_frac", "data-wait fraction", "", _LOW, "data wait / (data wait + H2D + compute)"),
    ("accelerator_util_frac", "accelerator utilization", "", _HIGH, "compute / whole time"),
    ("fetch_s", "fetch", "s", _LOW, "bytes from the store into private memory, all producers"),
    ("decode_s", "decode", "s", _LOW, "bytes into pixels, all producers"),
    ("prep_s", "prep", "s", _LOW, "augment and collate, all producers"),
    ("handover_s", "handoff", "s", _LOW, "moving finished batches from producers to the loop"),
    ("time_to_first_batch_s", "first batch", "s", _LOW, "the first wait of the epoch"),
    ("open_s", "open", "s", _LOW, "opening the reader, the longest of the producers"),
    ("bytes_on_disk", "size on disk", "bytes", _LOW, "blocks allocated for the store's data files"),
    ("build_s", "build", "s", _LOW, "writing the store, from the first sample to synced"),
    ("test_accuracy", "test accuracy", "", _HIGH, "share of test samples classified correctly"),
    ("device_read_bytes", "device reads", "bytes", _LOW, "bytes that block devices delivered"),
    ("read_amplification", "read amplification", "", _LOW, "device bytes over payload bytes asked for"),
    ("major_faults", "major faults", "", _LOW, "page faults that waited for I/O"),
    ("minor_faults", "minor faults", "", _NONE, "page faults that did not wait"),
    ("read_calls", "read calls", "", _NONE, "read-like system calls"),
    (
        "cpu_s_per_sample",
        "processor time per sample",
        "s",
        _LOW,
        "processor seconds of the loop, its workers and all their threads over the epoch's samples",
    ),
    (
        "cores_used",
        "cores used",
        "",
        _NONE,
        "processor seconds of the loop, its workers and all their threads over the epoch's wall time",
    ),
    ("peak_rss_bytes", "peak memory", "bytes", _LOW, "largest resident sets, added up"),
)
METRICS = {metric.name: metric for metric in itertools.starmap(Metric, _ROWS)}
"""Metric by name."""


_MOST_BYTES = 2**62
_BYTES = {
    "B": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{letter}iB": 1 << (10 * power) for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
}


def parse_bytes(text: str) -> int:
    """Return a size such as "400 MiB" or "2GB" in bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a size: write a number with a unit, such as '400 MiB' or '2 GB'")
    size = float(match[1]) * _BYTES[match[2]]
    if size > _MOST_BYTES:
        raise ValueError(f"{text[:40]!r} is too large a size")
    return int(size)


def format_bytes(size: int) -> str:
    """Return a size in the unit that gives the shortest whole number, a binary one if there is a choice: "400 MiB", "100 GB"."""
    units = ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B")
    unit = min(
        (unit for unit in units if size % _BYTES[unit] == 0), key=lambda unit: len(str(size // _BYTES[unit]))
    )
    return f"{size // _BYTES[unit]} {unit}"


def rounded_bytes(size: float) -> str:
    """Return a size to about two digits, in MiB or GiB: "220 MiB", "1.3 GiB"."""
    mib = size / 2**20
    if mib >= 1000:
        return f"{mib / 1024:,.1f} GiB"
    return f"{mib:,.0f} MiB" if mib >= 1 else f"{mib:.1g} MiB"


_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
_MOST_SECONDS = 1e9


def parse_duration(text: str) -> float:
    """Return a time such as "90 s", "12 min" or "1.5 h" in seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"{text[:40]!r} is no time: write a number with a unit, such as '90 s' or '12 min'")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= _MOST_SECONDS:
        raise ValueError(f"{text[:40]!r} is no time that a run can take")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a time in the largest unit that it fills twice: "90 s", "12 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number_of(count: int, noun: str) -> str:
    """Return "1 cell", "2 cells"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
