"""How a file is read ahead, as the options of the direct readers say it."""

from collections.abc import Mapping
from dataclasses import dataclass

from storebench.errors import UsageError

OPTIONS_HELP = {
    "dio": "on (default): cold data is read explicitly; off: it is left to page faults of the mapping",
    "coal": "on (default): several batches a window, close samples in one read; off: one read a sample",
    "window_mib": "how far to read ahead of the loop, in MiB (default 64)",
    "sweep_mib": "small samples that lie in this many MiB are read in one pass (default 256)",
    "gap_kib": "read through gaps of this many KiB rather than asking twice (default 8)",
    "stag": "off (default) or how many processes may read one file at a time; the others wait their turn",
}


@dataclass(frozen=True, kw_only=True)
class ReadPolicy:
    """How a file is read; see `OPTIONS_HELP`."""

    explicit: bool = True
    merged: bool = True
    window_bytes: int = 64 << 20
    sweep_bytes: int = 256 << 20
    gap_bytes: int = 8 << 10
    at_a_time: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadPolicy":
        """Read the options that `OPTIONS_HELP` names; others are left alone."""
        return cls(
            explicit=switch(options, "dio", default=True),
            merged=switch(options, "coal", default=True),
            window_bytes=number(options, "window_mib", 64, least=4) << 20,
            sweep_bytes=number(options, "sweep_mib", 256) << 20,
            gap_bytes=number(options, "gap_kib", 8) << 10,
            at_a_time=0 if options.get("stag", "off") == "off" else number(options, "stag", 1, least=1),
        )


def switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether an option is on."""
    value = options.get(name, "on" if default else "off")
    if value not in ("on", "off"):
        raise UsageError(f"{name} is on or off, not {value!r}")
    return value == "on"


def number(options: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """Return the number that an option gives."""
    value = options.get(name, str(default))
    if not value.isdecimal() or int(value) < least:
        raise UsageError(f"{name} is a number from {least} on, not {value!r}")
    return int(value)
