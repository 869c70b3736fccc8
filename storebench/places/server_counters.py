"""What an object store counts itself: the requests that it answered, and the bytes that it sent."""

import re
import urllib.request
from collections.abc import Callable
from contextlib import suppress

from storebench.record.schema import ServedFacts

_METRICS = ("SeaweedFS_s3_request_total", "SeaweedFS_s3_bucket_traffic_sent_bytes_total")


def counting(address: str) -> Callable[[], ServedFacts | None]:
    """Return a function that counts what a server has served since now; None without an address or answer."""
    before = _totals(address)

    def since() -> ServedFacts | None:
        after = _totals(address)
        if before is None or after is None:
            return None
        count, sent_bytes = (int(late - early) for early, late in zip(before, after, strict=True))
        return ServedFacts(count=count, sent_bytes=sent_bytes)

    return since


def _totals(address: str) -> list[float] | None:
    """Return the sum of each metric over its labels."""
    if address:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310
            text = answer.read().decode()
            by_metric = (re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE) for name in _METRICS)
            return [sum(map(float, values)) for values in by_metric]
    return None
