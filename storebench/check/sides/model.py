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

BASELINE_NAME = "baseline.json"

PAIRING_NAME = "against.json"

_PAIRING_WORDS = ("pairing", "commit", "repository")

MOST_FILE_BYTES = 256 * 2**20
"""What a baseline or a session of pytest-benchmark may have; those of 1,000 cells have some 5 MB."""

FEWEST_FOR_TAIL = 5
"""Fewer rounds or epochs in one process have no tail."""


@dataclass(frozen=True, kw_only=True)
class Replicate:
    """One replicate of a cell.

    Attributes
    ----------
    number
        Which one; equal numbers of two paired sides ran next to each other.
    seconds
        Seconds per sample: of a session the median of its rounds.
    relative
        The same over the calibration of the same process; None where nothing was calibrated.
    counters
        Counter name -> what was counted; only those that mean something for the cell.
    tail_s
        Seconds per sample of the slowest rounds, or seconds of a slow step (`CellData.tail_of`); None where
        there are too few of them.
    machine_s
        Seconds that the calibration took; None where nothing was calibrated.
    busy_cores
        Cores that other processes used meanwhile; None where nothing measured it.
    """

    number: int
    seconds: float
    relative: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    tail_s: float | None = None
    machine_s: float | None = None
    busy_cores: float | None = None


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a cell was measured: `key` is equal where seconds may be compared; "" where nobody knows."""

    key: str = ""
    match: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CellData:
    """What one side knows of one cell.

    Attributes
    ----------
    cell_id
        What the two sides are matched by.
    label
        The cell in words.
    calibration
        What `Replicate.relative` is relative to (`storebench.check.calibration.Kind`), or "".
    samples_of
        Fingerprint or digest of the samples, or "" where it is not known.
    one_process
        Whether the replicates are rounds of one process.
    failure
        Why the cell failed, or "".
    rerun
        What runs the cell again: a pytest node id or a cell id.
    figure
        What of a replicate `Replicate.seconds` is: "median" of a session's rounds, "mean" of an epoch's steps.
        Baselines of earlier releases hold a "lower quartile".
    tail_of
        What `Replicate.tail_s` is ("slowest tenth of the rounds", "p95 of the steps"), or "".
    samples
        Samples that a round serves; None where it is not known.
    rounds
        Rounds of each session; None where it is not known.
    asked
        The settings that the cell was run with, by name: what differs from a cell that is missing.
    """

    cell_id: str
    label: str
    calibration: str = ""
    samples_of: str = ""
    environment: Where = field(default_factory=Where)
    replicates: tuple[Replicate, ...] = ()
    one_process: bool = False
    failure: str = ""
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
        The path that it was read from.
    kind
        "records", "pytest-benchmark" or "baseline".
    pairing
        Equal on two sides that ran interleaved (``bench --against``); "" otherwise.
    skipped
        What runs a benchmark again -> why it was skipped.
    """

    source: str
    kind: str
    cells: Mapping[str, CellData]
    pairing: str = ""
    skipped: Mapping[str, str] = field(default_factory=dict)


def slowest_tenth(values: Sequence[float]) -> float:
    """Return the mean of the slowest tenth of values, at least of one.

    It is at least as long as the 90th percentile, and a single stall in ten rounds shows in it.
    """
    return statistics.fmean(sorted(values)[-math.ceil(len(values) / 10) :])


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    CorruptDataError
        It is not JSON (an interrupted run leaves half a file), no regular file, or too large.
    """
    raw = read_small_file(path, most_bytes=MOST_FILE_BYTES)
    if not raw.strip():
        return {"benchmarks": []}  # pytest-benchmark opens its file before it knows that nothing ran
    return parse_json(raw, path, hint="Run it again.")


def read_pairing(folder: Path) -> dict[str, Any]:
    """Return what ``bench --against`` wrote about a side into its folder; empty for any other run.

    Raises
    ------
    CorruptDataError
        Something else stands there.
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
    found: dict[str, Any] = about
    return found
