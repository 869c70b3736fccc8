"""An object store's law (what requests in flight can bring there), and from which epoch on copying it first pays."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from storebench.formats.remote import RemoteOptions
from storebench.report.cells import CellSummary, key_without
from storebench.report.labels import EMULATED_FACTS, backend_label, duration


@dataclass(frozen=True, kw_only=True)
class Law:
    """The figures of one cell that its rate follows from, all measured at the place alone or given."""

    in_flight: int
    megabytes: float  # of one request
    first_byte_ms: float
    mb_s: float  # of one request after its first byte
    line_mb_s: float | None  # emulated bandwidth of all requests
    emulated: bool

    @classmethod
    def of(cls, cell: CellSummary) -> Self | None:
        first_ms, mb_s = cell.fact("place_first_byte_ms"), cell.fact("place_mb_s")
        count, received = cell.median("remote_count"), cell.median("remote_received_bytes")
        if not (first_ms and mb_s and count and received):
            return None
        given = dict(cell.cell.backend.options).get("inflight")
        line = cell.fact("place_emulated_mb_s")
        return cls(
            in_flight=(int(given) if given else RemoteOptions().inflight) * max(1, cell.cell.workers),
            megabytes=received / count / 1e6,
            first_byte_ms=first_ms,
            mb_s=mb_s,
            line_mb_s=line or None,
            emulated=any(cell.fact(f"place_{name}") for name in EMULATED_FACTS),
        )

    def rate(self, server: float | None) -> float:
        """Return images/s: min(n / (first byte + bytes / rate), bandwidth / bytes, server)."""
        alone = self.in_flight / (self.first_byte_ms / 1e3 + self.megabytes / self.mb_s)
        line = self.line_mb_s / self.megabytes if self.line_mb_s else math.inf
        return min(alone, line, server or math.inf)


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
