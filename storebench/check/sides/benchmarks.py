"""pytest-benchmark's JSON as one side of a check: one file is one session, and a session is one replicate.

A session's figure is the median of its rounds, and its tail the mean of the slowest tenth of them.

The ``extra_info`` that `storebench.testing.benchmarks.measure` writes is used. A
benchmark without it is compared in seconds, and only on the same machine.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from storebench.check.sides.model import (
    FEWEST_FOR_TAIL,
    CellData,
    MachineAndStorage,
    Replicate,
    Side,
    slowest_tenth,
)
from storebench.errors import CorruptDataError, SchemaVersionError

EXTRA_VERSION = 2
"""Version of ``extra_info``; version 1 had other calibrations."""

FAILED_KEY = "storebench_failed"
"""Top-level key of a session's JSON: node ids of benchmarks that raised, with the error's line."""

SKIPPED_KEY = "storebench_skipped"
"""Top-level key of a session's JSON: node ids of benchmarks that were skipped, with the reason."""

TAIL = "slowest tenth of the rounds"

_MACHINE = ("machine", "system", "release", "python_implementation", "python_version")
_CPU = ("brand_raw", "arch", "count")

_Session = tuple[str, dict[str, Any]]
_Found = tuple[dict[str, Any], MachineAndStorage, str]


def side_of_sessions(source: str, sessions: Sequence[_Session]) -> Side:
    """Read sessions, each (file name, its JSON).

    Raises
    ------
    SchemaVersionError
        ``extra_info`` of another version.
    CorruptDataError
        A key is missing, or has another type than pytest-benchmark and storebench write.
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
    skipped: dict[str, str] = {}
    for where, raw in sessions:
        environment = _environment(raw.get("machine_info") or {})
        for benchmark in raw["benchmarks"]:
            grouped.setdefault(_cell_id(benchmark), []).append((benchmark, environment, where))
        failures |= raw.get(FAILED_KEY, {})
        skipped |= raw.get(SKIPPED_KEY, {})
    alone = len(sessions) == 1
    cells = {
        cell_id: _cell(cell_id, benchmarks, one_process=alone) for cell_id, benchmarks in grouped.items()
    }
    named = {cell.rerun: name for name, cell in cells.items()}
    failures |= {node: f"it was skipped in one session: {skipped[node]}" for node in skipped if node in named}
    for node, failure in failures.items():
        name = named.get(node, node)
        cells[name] = CellData(cell_id=name, label=name, failure=failure, rerun=node)
    return Side(source=source, kind="pytest-benchmark", cells=cells, skipped=skipped)


def _cell_id(benchmark: Mapping[str, Any]) -> str:
    return str(benchmark.get("extra_info", {}).get("cell_id") or benchmark["fullname"])


def _environment(machine: Mapping[str, Any]) -> MachineAndStorage:
    """Return storebench's environment key, or one made of the stable facts that pytest-benchmark records."""
    if "storebench_environment" in machine:
        environment = machine["storebench_environment"]
        return MachineAndStorage(key=environment["key"], match=environment["match"])
    if not machine:
        return MachineAndStorage()
    match = {name: machine.get(name) for name in _MACHINE}
    match["cpu"] = {name: machine.get("cpu", {}).get(name) for name in _CPU}
    text = json.dumps(match, sort_keys=True)
    return MachineAndStorage(key=hashlib.blake2b(text.encode(), digest_size=6).hexdigest(), match=match)


def _cell(cell_id: str, benchmarks: Sequence[_Found], *, one_process: bool) -> CellData:
    first, environment, _ = benchmarks[0]
    extra = first.get("extra_info", {})
    same_place = len({where.key for _, where, _ in benchmarks}) == 1
    numbered = [
        replicate
        for number, (benchmark, _, where) in enumerate(benchmarks)
        for replicate in _replicates(benchmark, number, where, one_process=one_process)
    ]
    calibrated = bool(numbered) and all(replicate.relative is not None for replicate in numbered)
    return CellData(
        cell_id=cell_id,
        label=cell_id,
        calibration=str(extra.get("calibration", "")) if calibrated else "",
        samples_of=str(extra.get("samples_of", "")),
        environment=environment if same_place else MachineAndStorage(),
        replicates=tuple(numbered),
        one_process=one_process,
        failure=_cache_failure(benchmarks) or ("" if numbered else "it has no rounds"),
        rerun=first["fullname"],
        tail_of=TAIL if numbered and all(replicate.tail_s is not None for replicate in numbered) else "",
        samples=_samples(extra),
        rounds=min((len(_durations(benchmark)) for benchmark, _, _ in benchmarks), default=None)
        if extra
        else None,
    )


