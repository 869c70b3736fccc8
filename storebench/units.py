"""Sizes and times as people write them."""

import enum
import re
from collections.abc import Mapping


class Better(enum.StrEnum):
    """The direction that is an improvement."""

    HIGHER = "higher"
    LOWER = "lower"


_MOST_BYTES = 2**62
_BYTES = {
    "B": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{letter}iB": 1 << (10 * power) for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
}


def _in_units(text: str, units: Mapping[str, float]) -> float | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    return float(match[1]) * units[match[2]] if match and match[2] in units else None


def parse_bytes(text: str) -> int:
    """Return a size such as "400 MiB" or "2GB" in bytes."""
    size = _in_units(text, _BYTES)
    if size is None:
        raise ValueError(f"{text!r} is not a size: write a number with a unit, such as '400 MiB' or '2 GB'")
    if size > _MOST_BYTES:
        raise ValueError(f"{text[:40]!r} is too large a size")
    return int(size)


def format_bytes(size: int) -> str:
    """Return a size in the unit, better a binary one, that gives the shortest whole number: "400 MiB", "100 GB"."""
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
    seconds = _in_units(text, _SECONDS)
    if seconds is None:
        raise ValueError(f"{text[:40]!r} is no time: write a number with a unit, such as '90 s' or '12 min'")
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
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"
