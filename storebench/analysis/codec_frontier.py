"""Codecs of one container: bytes per image against the rate, and which of them no other beats in both."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storebench.analysis.summary import CellSummary
from storebench.codecs import any_size, decoding_of

# Codecs of one container that a table and a plot are worth.
FEWEST = 3


@dataclass(frozen=True, kw_only=True)
class Coded:
    """One codec with its decoder, as one container stores it."""

    cell: CellSummary
    name: str  # such as "webp:80:opencv"
    bytes_per_image: float
    images_per_s: float
    psnr_db: float | None = None
    frontier: bool = False
    """Whether none is both smaller and faster: for a lossless one none of the lossless, else none at all."""

    @property
    def lossless(self) -> bool:
        return not self.cell.lossy


def coded(cells: Iterable[CellSummary]) -> list[Coded]:
    """Return the codecs of the container and reader that have most of them, the largest payload first."""
    groups: dict[tuple[str, str], list[Coded]] = {}
    for cell in cells:
        backend, rate = cell.cell.backend, cell.median("samples_per_s")
        if rate and not cell.is_null and not any_size(backend.codec):
            codec = Coded(
                cell=cell,
                name=str(decoding_of(backend.codec, backend.codec_options)),
                bytes_per_image=cell.fact("store_payload_bytes") / cell.fact("store_count"),
                images_per_s=rate,
                psnr_db=cell.fact("store_psnr_db"),
            )
            groups.setdefault((backend.format, backend.reader), []).append(codec)
    most = max(groups.values(), key=len, default=[])
    best = [*frontier([codec for codec in most if codec.lossless]), *frontier(most)]
    marked = [dataclasses.replace(codec, frontier=codec in best) for codec in most]
    return sorted(marked, key=lambda codec: -codec.bytes_per_image)


def frontier(codecs: Sequence[Coded]) -> list[Coded]:
    """Return the codecs that no other one beats in both size and rate, the smallest first."""
    kept: list[Coded] = []
    for codec in sorted(codecs, key=lambda codec: (codec.bytes_per_image, -codec.images_per_s)):
        if not kept or codec.images_per_s > kept[-1].images_per_s:
            kept.append(codec)
    return kept
