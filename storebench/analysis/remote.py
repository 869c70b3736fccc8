"""Requests to servers, and from when on copying a store first pays."""

import math
from collections.abc import Iterator, Sequence

from storebench.analysis.bottleneck import per_image
from storebench.analysis.labels import backend_label, duration
from storebench.analysis.summary import CellSummary, key_without
from storebench.formats.remote import RemoteOptions

_OF_A_WAY = ("backend", "workers", "place")


def request_s(cell: CellSummary, first_byte_s: float | None = None) -> float:
    """Return the time of an image's requests to a server, one after another; 0 where not measured.

    First byte and rate of one request are those that were measured at the place alone, or as given.
    """
    first_ms: float | None = cell.fact("place_first_byte_ms")
    mb_s: float | None = cell.fact("place_mb_s")
    requests, received = per_image(cell, "remote_count"), per_image(cell, "remote_received_bytes")
    if not (first_ms and mb_s and requests and received):
        return 0.0
    first_s = first_ms / 1e3 if first_byte_s is None else first_byte_s
    return requests * first_s + received / mb_s / 1e6


def requests_in_flight(cell: CellSummary) -> int:
    backend = cell.cell.backend
    return RemoteOptions.parse(backend.options, backend.name).inflight


def copies_pay(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield, for each store that was copied first, from which epoch on that beats the fastest way without a copy."""
    for cell in cells:
        copy_s, local_s = cell.fact("place_copy_s"), cell.median("epoch_s")
        there, key = str(cell.cell.place).removeprefix("copy:"), key_without(cell, *_OF_A_WAY)
        ways = [way for way in cells if way.cell.place == there and key_without(way, *_OF_A_WAY) == key]
        times = [(took_s, way.backend) for way in ways if (took_s := way.median("epoch_s"))]
        if cell.cell.place.copies and copy_s and local_s and times:
            remote_s, best = min(times)
            epochs = math.ceil(copy_s / (remote_s - local_s)) if remote_s > local_s else None
            pays = f"pays from epoch {epochs} on" if epochs else "does not pay"
            name, fastest = backend_label(cell.backend), backend_label(best)
            yield f"Copying {name} first takes {duration(copy_s)} and {pays}, beside {fastest} in place."
