"""Valid types and ranges of a side's cells, checked for every source."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import pydantic

from storebench.check.sides.model import CellData, MachineAndStorage, Replicate, Side
from storebench.errors import CorruptDataError
from storebench.fileio.json_text import brief, complaint

_SECONDS = (1e-12, 1e9)
_RATIO = (1e-12, 1e12)
_BOUNDS = {"seconds": _SECONDS, "tail_s": _SECONDS, "machine_s": _SECONDS, "relative": _RATIO}
"""Field of a replicate -> minimum and maximum: wider than any measurement, and ratios of two values stay finite."""

_MOST_COUNTED = 1e19
_MOST_CORES = 1e6


@functools.cache
def _adapter() -> Any:
    return pydantic.TypeAdapter(CellData)


def checked_side(side: Side) -> Side:
    """Return the side after checking every field of its cells.

    Raises
    ------
    CorruptDataError
        A field has the wrong type, or is a number that no measurement can give.
    """
    cells = {name: cell_of(dataclasses.asdict(cell), side.source) for name, cell in side.cells.items()}
    return dataclasses.replace(side, cells=cells)


def cell_of(raw: dict[str, Any], where: str) -> CellData:
    """Return the cell that plain values describe.

    Raises
    ------
    CorruptDataError
        A name is unknown or missing, or a value is impossible.
    """
    try:
        _refuse_unknown(raw)
        cell: CellData = _adapter().validate_python(raw)
    except pydantic.ValidationError as error:
        raise CorruptDataError(f"not a cell of a check: {complaint(error)}", where=where) from None
    except ValueError as error:
        raise CorruptDataError(f"not a cell of a check: {error}", where=where) from None
    wrong = next(_impossible(cell), "")
    if wrong:
        raise CorruptDataError(f"{brief(cell.label)}: {wrong}", where=where)
    return cell


def _refuse_unknown(raw: dict[str, Any]) -> None:
    """Refuse unknown names, because a misspelt field would silently get its default."""
    parts: list[tuple[Any, type]] = [(raw, CellData), (raw.get("environment"), MachineAndStorage)]
    replicates = raw.get("replicates")
    parts += [
        (replicate, Replicate) for replicate in (replicates if isinstance(replicates, list | tuple) else ())
    ]
    for part, kind in parts:
        known = {field.name for field in dataclasses.fields(kind)}
        unknown = [name for name in part if name not in known] if isinstance(part, dict) else []
        if unknown:
            raise ValueError(f"no field is called {brief(unknown[0])}")


def _impossible(cell: CellData) -> Iterator[str]:
    """Yield the problems of a cell's numbers."""
    for replicate in cell.replicates:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(replicate, name)
            if value is not None and not least <= value <= most:
                yield f"{name} of a replicate is {value}"
        for name, count in replicate.counters.items():
            if not 0 <= count <= _MOST_COUNTED:
                yield f"the counter {brief(name)} is {count}"
        if replicate.busy_cores is not None and not 0 <= replicate.busy_cores <= _MOST_CORES:
            yield f"busy_cores of a replicate is {replicate.busy_cores}"
        if cell.tail_of and replicate.tail_s is None:
            yield "a replicate has no tail"
        if cell.calibration and replicate.relative is None:
            yield "a replicate is not calibrated"
