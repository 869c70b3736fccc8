"""The settings of a check: thresholds, counter gates and exceptions, from a TOML file (docs/ci.md) or the defaults."""

import fnmatch
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

import pydantic

from storebench.analysis.comparison import PRACTICAL_FRAC
from storebench.errors import UnknownNameError, UsageError
from storebench.run.scenario import read_table

_MOST = 1e12

# A finite number that is not negative: a share, or an amount in the unit of what it limits.
Bounded = Annotated[float, pydantic.Field(ge=0, le=_MOST, allow_inf_nan=False)]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class CounterGate(_Strict):
    """Tolerance of a counter relative to the baseline."""

    band_frac: Bounded = 0.0
    """Allowed difference as a share of the baseline's median; 0 means equal."""
    slack: Bounded = 0.0
    """Allowed difference in the counter's own unit, added to the band."""
    both_ways: bool = False
    """Whether a smaller value is wrong, too."""
    any_environment: bool = False
    """Whether the counter is comparable across machines."""


# The gated counters and their tolerances: wide ones for durations beside the timed steps, because they vary.
COUNTERS: dict[str, CounterGate] = {
    "samples_served": CounterGate(both_ways=True, any_environment=True),
    "payload_bytes": CounterGate(both_ways=True, any_environment=True),
    "bytes_on_disk": CounterGate(band_frac=0.01),
    "device_read_bytes": CounterGate(band_frac=0.02, slack=64 * 1024),
    "read_calls": CounterGate(band_frac=0.01, slack=16),
    "major_faults": CounterGate(band_frac=0.10, slack=16),
    "open_s": CounterGate(band_frac=1.0, slack=0.5),
    "time_to_first_batch_s": CounterGate(band_frac=1.0, slack=0.5),
    "warmup_s": CounterGate(band_frac=1.0, slack=0.5),
    "cpu_s_per_sample": CounterGate(band_frac=1.0, slack=5e-6),
}


class CellPolicy(_Strict):
    """Exceptions for the cells whose id or label matches a shell pattern."""

    match: str
    practical_frac: Bounded | None = None
    gate_time: bool = True
    gate_counters: bool = True

    @pydantic.model_validator(mode="after")
    def _gates_something(self) -> Self:
        if not self.gate_time and not self.gate_counters:
            raise ValueError(
                "gate_time and gate_counters are both false, so nothing of these cells would be checked"
            )
        return self


def _known_counter(name: str) -> str:
    if name not in COUNTERS:
        raise ValueError(str(UnknownNameError.of("counter", name, COUNTERS)))
    return name


class Policy(_Strict):
    practical_frac: Bounded = PRACTICAL_FRAC
    """A time is worse if its whole interval is beyond this slow-down, and within noise if it ends below it."""
    max_inconclusive_frac: Bounded = 0.5
    """A larger share of inconclusive cells gives exit code 4; with ``--strict`` any such cell does."""
    counters: dict[Annotated[str, pydantic.AfterValidator(_known_counter)], CounterGate] = {}
    cells: list[CellPolicy] = []

    def gate(self, counter: str) -> CounterGate:
        """Return the gate of a counter: the file's, or the built-in one."""
        return self.counters.get(counter, COUNTERS[counter])

    def cell(self, cell_id: str, label: str) -> CellPolicy:
        for exception in self.cells:
            if fnmatch.fnmatchcase(cell_id, exception.match) or fnmatch.fnmatchcase(label, exception.match):
                return exception
        return CellPolicy(match="*")

    def require_times(self, labels: Iterable[str]) -> None:
        """Refuse a policy that compares the time of none of these cells."""
        named = list(labels)
        if named and not any(self.cell("", label).gate_time for label in named):
            raise UsageError(
                "this policy compares the time of no cell",
                where="gate_time",
                hint="Leave 'gate_time = false' to the cells whose time says nothing.",
            )


def load_policy(path: Path) -> Policy:
    return read_table("policy", path, Policy, {"counters": CounterGate, "cells": CellPolicy})
