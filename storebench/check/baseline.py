"""The committed baseline: what ``storebench check --update`` writes, with its history beside it.

::

    results/baselines/NAME/
      baseline.json          what a check is held against
      history/TIME.json      every baseline before it, as it was
"""

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storebench._version import __version__
from storebench.check.judge import CellResult, State
from storebench.check.sides import BASELINE_NAME, CellData, Replicate, Side, Where, read_json
from storebench.errors import (
    CorruptDataError,
    IntegrityError,
    RegressionError,
    SchemaVersionError,
    UsageError,
    from_os_error,
)

BASELINE_VERSION = 1
BASELINES = Path("results/baselines")
HISTORY = "history"

_REASON = "Say why it is accepted with --reason TEXT: it is stored with the baseline."


def side_of_baseline(source: str, raw: dict[str, Any]) -> Side:
    """Read a baseline's JSON.

    Raises
    ------
    SchemaVersionError
        Another version of storebench wrote it.
    CorruptDataError
        A key is missing or misspelt.
    """
    version = raw["storebench_baseline"]
    if version != BASELINE_VERSION:
        raise SchemaVersionError(
            f"a baseline of schema version {version}, this storebench reads {BASELINE_VERSION}",
            where=source,
            hint="Make a new one with --update.",
        )
    try:
        cells = {one["cell_id"]: _cell(one) for one in raw["cells"]}
    except (AttributeError, KeyError, TypeError) as error:
        raise CorruptDataError(f"not a baseline ({type(error).__name__}: {error})", where=source) from None
    return Side(source=source, kind="baseline", cells=cells)


def _cell(raw: dict[str, Any]) -> CellData:
    replicates = tuple(Replicate(**one) for one in raw["replicates"])
    return CellData(**{**raw, "replicates": replicates, "environment": Where(**raw["environment"])})


def update(
    target: Path,
    contender: Side,
    results: Sequence[CellResult] | None,
    *,
    reason: str = "",
) -> Path:
    """Make the contender the baseline at `target` and keep the one before; return the file.

    Parameters
    ----------
    target
        A folder directly in ``results/baselines``.
    results
        What the check against the baseline before said; null where there was none.
    reason
        Why a regression or a lost cell is accepted.

    Raises
    ------
    UsageError
        `target` is somewhere else.
    IntegrityError
        A cell failed: its figures are none.
    RegressionError
        The contender is worse or lacks cells, and there is no reason.
    """
    folder = target.parent if target.name == BASELINE_NAME else target
    if folder.resolve().parent != BASELINES.resolve():
        raise UsageError(
            "baselines are written to results/baselines/ only",
            where=target,
            hint=f"Name {BASELINES}/NAME as the baseline.",
        )
    _refuse(contender, results or [], reason)
    text = json.dumps(_content(contender, results or [], reason), indent=1) + "\n"
    try:
        return _write(folder, text)
    except OSError as error:
        raise from_os_error(error, folder) from error


def _refuse(contender: Side, results: Sequence[CellResult], reason: str) -> None:
    failed = [cell for cell in contender.cells.values() if cell.failure]
    if failed:
        raise IntegrityError(
            f"{len(failed)} failed cells cannot be a baseline: {failed[0].label}: {failed[0].failure}",
            where=contender.source,
            hint="Run them again.",
        )
    lost = [one for one in results if one.state in (State.WORSE, State.MISSING)]
    if lost and not reason.strip():
        names = ", ".join(f"{one.label} ({one.state})" for one in lost[:3])
        raise RegressionError(
            f"a baseline that would be worse: {names}", where=contender.source, hint=_REASON
        )


def _content(contender: Side, results: Sequence[CellResult], reason: str) -> dict[str, Any]:
    accepted = [
        f"{one.label}: {one.state}: {one.reason}"
        for one in results
        if one.state in (State.WORSE, State.MISSING)
    ]
    return {
        "storebench_baseline": BASELINE_VERSION,
        "storebench_version": __version__,
        "created_utc": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "reason": reason,
        "accepted": accepted,
        "cells": [dataclasses.asdict(cell) for _, cell in sorted(contender.cells.items())],
    }


def _write(folder: Path, text: str) -> Path:
    path = folder / BASELINE_NAME
    (folder / HISTORY).mkdir(parents=True, exist_ok=True)
    if path.exists():
        created = str(read_json(path).get("created_utc", "unknown")).replace(":", "").replace("+0000", "Z")
        kept = folder / HISTORY / f"{created}.json"
        number = 1
        while kept.exists():
            number += 1
            kept = folder / HISTORY / f"{created}-{number}.json"
        kept.write_bytes(path.read_bytes())
    unfinished = folder / f".{BASELINE_NAME}.tmp"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
    return path
