"""Notes below a table: the meaning of each cache state, and what may have moved a rate."""

from collections.abc import Callable, Iterator, Sequence

from storebench.report.cells import CellSummary
from storebench.report.states import EpochRow, fills_cache
from storebench.report.texts.labels import backend_label, percent, size
from storebench.settings.words import CacheState

WARM = (
    "warm = the store's files were read in a row beforehand; the first epoch of a real training leaves single pages,"
    " and reading a mapped file from those takes longer"
)
STALLS = (
    "Fetch stall: the share of its time that a cell would save if its store were warm (its time less that of the warm cell)."
    " Prep stall: the share that it would save beyond that if loading cost nothing (the warm cell's time less that of null)."
)
PAUSES_SAID_FRAC = 0.02
"""Share of the timed seconds from which pauses for the proof are mentioned: the rate may be off by about as much."""

_FEWER_FRAC = 0.8
"""Readers of the crop alone read nine tenths of an image, and counters disagree by a few percent."""

_LESS_FRAC = 0.1


def cache_notes(cells: Sequence[CellSummary]) -> list[str]:
    """Return the meaning of the cells' cache states, one sentence per fact."""
    rows = [
        row
        for cell in cells
        for row in cell.usable
        if fills_cache(row, cell.cell) and row["cache_verdict"] is not None
    ]
    notes: list[str] = []
    if rows:
        notes += [*_cold(cells, rows), *_limits(cells)]
    if any(cell.cell.cache == CacheState.WARM and cell.usable for cell in cells):
        notes.append(WARM)
    notes += [*_cut_off(cells), *_pauses(cells)]
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


def _cold(cells: Sequence[CellSummary], rows: Sequence[EpochRow]) -> Iterator[str]:
    yield "cold = not in this kernel's page cache; a cache below it, of a host or a disk, may answer"
    known = {row["cache_metadata"] for row in rows}
    if known == {"cold"}:
        yield "metadata cold: directory entries and inodes of the store were not cached either"
    else:
        yield "metadata hot: directory entries and inodes of the store were cached, which favours stores of many files"
    sizes = sorted(
        {int(row["machine_readahead_kib"]) for row in rows if row["machine_readahead_kib"] is not None}
    )
    if sizes and all(cell.cell.readahead_kib is None for cell in cells):
        yield f"the device's read-ahead was the machine's own: {', '.join(map(str, sizes))} KiB"
    if names := _named(cells, _fewer_bytes):
        yield f"fewer bytes than payload came from the device ({names}): compressed, or held elsewhere"
    if names := _named(cells, _less_resident):
        yield f"less of the store was resident than had been requested ({names}): read past the page cache, reclaimed, or held elsewhere"
    for cell in cells:
        reasons = {str(row["cache_reason"]) for row in cell.usable if row["cache_reason"]}
        if cell.whole_only and reasons:
            yield f"{backend_label(cell.backend)} is not steady: {'; '.join(sorted(reasons))}"


def _named(cells: Sequence[CellSummary], holds: Callable[[EpochRow, CellSummary], bool]) -> str:
    """Return the stores of which most epochs that read them have a property; "" for none."""
    names = []
    for cell in cells:
        reading = [holds(row, cell) for row in cell.usable if fills_cache(row, cell.cell)]
        if 2 * sum(reading) > len(reading):
            names.append(backend_label(cell.backend))
    return ", ".join(dict.fromkeys(names))


def _fewer_bytes(row: EpochRow, cell: CellSummary) -> bool:
    """Whether the device delivered fewer bytes than the page cache can have lacked."""
    read, before = row["device_read_bytes"], row["resident_frac_before"]
    if read is None or before is None:
        return False
    # Several passes request the same bytes again, which a cold store serves once.
    requested = min(float(row["payload_bytes"]), float(row["store_payload_bytes"] or 0))
    held = float(cell.cell.memory_bytes or 0) or requested * float(before)
    return bool(float(read) < _FEWER_FRAC * (requested - held))


def _less_resident(row: EpochRow, cell: CellSummary) -> bool:
    """Whether less of a cold store was resident than had been requested, beyond the batches in progress."""
    if cell.cell.cache != CacheState.COLD or not row["store_count"]:
        return False
    begun = cell.cell.ranks * (1 + cell.cell.workers) * cell.cell.batch_size / int(row["store_count"])
    points = row["cache_curve"] or ()
    return any(min(point.asked_frac, 1.0) - point.resident_frac > _LESS_FRAC + begun for point in points)


def _cut_off(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield a note on cells in which only the faster replicates have a rate."""
    names = [backend_label(cell.backend) for cell in cells if cell.cut_off and cell.counted]
    if names:
        yield (
            f"replicates ran out of time ({', '.join(names)}): the rate is that of the faster ones, so the true rate is lower."
            " The rate shown can only prove that the store is slower"
        )


def _pauses(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield a note where pauses that keep samples for the proof took a notable share of the timed seconds."""
    shares = [
        (float(row["coverage_proof_s"] or 0.0) / float(row["timed_s"]), cell)
        for cell in cells
        for row in cell.usable
        if row["timed_s"]
    ]
    share, cell = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if cell is not None and share >= PAUSES_SAID_FRAC:
        yield (
            f"epochs were so short that pauses for the proof took up to {percent(share)} of the timed seconds"
            f" ({backend_label(cell.backend)}); the pauses are not counted, but rates next to them may be off:"
            " worker processes continue during pauses, and caches get cold. More steps or passes avoid this"
        )


def _limits(cells: Sequence[CellSummary]) -> Iterator[str]:
    limited = [cell for cell in cells if cell.cell.memory_bytes]
    shares = [
        float(row["cache_resident_max_frac"]) * float(row["store_file_bytes"]) / float(cell.cell.memory_bytes)
        for cell in limited
        for row in cell.usable
        if row["cache_resident_max_frac"] is not None and row["store_file_bytes"] and cell.cell.memory_bytes
    ]
    if shares:
        limit = size(limited[0].cell.memory_bytes)
        yield f"the page cache was limited to {limit}; at no sampled moment more than {percent(max(shares))} of that was resident"
