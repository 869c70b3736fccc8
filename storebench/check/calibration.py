"""The kinds of work that calibrate cells, and which of them carry over to another machine."""

import enum
from collections.abc import Collection


class LimitingWork(enum.StrEnum):
    """The work that limits a benchmark, and therefore calibrates its rounds."""

    MEMORY = "memory"
    """Gathering samples from an array (`storebench.testing.calibrations.gather`)."""
    INFLATE = "inflate"
    """Inflating a fixed buffer with zlib: encoded images."""
    INTERPRETER = "interpreter"
    """A fixed loop of Python, for one library call or file per sample."""
    MATRIX_PRODUCT = "matrix product"
    """float32 products by torch: training."""
    DEVICE = "device"
    """O_DIRECT reads of one payload's size: cold cells."""


VALIDATED: dict[LimitingWork, bool] = {
    LimitingWork.MEMORY: False,
    LimitingWork.INFLATE: False,
    LimitingWork.INTERPRETER: False,
    LimitingWork.MATRIX_PRODUCT: False,
    LimitingWork.DEVICE: False,
}
"""Limiting work -> whether ratios to it were shown to stay within `Policy.other_environment_frac` on other machines.

``python -m benchmarks.gate_selftest --parts machines`` measures this on four emulated machines, and
fails if this table promises more than it finds. Emulated machines have the CPU of the real one: ratios to a matrix product
carried over to all four, and were off by 49% between an AMD EPYC and an Intel Xeon (docs/ci.md). Kinds that are False here
or missing are not compared across environments unless the policy's ``trust_calibration`` names them.
"""


def carries_over(kind: str, trusted: Collection[str] = ()) -> bool:
    """Return whether ratios to a calibration of this kind may be compared across environments."""
    return kind in trusted or any(kind == known and valid for known, valid in VALIDATED.items())
