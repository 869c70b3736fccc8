"""The error of the planner by kind of prediction, as ``python -m benchmarks.plan_error --write`` measures it."""

import enum
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ERRORS_FILE = Path(__file__).with_name("errors.json")
_COVERAGE = 0.90


class PredictionKind(enum.StrEnum):
    """What differs between a prediction and the cells that it rests on."""

    ACCELERATOR_LOOP = "an accelerator, loading in the loop"
    ACCELERATOR_WORKERS = "an accelerator, with workers"
    WORKERS = "another number of workers"
    RANKS = "more accelerators"
    MEMORY = "another memory limit"
    MEMORY_OF_COLD = "a memory limit, from a cold start"
    COLD = "a cold start"
    DEVICE = "another storage"
    BATCH = "another batch size"
    PLACE = "a server, from its first byte"


@dataclass(frozen=True, kw_only=True)
class KindError:
    median_error: float
    half_width: float | None
    """Of the 90% interval on the logarithm of the rate; None if too few cells were fitted."""


def half_width(errors: Iterable[float]) -> float | None:
    """Return the split-conformal quantile of absolute errors; None if they are too few for a 90% interval."""
    ranked = sorted(errors)
    place = math.ceil((len(ranked) + 1) * _COVERAGE)
    return ranked[place - 1] if place <= len(ranked) else None


def read_errors() -> dict[PredictionKind, KindError]:
    rows = json.loads(ERRORS_FILE.read_text(encoding="utf-8"))
    return {PredictionKind(name): KindError(**row) for name, row in rows.items()}
