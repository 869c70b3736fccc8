"""What a cell measures of the machine beside its own work, in a tenth of the time: no test of cells is about its value.

Tests of the yardsticks themselves are `tests/unit/probes/test_ceilings.py` and `tests/unit/training`.
"""

from collections.abc import Callable
from typing import Any

from storebench.probes import device_rate
from storebench.training import calibration
from storebench.worker import ceilings

SHORT: tuple[tuple[Any, str, Any], ...] = (
    (calibration, "SIDE", 64),
    (ceilings, "DEVICE_S", 0.02),
    (device_rate, "SCRATCH_BYTES", 16 << 20),
    (ceilings, "GATHER_S", 0.02),
)
"""Modules, their names, and what stands there for the time of a test."""


def shorten(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the cells of this process measure for a moment only."""
    for module, name, value in SHORT:
        put(module, name, value)
