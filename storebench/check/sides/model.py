"""One side of a check: its cells, each with a cost per replicate and its counters."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.fileio.json_text import parse_json
from storebench.fileio.reading import read_small_file
from storebench.runs.records import PAIRING_NAME

BASELINE_NAME = "baseline.json"

_PAIRING_WORDS = ("pairing", "commit", "repository")

MOST_FILE_BYTES = 256 * 2**20
"""Most bytes of a baseline or of a session of pytest-benchmark; those of 1,000 cells have about 5 MB."""

FEWEST_FOR_TAIL = 5
"""With fewer rounds or epochs in one process there is no tail."""


@dataclass(frozen=True, kw_only=True)
class Replicate:
    """One replicate of a cell.

    Attributes
    ----------
    number
        Position of the replicate; equal numbers of two paired sides ran next to each other.
    seconds
        Seconds per sample; for a session, the median of its rounds.
    relative
        The same divided by the calibration of the same process; None if nothing was calibrated.
    counters
        Counter name -> value; only counters that are meaningful for the cell.
    tail_s
        Seconds per sample of the slowest rounds, or seconds of a slow step (`CellData.tail_of`); None if there
        are too few of them.
    machine_s
        Seconds of the calibration; None if nothing was calibrated.
    busy_cores
        Cores that other processes used in the meantime; None if nothing measured it.
    """

    number: int
    seconds: float
    relative: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    tail_s: float | None = None
    machine_s: float | None = None
    busy_cores: float | None = None


@dataclass(frozen=True, kw_only=True)
class MachineAndStorage:
    """The machine and storage that a cell was measured on: with equal keys, seconds may be compared; "" if unknown."""

    key: str = ""
    match: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CellData:
    """The data of one side on one cell.

    Attributes
    ----------
    cell_id
        Key by which the two sides are matched.
    label
        The cell in words.
    calibration
        Reference of `Replicate.relative` (`storebench.check.calibration.LimitingWork`), or "".
    samples_of
        Fingerprint or digest of the samples, or "" if unknown.
    one_process
        Whether the replicates are rounds of one process.
    failure
        Why the cell failed, or "".
    disagreement
        Where its records say something else than their step tables, or "".
    round_s
        Seconds that one replicate took, preparation and proof included; 0 if unknown.
    rerun
        Argument that runs the cell again: a pytest node id or a cell id.
    figure
        Figure in `Replicate.seconds`: "median" of a session's rounds, "mean" of an epoch's steps. Baselines of
        earlier releases hold a "lower quartile".
    tail_of
        What `Replicate.tail_s` is ("slowest tenth of the rounds", "p95 of the steps"), or "".
    samples
        Samples that a round serves; None if unknown.
    rounds
        Rounds of each session; None if unknown.
    asked
        Settings of the cell, by name, to describe how a missing cell differs.
    """

    cell_id: str
    label: str
    calibration: str = ""
    samples_of: str = ""
    environment: MachineAndStorage = field(default_factory=MachineAndStorage)
    replicates: tuple[Replicate, ...] = ()
    one_process: bool = False
    failure: str = ""
    disagreement: str = ""
    round_s: float = 0.0
    rerun: str = ""
    figure: str = "median"
    tail_of: str = ""
    samples: int | None = None
    rounds: int | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Side:
    """All cells of a baseline or contender.

    Attributes
    ----------
    source
        Path from which the side was read.
    kind
        "records", "pytest-benchmark" or "baseline".
    pairing
        Equal for two sides that ran interleaved (``bench --against``), else "".
    skipped
        Argument that runs a benchmark again -> reason why it was skipped.
    """

    source: str
    kind: str
    cells: Mapping[str, CellData]
    pairing: str = ""
    skipped: Mapping[str, str] = field(default_factory=dict)


def slowest_tenth(values: Sequence[float]) -> float:
    """Return the mean of the slowest tenth of the values, at least one of them.

    It is at least the 90th percentile, and shows a single stall in ten rounds.
    """
    return statistics.fmean(sorted(values)[-math.ceil(len(values) / 10) :])


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    CorruptDataError
        It is not JSON (an interrupted run leaves half a file), not a regular file, or too large.
    """
    raw = read_small_file(path, most_bytes=MOST_FILE_BYTES)
    if not raw.strip():
        return {"benchmarks": []}  # pytest-benchmark creates its file before it knows that nothing ran
    return parse_json(raw, path, hint="Run it again.")


def read_pairing(folder: Path) -> dict[str, Any]:
    """Return the pairing that ``bench --against`` wrote into a side's folder; empty for any other run.

    Raises
    ------
    CorruptDataError
        The file holds something else.
    """
    path = folder / PAIRING_NAME
    if not path.is_file():
        return {}
    about = parse_json(read_small_file(path), path)
    code = about.get("code", {}) if isinstance(about, dict) else None
    words = [about.get(name, "") for name in _PAIRING_WORDS] if isinstance(about, dict) else [None]
    words += [code.get("digest", "")] if isinstance(code, dict) else [None]
    if not all(isinstance(word, str) for word in words):
        raise CorruptDataError("not what 'bench --against' writes", where=path, hint="Run it again.")
    pairing: dict[str, Any] = about
    return pairing


def same_code(baseline: Path, contender: Path) -> bool:
    """Return whether ``bench --against`` made these two folders and found nothing to compare."""
    first, second = read_pairing(baseline), read_pairing(contender)
    return bool(first.get("same")) and first.get("pairing") == second.get("pairing")
