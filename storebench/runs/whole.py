"""The whole dataset of a run that measured a part of it, as its ``run.json`` describes it."""

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.runs.about import read_about, write_about
from storebench.runs.ranges import MOST_NUMBER
from storebench.runs.records import RUN_NAME


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The whole dataset, of which a part was measured, and the memory that it would have to fit into."""

    count: int
    total_bytes: int
    memory_bytes: int
    fits: bool


def note_whole(run: Path, whole: Whole) -> None:
    """Describe the whole dataset in the ``run.json`` of a run that measures a part of it."""
    write_about(run, read_about(run / RUN_NAME) | {"whole": dataclasses.asdict(whole)})


def whole_of(run: Path) -> Whole | None:
    """Return the whole dataset of a run that chose its backends; None for other runs, and if ``run.json`` is not valid."""
    try:
        described = read_about(run / RUN_NAME).get("whole")
        whole: Whole | None = None if described is None else _adapter().validate_python(described)
    except (OSError, CorruptDataError, AttributeError, TypeError, ValueError):
        return None  # validation reports a file that cannot be read
    numbers = () if whole is None else (whole.count, whole.total_bytes, whole.memory_bytes)
    return whole if all(0 <= number < MOST_NUMBER for number in numbers) else None


def agreed(wholes: Iterable[Whole | None]) -> Whole | None:
    """Return the whole dataset that several runs describe; None if one of them describes none, or another one."""
    distinct = set(wholes)
    if len({whole and (whole.count, whole.fits) for whole in distinct}) != 1:
        return None
    return min(filter(None, distinct), key=dataclasses.astuple, default=None)


@functools.cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Whole)
