"""Codecs of one container: bytes per image against the rate, and which of them no other beats in both."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storebench.analysis.summary import CellSummary
from storebench.codecs import any_size, decoding_of

FEWEST = 3
"""Codecs of one container that a table and a plot are worth."""


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
    """Return the codecs of the container and reader that have most of them, from the largest payload to the smallest."""
    groups: dict[tuple[str, str], list[Coded]] = {}
    for cell in cells:
        own, rate = cell.cell.backend, cell.median("samples_per_s")
        if rate and not cell.is_null and not any_size(own.codec):
            found = Coded(
                cell=cell,
                name=str(decoding_of(own.codec, own.codec_options)),
                bytes_per_image=cell.fact("store_payload_bytes") / cell.fact("store_count"),
                images_per_s=rate,
                psnr_db=cell.fact("store_psnr_db"),
            )
            groups.setdefault((own.format, own.reader), []).append(found)
    most = max(groups.values(), key=len, default=[])
    best = set(frontier([one for one in most if one.lossless])) | {
        one for one in frontier(most) if not one.lossless
    }
    marked = [dataclasses.replace(one, frontier=one in best) for one in most]
    return sorted(marked, key=lambda one: -one.bytes_per_image)


def frontier(codecs: Sequence[Coded]) -> list[Coded]:
    """Return the codecs that no other one beats in both size and rate, the smallest first."""
    kept: list[Coded] = []
    for one in sorted(codecs, key=lambda one: (one.bytes_per_image, -one.images_per_s)):
        if not kept or one.images_per_s > kept[-1].images_per_s:
            kept.append(one)
    return kept
