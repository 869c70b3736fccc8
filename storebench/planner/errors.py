"""The error of the planner by kind of prediction, from a file that ``python -m benchmarks.plan_error --write`` writes."""

import dataclasses
import enum
import functools
import json
import math
from collections.abc import Iterable, Mapping
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
    BATCH = "another batch size"
    CPU_TRAINING = "training on the CPU"


KINDS = tuple(Kind)


@dataclass(frozen=True, kw_only=True)
class KindError:
    """The error on cells that were neither seen nor fitted."""

    cells: int
    median_error: float
    within_20: float
    """Share of the predictions within 20% of the measured rate."""
    limit_right: float | None = None
    """Share with the right limit; None if no measured cell has a clear one."""
    covered: float | None = None
    """Share of the 90% intervals that hold the measured rate."""
    half_width: float | None = None
    """Half of the 90% interval on the logarithm of the rate; None if too few cells were fitted."""


def half_width(errors: Iterable[float]) -> float | None:
    """Return the split-conformal quantile of absolute errors; None if they are too few for a 90% interval."""
    known = sorted(errors)
    place = math.ceil((len(known) + 1) * COVERAGE)
    return known[place - 1] if place <= len(known) else None


@functools.cache
def read_errors() -> dict[Kind, KindError]:
    """Return the errors of the kinds that were measured."""
    rows = json.loads(ERRORS_FILE.read_text(encoding="utf-8"))
    return {Kind(name): KindError(**row) for name, row in rows.items()}


def write_errors(errors: Mapping[Kind, KindError]) -> None:
    """Replace the file."""
    rows = {kind.value: dataclasses.asdict(error) for kind, error in errors.items()}
    ERRORS_FILE.write_text(json.dumps(_rounded(rows), indent=1) + "\n", encoding="utf-8")


def _rounded(rows: dict[str, dict[str, float | None]]) -> dict[str, dict[str, float | None]]:
    return {
        name: {key: value if value is None else round(value, 3) for key, value in row.items()}
        for name, row in rows.items()
    }
