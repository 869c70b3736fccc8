"""What a cell measures beside its own work, of the machine and of communication, in a tenth of the time: no test of
cells is about its value.

Tests of the yardsticks themselves are `tests/unit/probes/test_rates.py`, `tests/unit/ranks`.
"""

from collections.abc import Callable
from typing import Any

from storebench.probes import rates
from storebench.ranks import exposed, link
from storebench.worker import ceilings

SHORT: tuple[tuple[Any, str, Any], ...] = (
    (ceilings, "DEVICE_S", 0.02),
    (rates, "SCRATCH_BYTES", 16 << 20),
    (ceilings, "GATHER_S", 0.02),
    (exposed, "BARRIERS", 10),
    (exposed, "FEWEST_PAIRS", 3),
    (exposed, "BUDGET_S", 0.05),
    (link, "BUDGET_S", 0.01),
    (link, "FEWEST_MESSAGES", 2),
    (link, "_MOST_BYTES", 1 << 16),
    (link, "_SIZE_TRIALS", 1),
    (link, "_SMALL_TRIALS", 1),
    (link, "_SMALL_IN_A_ROW", 4),
)
"""Modules, their names, and what stands there for the time of a test."""


def shorten(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the cells of this process measure for a moment only."""
    for module, name, value in SHORT:
        put(module, name, value)
