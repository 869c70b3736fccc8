"""pytest-benchmark's JSON as one side of a check: one file is one session, and a session is one replicate.

What `storebench.testing.benchmarks.measure` puts into ``extra_info`` is used;
a benchmark without it is compared in seconds, and only with the same machine.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from storebench.check.sides import CellData, Replicate, Side, Where
from storebench.errors import CorruptDataError, SchemaVersionError

EXTRA_VERSION = 1
"""Version of what stands in ``extra_info``."""

FAILED_KEY = "storebench_failed"
"""Top-level key of a session's JSON: node ids of benchmarks that raised, with the error's line."""

_MACHINE = ("machine", "system", "release", "python_implementation", "python_version")
_CPU = ("brand_raw", "arch", "count")

_Session = tuple[str, dict[str, Any]]
_Found = tuple[dict[str, Any], Where, str]


def side_of_sessions(source: str, sessions: Sequence[_Session]) -> Side:
    """Read sessions, each (file name, its JSON).

    Raises
    ------
    SchemaVersionError
        ``extra_info`` of another version.
    CorruptDataError
        A key is missing or of another type than pytest-benchmark and we write.
    """
    try:
        return _side(source, sessions)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"not pytest-benchmark's JSON ({type(error).__name__}: {error})",
            where=source,
            hint="Run it again.",
        ) from None


def _side(source: str, sessions: Sequence[_Session]) -> Side:
    grouped: dict[str, list[_Found]] = {}
    failures: dict[str, str] = {}
    for where, raw in sessions:
        environment = _environment(raw.get("machine_info") or {})
        for one in raw["benchmarks"]:
            grouped.setdefault(_cell_id(one), []).append((one, environment, where))
        failures |= raw.get(FAILED_KEY, {})
    alone = len(sessions) == 1
    cells = {cell_id: _cell(cell_id, found, one_process=alone) for cell_id, found in grouped.items()}
    for node, failure in failures.items():
        known = next((cell for cell in cells.values() if cell.rerun == node), None)
        name = known.cell_id if known else node
        cells[name] = CellData(cell_id=name, label=name, failure=failure, rerun=node)
    return Side(source=source, kind="pytest-benchmark", cells=cells)


def _cell_id(benchmark: Mapping[str, Any]) -> str:
    return str(benchmark.get("extra_info", {}).get("cell_id") or benchmark["fullname"])


def _environment(machine: Mapping[str, Any]) -> Where:
    """Return storebench's environment key, or one made of what pytest-benchmark knows and does not vary."""
    if "storebench_environment" in machine:
        found = machine["storebench_environment"]
        return Where(key=found["key"], match=found["match"])
    if not machine:
        return Where()
    match = {name: machine.get(name) for name in _MACHINE}
    match["cpu"] = {name: machine.get("cpu", {}).get(name) for name in _CPU}
    text = json.dumps(match, sort_keys=True)
    return Where(key=hashlib.blake2b(text.encode(), digest_size=6).hexdigest(), match=match)


def _cell(cell_id: str, found: Sequence[_Found], *, one_process: bool) -> CellData:
    first, environment, _ = found[0]
    extra = first.get("extra_info", {})
    same_place = len({where.key for _, where, _ in found}) == 1
    numbered = [
        replicate
        for number, (one, _, where) in enumerate(found)
        for replicate in _replicates(one, number, where, one_process=one_process)
    ]
    calibrated = bool(numbered) and all(one.relative is not None for one in numbered)
    return CellData(
        cell_id=cell_id,
        label=cell_id,
        calibration=str(extra.get("calibration", "")) if calibrated else "",
        samples_of=str(extra.get("samples_of", "")),
        environment=environment if same_place else Where(),
        replicates=tuple(numbered),
        one_process=one_process,
        failure=_cache_failure(found) or ("" if numbered else "it has no rounds"),
        rerun=first["fullname"],
    )


def _cache_failure(found: Sequence[_Found]) -> str:
    for one, _, _ in found:
        extra = one.get("extra_info", {})
        if extra.get("cache_verdict") == "failed":
            return f"the cache was not {extra.get('cache')}: {extra.get('cache_reason', '')}"
    return ""


def _replicates(
    benchmark: Mapping[str, Any], number: int, where: str, *, one_process: bool
) -> list[Replicate]:
    """Return a session's one replicate, or its rounds where it is the only session."""
    extra = benchmark.get("extra_info", {})
    version = extra.get("schema_version", EXTRA_VERSION)
    if version != EXTRA_VERSION:
        raise SchemaVersionError(
            f"extra_info of schema version {version}, this storebench reads {EXTRA_VERSION}",
            where=f"{where}: {benchmark.get('fullname')}",
            hint="Run the benchmarks again.",
        )
    seconds, relative = _rounds(benchmark, extra, where)
    counters = {name: value for name, value in extra.get("counters", {}).items() if value is not None}
    if not one_process:
        seconds, relative = _lower_quartile(seconds), _lower_quartile(relative)
    return [
        Replicate(
            number=position if one_process else number,
            seconds=value,
            relative=relative[position] if relative else None,
            counters=counters,
        )
        for position, value in enumerate(seconds)
    ]


def _lower_quartile(values: Sequence[float]) -> list[float]:
    """Return the one figure that stands for a session's rounds, or none of none.

    What disturbs a round makes it longer, never shorter, so the lower quartile repeats better
    than the median; the shortest alone would hang on one lucky round.
    """
    return [sorted(values)[(len(values) - 1) // 4]] if values else []


def _rounds(
    benchmark: Mapping[str, Any], extra: Mapping[str, Any], where: str
) -> tuple[list[float], list[float]]:
    """Return each round's seconds per sample, and its ratio to the calibration beside it."""
    stats = benchmark.get("stats") or {}
    # --benchmark-json keeps every round; --benchmark-save without --benchmark-save-data does not.
    rounds = stats.get("data") or ([stats["median"]] if "median" in stats else [])
    samples = float(extra.get("samples") or 1)
    calibration = extra.get("calibration_s") or []
    if not all(
        isinstance(one, int | float) and 0 < one < math.inf for one in [*rounds, *calibration, samples]
    ):
        raise CorruptDataError(
            "a duration or a number of samples is no positive number",
            where=f"{where}: {benchmark.get('fullname')}",
        )
    seconds = [one / samples for one in rounds]
    if len(calibration) != len(rounds):
        return seconds, []
    return seconds, [one / beside for one, beside in zip(rounds, calibration, strict=True)]
