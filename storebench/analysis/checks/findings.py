"""Findings: each is one thing that is wrong with a result, and the rule that it breaks."""

import enum
import math
from dataclasses import dataclass

from storebench.record.schema import Record

# Difference between two figures that rounding explains: as a share of them, or in seconds.
ROUNDING = 1e-6


class Rule(enum.StrEnum):
    """The rule that a finding breaks."""

    SCHEMA = "schema"
    ARITHMETIC = "arithmetic"
    COVERAGE = "coverage"
    CACHE = "cache"
    CEILING = "ceiling"
    DISAGREEMENT = "disagreement"
    STEPS = "steps"
    RUN = "run"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a result: where, which figure, and what, with the values."""

    kind: Rule
    cell: str
    cell_id: str = ""
    run_id: str = ""
    figure: str
    message: str
    of_replicate: bool = False
    """Whether it takes out one replicate, as a state that did not hold; other findings question the whole cell."""

    def __str__(self) -> str:
        return f"{self.cell}: {self.figure}: {self.message} ({self.kind})"


def record_name(record: Record) -> str:
    """Return a record in words, with its identifiers."""
    cell = record.cell
    return (
        f"{cell.data.name} {cell.backend} {cell.cache} workers={cell.workers} [{cell.cell_id}]"
        f" replicate {record.replicate} epoch {record.epoch}"
    )


def finding(kind: Rule, record: Record, figure: str, message: str) -> Finding:
    """Return a finding about a record."""
    return Finding(
        kind=kind,
        cell=record_name(record),
        cell_id=record.cell.cell_id,
        run_id=record.run_id,
        figure=figure,
        message=message,
    )


def agree(first: float | None, second: float | None) -> bool:
    """Whether two figures are equal up to rounding."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=ROUNDING, abs_tol=1e-9)
