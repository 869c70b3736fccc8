"""Ceilings and yardsticks that were measured beside the cells."""

from collections.abc import Sequence

from storebench.report.cells import CellSummary
from storebench.settings.words import CacheState

_RANDOM = tuple(f"device_random_{depth}_bytes_per_s" for depth in (1, 4, 16, 32))


def ceilings(cells: Sequence[CellSummary]) -> dict[str, float | None]:
    """Return the ceilings and yardsticks in the cells' records, in samples per second, by their description.

    A ceiling is the highest rate of any replicate: another moment's rate is one that a reader may exceed. The rate of one
    read per sample is a yardstick: a reader that merges reads may exceed it, up to the device at its best. Cells of warm stores read nothing from a device.
    """
    null = next((cell.median("samples_per_s") for cell in cells if cell.is_null), None)
    stored = [cell for cell in cells if not cell.is_null]
    raw = [cell for cell in stored if cell.cell.backend.codec == "raw"]
    each = next(
        (b / n for c in raw if (b := c.fact("store_payload_bytes")) and (n := c.fact("store_count"))), None
    )
    reading = [cell for cell in raw if cell.cell.cache != CacheState.WARM]
    device = {
        "device at its best": _highest(reading, ("device_best_bytes_per_s",)),
        "device, one read per sample (a yardstick)": _highest(reading, _RANDOM),
    }
    return {
        "compute alone": null,
        "one copying thread": _highest(stored, ("copy_ceiling_samples_per_s",)),
    } | {name: rate / each if rate and each else None for name, rate in device.items()}


def _highest(cells: Sequence[CellSummary], metrics: Sequence[str]) -> float | None:
    values = (value for cell in cells for metric in metrics for value in cell.values(metric).values())
    return max(values, default=None)
