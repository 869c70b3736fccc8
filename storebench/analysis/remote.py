"""What requests in flight can bring at a server, how many feed an accelerator, and from when on copying first pays."""

import math
from collections.abc import Iterator, Sequence

from storebench.accelerators import Accelerator
from storebench.analysis.bottleneck import per_image
from storebench.analysis.labels import EMULATED_FACTS, backend_label, duration, number, place_words
from storebench.analysis.summary import CellSummary, key_without
from storebench.formats.remote import RemoteOptions
from storebench.units import number_of

_STREAMS = 4
"""Requests in flight for which the size of shards is told."""


def request_s(cell: CellSummary, first_byte_s: float | None = None) -> float:
    """Return the time of an image's requests to a server, one after another: first bytes, and transfer; 0 where not measured.

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
    """Return the requests that each process of a cell at a server has under way."""
    backend = cell.cell.backend
    return RemoteOptions.parse(backend.options, backend.name).inflight


def law_rates(cells: Sequence[CellSummary]) -> dict[CellSummary, float]:
    """Return images/s by the law min(n / (first byte + bytes / rate), bandwidth / bytes, server), for emulated cells.

    They ask for each image by itself. n is requests in flight; first byte and rate are those of one request, measured at the
    place alone; the server's limit is the highest rate of the same store and reader at such a server that emulates nothing.
    """
    server = _without_emulation(cells)
    rates = {}
    for cell in filter(_has_law, cells):
        line = 1e6 * (cell.fact("place_emulated_mb_s") or math.inf) / per_image(cell, "remote_received_bytes")
        alone = requests_in_flight(cell) * max(1, cell.cell.workers) / request_s(cell)
        rates[cell] = min(alone, line, server.get(_way(cell), math.inf))
    return rates


def law_notes(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield what the law is, and of which stores nothing caps it."""
    ruled, server = [cell for cell in cells if _has_law(cell)], _without_emulation(cells)
    if ruled:
        yield (
            "By law: requests in flight over the time of one, measured apart; at most the emulated bandwidth, and the highest rate"
            " of the same store where nothing is emulated."
        )
    free = dict.fromkeys(backend_label(cell.backend) for cell in ruled if _way(cell) not in server)
    if free:
        yield f"Nothing caps the law of {', '.join(free)}: there is no cell without emulation."


def _without_emulation(cells: Sequence[CellSummary]) -> dict[tuple[str, ...], float]:
    """Return the highest rate of each store and reader at each kind of server where nothing is emulated."""
    rates: dict[tuple[str, ...], float] = {}
    for cell in cells:
        if not _emulates(cell) and (rate := cell.median("samples_per_s")):
            rates[_way(cell)] = max(rate, rates.get(_way(cell), 0.0))
    return rates


def _way(cell: CellSummary) -> tuple[str, ...]:
    return cell.cell.place.kind, cell.cell.backend.format, cell.cell.backend.codec, cell.cell.backend.reader


def _emulates(cell: CellSummary) -> bool:
    """Return whether the place of a cell emulates anything: a server that runs already says so itself."""
    return any(cell.fact(f"place_{name}") for name in EMULATED_FACTS)


def _has_law(cell: CellSummary) -> bool:
    return _emulates(cell) and _asks_singly(cell) and request_s(cell) > 0


def _asks_singly(cell: CellSummary) -> bool:
    """Return whether a cell asked for each image by itself, as far as its requests were seen."""
    return (cell.median("remote_count") or 0) >= (cell.median("samples") or math.inf)


def needed_requests(cells: Sequence[CellSummary], accelerators: Sequence[Accelerator]) -> Iterator[str]:
    """Yield, for each place and accelerator, the requests in flight of single images that feed it, or shards of which size.

    R images/s of b bytes take R (t + b / B) requests, with the first byte t and the rate B of one request measured there.
    `_STREAMS` requests for shards of S bytes bring `_STREAMS` (S / b) / (t + S / B) images/s.
    """
    single = filter(_asks_singly, cells)
    places = {cell.cell.place: cell for cell in single if cell.cell.place.url or cell.cell.place.emulated}
    for place, cell in places.items():
        alone_s, transfer_s, megabytes = (
            request_s(cell),
            request_s(cell, 0.0),
            per_image(cell, "remote_received_bytes") / 1e6,
        )
        if not alone_s:
            continue
        line = cell.fact("place_emulated_mb_s")
        for one in accelerators:
            wanted = one.images_per_s
            told = f"{one.title} ({number(wanted)} images/s) from {place_words(place)}"
            if line and wanted * megabytes > line:
                yield f"{told}: its bandwidth gives {number(line / megabytes)} images/s, whatever the requests."
                continue
            singles, spare = math.ceil(wanted * alone_s), _STREAMS - wanted * transfer_s
            shard = wanted * megabytes * (alone_s - transfer_s) / spare if spare > 0 else 0
            shards = f", {_STREAMS} with shards of {number(shard)} MB or more" if shard > megabytes else ""
            yield f"{told}: {number_of(singles, 'request')} in flight feed it with single images{shards}, if decoding keeps up."


def copies_pay(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield, for each store that was copied first, from which epoch on that beats the fastest way without a copy."""
    for cell in cells:
        copy_s, local_s = cell.fact("place_copy_s"), cell.median("epoch_s")
        if not (cell.cell.place.copies and copy_s and local_s):
            continue
        there = str(cell.cell.place).removeprefix("copy:")
        same = key_without(cell, "backend", "workers", "place")
        others = [
            other
            for other in cells
            if other.cell.place == there and key_without(other, "backend", "workers", "place") == same
        ]
        rates = [(other.median("epoch_s") or math.inf, other) for other in others]
        if not rates:
            yield f"Copying {backend_label(cell.backend)} first takes {duration(copy_s)}."
            continue
        remote_s, best = min(rates, key=lambda pair: pair[0])
        epochs = math.ceil(copy_s / (remote_s - local_s)) if remote_s > local_s else None
        pays = f"pays from epoch {epochs} on" if epochs else "does not pay"
        yield f"Copying {backend_label(cell.backend)} first takes {duration(copy_s)} and {pays}, beside {backend_label(best.backend)} in place."
