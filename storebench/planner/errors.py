"""The error of the planner by kind of prediction, as ``python -m benchmarks.plan_error --write`` measures it."""

import enum
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ERRORS_FILE = Path(__file__).with_name("errors.json")
COVERAGE = 0.90


class Kind(enum.StrEnum):
    """What differs between a prediction and the cells that it rests on."""

    ACCELERATOR_LOOP = "an accelerator, loading in the loop"
    ACCELERATOR_WORKERS = "an accelerator, with workers"
    WORKERS = "another number of workers"
    RANKS = "more accelerators"
    MEMORY = "another memory limit"
    MEMORY_OF_DEVICE = "a memory limit, from rates of the device"
    COLD = "a cold start"
    DEVICE = "another device"


@dataclass(frozen=True, kw_only=True)
class KindError:
    """The error on cells that were neither seen nor fitted."""

    median_error: float
    half_width: float | None
    """Half of the 90% interval on the logarithm of the rate; None if too few cells were fitted."""


def half_width(errors: Iterable[float]) -> float | None:
    """Return the split-conformal quantile of absolute errors; None if they are too few for a 90% interval."""
    known = sorted(errors)
    place = math.ceil((len(known) + 1) * COVERAGE)
    return known[place - 1] if place <= len(known) else None


def read_errors() -> dict[Kind, KindError]:
    """Return the errors of the kinds that were measured."""
    rows = json.loads(ERRORS_FILE.read_text(encoding="utf-8"))
    return {Kind(name): KindError(**row) for name, row in rows.items()}
