"""Impossible values of a record: infinite, negative counts or durations, or too large to compute with."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from storebench.results import Cell, Record

MOST_NUMBER = 1 << 63
"""No count and no number of bytes is that large."""

_MOST_SECONDS = 1e9
_MOST_ROUNDS = 1 << 20

_SIGNED = ("overhead_s", "counters", "loss", "job.exposed_communication_s", "job.exposed_over_bound")
"""Fields of a record that may be negative, including their parts."""

_UNBOUNDED = ("loss",)
"""Fields that may be infinite or NaN, because a training may diverge."""

_AT_LEAST_ONE = (
    "store.image_shape",
    "cell.batch_size",
    "cell.epochs",
    "cell.ranks",
    "cell.trainers",
    "job.ranks",
    "job.nodes",
)
_FEW = ("replicate", "epoch", "cell.epochs")


def impossible(record: Record) -> tuple[str, str] | None:
    """Return the first impossible field and its problem; None if there is none."""
    for path, value in _numbers(record, ""):
        wrong = _wrong(path, value)
        if wrong:
            return path, wrong
    return None


def _wrong(path: str, value: float) -> str:
    part, name = path.partition(".")[0], path.rpartition(".")[2]
    if part not in _UNBOUNDED and not -MOST_NUMBER < value < MOST_NUMBER:
        return f"{value} is not a finite number" if isinstance(value, float) else "the number is too large"
    lasts = name == "seconds" or (name.endswith("_s") and not name.endswith("_per_s"))
    if lasts and abs(value) > _MOST_SECONDS:
        return f"{value} is not a duration"
    if path in _AT_LEAST_ONE and value < 1:
        return f"{value} is less than 1"
    if path in _FEW and value > _MOST_ROUNDS:
        return f"{value} is too large"
    if value < 0 and part not in _SIGNED and path not in _SIGNED:
        return f"{value} is negative"
    return ""


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield every number of a record with its path; the numbers of a list share the list's path."""
    if isinstance(value, int | float):
        if not isinstance(value, bool):
            yield path, value
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item, path)
    elif dataclasses.is_dataclass(value):
        fields = value.fields() if isinstance(value, Cell) else vars(value)
        for name, item in fields.items():
            yield from _numbers(item, f"{path}.{name}" if path else name)
