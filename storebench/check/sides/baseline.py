"""Read a committed baseline."""

from typing import Any

from storebench.check.sides.model import CellData, Side
from storebench.check.sides.rules import cell_of
from storebench.errors import CorruptDataError, SchemaVersionError
from storebench.fileio.json_text import brief

BASELINE_VERSION = 2
"""Version 1 held the lower quartile of each session; it can be read, but its sessions are compared with nothing."""

_READ_VERSIONS = (1, 2)


def side_of_baseline(source: str, raw: dict[str, Any]) -> Side:
    """Read a baseline's JSON.

    Raises
    ------
    SchemaVersionError
        Another version of storebench wrote it.
    CorruptDataError
        A key is missing or misspelt.
    """
    version = raw["storebench_baseline"]
    if version not in _READ_VERSIONS:
        raise SchemaVersionError(
            f"a baseline of schema version {brief(version)}, this storebench reads 1 and {BASELINE_VERSION}",
            where=source,
            hint="Make a new one with --update.",
        )
    try:
        cells = {cell.cell_id: cell for cell in (_cell(row, source) for row in raw["cells"])}
    except (AttributeError, KeyError, TypeError) as error:
        raise CorruptDataError(f"not a baseline ({type(error).__name__}: {error})", where=source) from None
    return Side(source=source, kind="baseline", cells=cells)


def _cell(raw: dict[str, Any], source: str) -> CellData:
    # Version 1 did not say which figure of a session it holds: of sessions of pytest the lower quartile.
    figure = "lower quartile" if "::" in raw["rerun"] else "mean"
    return cell_of({"figure": figure, **raw}, source)
