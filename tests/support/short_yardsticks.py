"""What a cell measures beside its own work, of the machine and of communication, in a tenth of the time: no test of
cells is about its value.

Tests of the yardsticks themselves are `tests/unit/probes/test_rates.py`, `tests/unit/ranks`.
"""

from collections.abc import Callable
from typing import Any

from storebench.probes import rates
from storebench.ranks import communication
from storebench.worker import ceilings

SHORT: tuple[tuple[Any, str, Any], ...] = (
    (ceilings, "DEVICE_S", 0.02),
    (rates, "SCRATCH_BYTES", 16 << 20),
    (ceilings, "GATHER_S", 0.02),
    (communication, "BARRIERS", 10),
    (communication, "FEWEST_PAIRS", 3),
    (communication, "PAIRS_BUDGET_S", 0.05),
    (communication, "BUDGET_S", 0.01),
    (communication, "FEWEST_MESSAGES", 2),
    (communication, "_MOST_BYTES", 1 << 16),
    (communication, "_SIZE_TRIALS", 1),
    (communication, "_SMALL_TRIALS", 1),
    (communication, "_SMALL_IN_A_ROW", 4),
)
"""Modules, their names, and what stands there for the time of a test."""


def shorten(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the cells of this process measure for a moment only."""
    for module, name, value in SHORT:
        put(module, name, value)
