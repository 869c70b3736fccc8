"""Storage tiers: how fast a kind of storage can be read, as its provider publishes it or as a user gives it."""

import re
from dataclasses import dataclass

from storebench.errors import UnknownNameError


@dataclass(frozen=True)
class Tier:
    """Limits on the reads of one machine from its storage; None for no limit."""

    bytes_per_s: float | None
    requests_per_s: float | None


# The named tiers; docs/planner.md names the source of each.
_TIERS = {
    "gp3": Tier(125 * 2**20, 3_000),
    "gp3-max": Tier(1000 * 2**20, 16_000),
    "io2": Tier(4000 * 2**20, 256_000),
    "azure-hdd": Tier(500e6, 2_000),
    "azure-ssd": Tier(750e6, 6_000),
}


def find_tier(text: str) -> Tier:
    """Return a named tier, or the one that "MB/S:REQUESTS/S" describes; either may be left out."""
    if text in _TIERS:
        return _TIERS[text]
    given = re.fullmatch(r"(?P<mb>[1-9]\d{0,5})?(:(?P<requests>[1-9]\d{0,6}))?", text)
    if not text or given is None:
        raise UnknownNameError.of("tier", text, [*_TIERS, "MB/S:REQUESTS/S"])
    mb, requests = given["mb"], given["requests"]
    return Tier(float(mb) * 1e6 if mb else None, float(requests) if requests else None)
