"""Storage tiers: how fast a kind of storage can be read, as its provider publishes it or as a user gives it."""

import re
from dataclasses import dataclass

from storebench.accelerators import Publication
from storebench.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Limits on the reads of one machine from its storage; None for no limit."""

    name: str
    bytes_per_s: float | None = None
    requests_per_s: float | None = None
    source: Publication | None = None


_GP3 = Publication(
    title="Amazon EC2, General Purpose SSD volumes",
    date="2023",
    url="https://docs.aws.amazon.com/AWSEC2/latest/WindowsGuide/general-purpose.html",
)
_IO2 = Publication(
    title="AWS Prescriptive Guidance, Amazon EBS SSD storage types",
    date="2023",
    url="https://docs.aws.amazon.com/prescriptive-guidance/latest/sql-server-ec2-ha-dr/ebs-storage-types.html",
)
_AZURE = Publication(
    title="Azure managed disk types, largest disks",
    date="2024",
    url="https://docs.azure.cn/en-us/virtual-machines/disks-types",
)

TIERS = tuple(
    Tier(name=name, bytes_per_s=bytes_per_s, requests_per_s=requests_per_s, source=source)
    for name, bytes_per_s, requests_per_s, source in (
        ("gp3", 125 * 2**20, 3_000, _GP3),
        ("gp3-max", 1000 * 2**20, 16_000, _GP3),
        ("io2", 4000 * 2**20, 256_000, _IO2),
        ("azure-hdd", 500e6, 2_000, _AZURE),
        ("azure-ssd", 750e6, 6_000, _AZURE),
    )
)
"""The named tiers."""

_GIVEN = re.compile(r"(?P<mb>[1-9]\d{0,5})?(:(?P<requests>[1-9]\d{0,6}))?")


def find_tier(text: str) -> Tier:
    """Return a named tier, or the one that "MB/S:REQUESTS/S" describes; either may be left out. Raises UnknownNameError."""
    named = {tier.name: tier for tier in TIERS}
    match = _GIVEN.fullmatch(text)
    if text in named or not text or match is None:
        if text not in named:
            raise UnknownNameError.of("tier", text, [*named, "MB/S:REQUESTS/S"])
        return named[text]
    mb, requests = match["mb"], match["requests"]
    return Tier(
        name=text,
        bytes_per_s=float(mb) * 1e6 if mb else None,
        requests_per_s=float(requests) if requests else None,
    )
