"""Read a side from any of its sources.

There are three sources: a folder (or file) of records that ``storebench bench``
wrote; pytest-benchmark JSON, one file or a folder of files (one file per session,
and each session is one replicate); and a baseline that ``storebench check
--update`` wrote.
"""

from pathlib import Path
from typing import Any

from storebench.check.sides.baseline import side_of_baseline
from storebench.check.sides.benchmarks import side_of_sessions
from storebench.check.sides.model import BASELINE_NAME, Side, read_json
from storebench.check.sides.records import side_of_records
from storebench.check.sides.rules import checked_side
from storebench.errors import CorruptDataError, IntegrityError, NotComparableError, StorebenchError
from storebench.runs.records import RECORDS_NAME


def read_side(path: Path, *, baseline: bool) -> Side:
    """Read one side.

    Raises
    ------
    NotComparableError
        There is no baseline at the path.
    IntegrityError
        There is no contender at the path, or it holds no measurement.
    SchemaVersionError, CorruptDataError
        The file cannot be read.
    """
    try:
        side = checked_side(_read(path))
    except FileNotFoundError:
        problem = "there is nothing in this folder" if path.is_dir() else "no such file or folder"
        raise _nothing(path, problem, baseline=baseline) from None
    if not side.cells:
        raise _nothing(path, "nothing was measured", baseline=baseline)
    return side


def _nothing(path: Path, problem: str, *, baseline: bool) -> StorebenchError:
    if baseline:
        return NotComparableError(
            f"no baseline: {problem}",
            where=path,
            hint="Make one with 'storebench check results/baselines/NAME CONTENDER --update'.",
        )
    return IntegrityError(
        problem, where=path, hint="Find out why the run before this check wrote no figures."
    )


def _read(path: Path) -> Side:
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".jsonl":
        return side_of_records(path)
    raw = read_json(path)
    return side_of_records(path) if isinstance(raw, list) else _read_object(path, raw)


def _read_folder(path: Path) -> Side:
    if (path / BASELINE_NAME).is_file():
        return _read_object(path, read_json(path / BASELINE_NAME))
    if (path / RECORDS_NAME).is_file():
        return side_of_records(path)
    parsed = [(str(file), read_json(file)) for file in sorted(path.glob("*.json"))]
    sessions = [(name, raw) for name, raw in parsed if isinstance(raw, dict) and "benchmarks" in raw]
    if not sessions:
        raise FileNotFoundError(path)
    return side_of_sessions(str(path), sessions)


def _read_object(path: Path, raw: Any) -> Side:
    if isinstance(raw, dict) and "storebench_baseline" in raw:
        return side_of_baseline(str(path), raw)
    if isinstance(raw, dict) and "benchmarks" in raw:
        return side_of_sessions(str(path), [(str(path), raw)])
    raise CorruptDataError(
        "neither records nor pytest-benchmark's JSON nor a baseline",
        where=path,
        hint="Name a run's folder, a --benchmark-json file, or a folder of them.",
    )