def _samples(extra: Mapping[str, Any]) -> int | None:
    return int(extra["samples"]) if extra.get("samples") else None


def _cache_failure(benchmarks: Sequence[_Found]) -> str:
    """Return why a cold or warm cell was not shown to be in that state, or ""."""
    for benchmark, _, _ in benchmarks:
        extra = benchmark.get("extra_info", {})
        verdict, wanted = extra.get("cache_verdict"), extra.get("cache")
        if verdict == "failed":
            return f"the cache was not {wanted}: {extra.get('cache_reason', '')}"
        if wanted == "cold" and verdict != "verified":
            return (
                f"the cache was not verified to be cold: {extra.get('cache_reason') or 'it was not checked'}"
            )
    return ""


def _replicates(
    benchmark: Mapping[str, Any], number: int, where: str, *, one_process: bool
) -> list[Replicate]:
    """Return a session's one replicate, or its rounds if it is the only session."""
    extra = benchmark.get("extra_info", {})
    version = extra.get("schema_version", EXTRA_VERSION)
    if version != EXTRA_VERSION:
        raise SchemaVersionError(
            f"extra_info of schema version {version}, this storebench reads {EXTRA_VERSION}",
            where=f"{where}: {benchmark.get('fullname')}",
            hint="Run the benchmarks again.",
        )
    seconds, calibrations = _rounds(benchmark, extra, where)
    samples = float(extra.get("samples") or 1)
    relative = (
        [samples * value / machine for value, machine in zip(seconds, calibrations, strict=True)]
        if calibrations
        else []
    )
    common: dict[str, Any] = {
        "counters": {name: value for name, value in extra.get("counters", {}).items() if value is not None},
        "busy_cores": extra.get("busy_cores"),
    }
    if one_process:
        return [
            Replicate(
                number=position,
                seconds=value,
                relative=relative[position] if relative else None,
                machine_s=calibrations[position] if calibrations else None,
                **common,
            )
            for position, value in enumerate(seconds)
        ]
    if not seconds:
        return []
    return [
        Replicate(
            number=number,
            seconds=statistics.median(seconds),
            relative=statistics.median(relative) if relative else None,
            machine_s=statistics.median(calibrations) if calibrations else None,
            tail_s=slowest_tenth(seconds) if len(seconds) >= FEWEST_FOR_TAIL else None,
            **common,
        )
    ]


def _durations(benchmark: Mapping[str, Any]) -> list[Any]:
    """Return the seconds of each round, or only their median if pytest-benchmark kept no more."""
    stats = benchmark.get("stats") or {}
    # --benchmark-json keeps every round; --benchmark-save without --benchmark-save-data does not.
    return list(stats.get("data") or ([stats["median"]] if "median" in stats else []))


def _rounds(
    benchmark: Mapping[str, Any], extra: Mapping[str, Any], where: str
) -> tuple[list[float], list[float]]:
    """Return each round's seconds per sample, and the seconds of its calibration (or none at all)."""
    rounds = _durations(benchmark)
    samples = float(extra.get("samples") or 1)
    calibration = list(extra.get("calibration_s") or [])
    busy = extra.get("busy_cores")
    numbers = [*rounds, *calibration, samples]
    if not all(isinstance(value, int | float) and 0 < value < math.inf for value in numbers) or not (
        busy is None or (isinstance(busy, int | float) and 0 <= busy < math.inf)
    ):
        raise CorruptDataError(
            "a duration or a number of samples is not a positive number",
            where=f"{where}: {benchmark.get('fullname')}",
        )
    return [value / samples for value in rounds], calibration if len(calibration) == len(rounds) else []
