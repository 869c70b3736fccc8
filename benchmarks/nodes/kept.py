"""The results of checks as files, one per check: ``results/reference/nodes``, from which docs/nodes.md has its tables.

docs/nodes.md explains the fields.
"""

import dataclasses
import datetime as dt
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.nodes.cluster import Epoch
from benchmarks.nodes.limits import Limits, Observed, Probed
from benchmarks.scaling_io import Way
from storebench import __version__
from storebench.errors import DataNotFoundError, UsageError
from storebench.fileio.whole_files import write_whole

SCHEMA_VERSION = 1
FOLDER = Path("results") / "reference" / "nodes"
"""The committed results, from the root of the repository."""


@dataclass(frozen=True, kw_only=True)
class Replicate:
    """One epoch of one replicate of a check.

    Attributes
    ----------
    limits, probed, observed
        The limits of the nodes, their rates before the run, and their traffic in the epoch; None if not measured.
    cell
        The settings in which the cells of these checks differ.
    samples_per_s, skew, payload_bytes, device_read_bytes
        Figures of storebench's record; the last are the bytes that the disks delivered to each rank, None if not counted.
    failure
        The reason if it failed; "" if not.
    marks
        Reasons why it does not reflect its limits.
    predicted, measured, error
        The figure that the check compares, and its error as a share; None if the check compares nothing in this epoch.
    """

    limits: Limits
    probed: Probed | None
    observed: Observed | None
    cell: Mapping[str, Any]
    round: int
    epoch: int
    samples_per_s: float
    skew: float | None
    payload_bytes: int
    device_read_bytes: tuple[int | None, ...]
    failure: str
    marks: tuple[str, ...]
    predicted: float | None = None
    measured: float | None = None
    error: float | None = None

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        limits: Limits,
        probed: Probed | None,
        *,
        predicted: float | None = None,
        measured: float | None = None,
        error: float | None = None,
    ) -> Self:
        """Return the replicate of an epoch on emulated nodes."""
        record, job = epoch.record, epoch.record.job
        cell = record.cell
        return cls(
            limits=limits,
            probed=probed,
            observed=epoch.observed,
            cell={
                "dataset": cell.data.name,
                "backend": cell.backend.name,
                "cache": str(cell.cache),
                "ranks": cell.ranks,
                "batch_size": cell.batch_size,
                "workers": cell.workers,
                "compute": str(cell.compute),
                "model": cell.model,
                "sync": str(cell.sync),
                "share": str(cell.share),
                "gradient_bytes": 0 if job is None else job.gradient_bytes or 0,
            },
            round=record.replicate,
            epoch=record.epoch,
            samples_per_s=record.samples_per_s,
            skew=None if job is None else job.skew,
            payload_bytes=record.payload_bytes,
            device_read_bytes=() if job is None else tuple(rank.device_read_bytes for rank in job.per_rank),
            failure=record.failure or "",
            marks=epoch.marks,
            predicted=predicted,
            measured=measured,
            error=error,
        )

    @property
    def counts(self) -> bool:
        """Whether the check compared it, and its limits held."""
        return self.error is not None and not self.marks


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of a check.

    Attributes
    ----------
    name
        Its name on the command line.
    replicates
        Its replicates, in the order in which they were measured.
    ways
        Measurements of one process that the model starts from, by way of reading.
    """

    name: str
    replicates: tuple[Replicate, ...]
    ways: Mapping[str, Way] = dataclasses.field(default_factory=dict)


def keep(folder: Path | None, check: Check) -> None:
    """Write a check to its file in a folder; do nothing without a folder."""
    if folder is None:
        return
    content = {
        "schema_version": SCHEMA_VERSION,
        "check": check.name,
        "emulated": True,
        "measured_utc": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "storebench_version": __version__,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "ways": {name: dataclasses.asdict(way) for name, way in check.ways.items()},
        "replicates": [_finite(dataclasses.asdict(one)) for one in check.replicates],
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_whole(folder / f"{check.name}.json", text)


def read(folder: Path, name: str) -> Check:
    """Return a check from its file.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    UsageError
        It is not a file of a check, or one of a later version.
    """
    path = folder / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["schema_version"]
        if version != SCHEMA_VERSION:
            raise UsageError(f"schema version {version} is not {SCHEMA_VERSION}", where=path)
        return Check(
            name=content["check"],
            replicates=tuple(map(_replicate, content["replicates"])),
            ways={name: Way(**way) for name, way in content["ways"].items()},
        )
    except FileNotFoundError:
        raise DataNotFoundError(
            "there is no result of this check", where=path, hint=f"Measure it: {name} --keep {folder}."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"not the result of a check: {error}", where=path) from None


def _replicate(content: dict[str, Any]) -> Replicate:
    """Return a replicate from its part of a file."""
    nested = {
        "limits": Limits(**_tuples(content["limits"], unlimited=True)),
        "probed": None if content["probed"] is None else Probed(**_tuples(content["probed"])),
        "observed": None if content["observed"] is None else Observed(**_tuples(content["observed"])),
    }
    return Replicate(**_tuples(content | nested))


def _tuples(fields: Mapping[str, Any], *, unlimited: bool = False) -> dict[str, Any]:
    """Return fields with lists as tuples, in which no limit is infinity."""
    return {
        name: tuple(math.inf if unlimited and one is None else one for one in value)
        if isinstance(value, list)
        else value
        for name, value in fields.items()
    }


def _finite(value: Any) -> Any:
    """Return a value with null instead of infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def worst(replicates: Iterable[Replicate]) -> float:
    """Return the largest error of those that count, as a share; 0 without any."""
    return max((abs(one.error) for one in replicates if one.counts and one.error is not None), default=0.0)


def by_limits(replicates: Sequence[Replicate]) -> dict[Limits, list[Replicate]]:
    """Return those that a check compares, by their limits, in order."""
    groups: dict[Limits, list[Replicate]] = {}
    for one in replicates:
        if one.error is not None:
            groups.setdefault(one.limits, []).append(one)
    return groups
