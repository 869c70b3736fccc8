"""The committed baseline, as ``storebench check --update`` writes it, with its history beside it.

::

    results/baselines/NAME/
      baseline.json          the baseline of a check
      history/TIME.json      every earlier baseline, unchanged
"""

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storebench._version import __version__
from storebench.check.judge import judge
from storebench.check.policy import Policy
from storebench.check.result import CellResult, CellState
from storebench.check.sides.baseline import BASELINE_VERSION, side_of_baseline
from storebench.check.sides.model import BASELINE_NAME, CellData, Side, read_json
from storebench.errors import IntegrityError, RegressionError, StorebenchError, UsageError, from_os_error
from storebench.fileio.whole_files import is_unfinished, made_folder, write_whole
from storebench.units import number_of

BASELINES = Path("results/baselines")

HISTORY = "history"

_STEM = 100
"""Most characters of a file name in the history; the time in a baseline may be any text."""

_WRONG = (CellState.WORSE, CellState.MISSING, CellState.NOT_COMPARABLE, CellState.FAILED)

_REASON = "Give the reason for accepting it with --reason TEXT; it is stored with the baseline."


def is_free(target: Path) -> bool:
    """Return whether writing a baseline to `target` loses nothing: there is nothing, or an empty folder.

    Files of a killed writer do not count, because the next write removes them.
    """
    if not target.is_dir():
        return not target.exists()
    entries = [entry for entry in target.iterdir() if not is_unfinished(entry)]
    return all(entry.name == HISTORY and entry.is_dir() and not any(entry.iterdir()) for entry in entries)


def update(
    target: Path,
    contender: Side,
    results: Sequence[CellResult] | None,
    policy: Policy,
    *,
    reason: str = "",
) -> Path:
    """Make the contender the baseline at `target`, keep the previous one, and return the file.

    Parameters
    ----------
    target
        A folder directly in ``results/baselines``.
    results
        Results of the check against the previous baseline; None if there was none.
    reason
        Reason for accepting a regression, a lost cell or a drift.

    Raises
    ------
    UsageError
        `target` is not directly in ``results/baselines``.
    IntegrityError
        A cell failed, so its figures are invalid.
    RegressionError
        There is no reason, and the contender is slower than the baseline by more than a threshold, in its time
        or its tail (proven or not), slower by that much than the oldest baseline since a reason was last given,
        not comparable, or lacks cells or counters.
    """
    folder = target.parent if target.name == BASELINE_NAME else target
    if folder.resolve().parent != BASELINES.resolve():
        raise UsageError(
            "baselines are written to results/baselines/ only",
            where=target,
            hint=f"Name {BASELINES}/NAME as the baseline.",
        )
    accepted = _to_accept(folder, contender, results or [], policy)
    _refuse(contender, accepted, reason)
    text = json.dumps(_content(contender, accepted, reason), indent=1) + "\n"
    try:
        return _write(folder, text)
    except OSError as error:
        raise from_os_error(error, error.filename or folder) from error


def _to_accept(
    folder: Path, contender: Side, results: Sequence[CellResult], policy: Policy
) -> dict[str, str]:
    """Return the problems that only a reason can accept, by cell id: the label and the problem."""
    problems = {result.cell_id: f"{result.label}: {wrong}" for result in results if (wrong := _wrong(result))}
    anchors = _anchors(folder)
    oldest = Side(source=str(folder / HISTORY), kind="baseline", cells=anchors)
    for result in judge(oldest, contender, policy, only=[*anchors]) if anchors else []:
        if result.cell_id not in problems and result.above_threshold:
            problems[result.cell_id] = (
                f"{result.label}: drifted: {result.above_threshold} as in the oldest baseline"
            )
    return problems


def _wrong(result: CellResult) -> str:
    """Return why a result must not become the baseline without a reason, or ""."""
    if result.state in _WRONG:
        return f"{result.state}: {result.reason}"
    above = result.above_threshold
    return f"{result.state}: {above}, which is above the threshold" if above else ""


def _anchors(folder: Path) -> Mapping[str, CellData]:
    """Return for each cell the oldest figures since a reason was last given for it, by cell id."""
    anchors: dict[str, CellData] = {}
    kept = [
        (path, read_json(path))
        for path in [*(folder / HISTORY).glob("*.json"), folder / BASELINE_NAME]
        if path.is_file()
    ]
    tables = [(path, raw) for path, raw in kept if isinstance(raw, dict) and "storebench_baseline" in raw]
    for path, raw in sorted(tables, key=lambda item: str(item[1].get("created_utc"))):
        try:
            side = side_of_baseline(str(path), raw)
        except StorebenchError:
            continue  # a baseline that this version cannot read is not an anchor
        accepted = raw.get("accepted")
        lines = [line for line in accepted if isinstance(line, str)] if isinstance(accepted, list) else []
        for name, cell in side.cells.items():
            anew = any(line.startswith(f"{cell.label}: ") for line in lines)
            if name not in anchors or anew or anchors[name].figure != cell.figure:
                anchors[name] = cell
    return anchors


def _refuse(contender: Side, accepted: Mapping[str, str], reason: str) -> None:
    failed = [cell for cell in contender.cells.values() if cell.failure]
    if failed:
        raise IntegrityError(
            f"{number_of(len(failed), 'failed cell')} cannot be a baseline: {failed[0].label}: {failed[0].failure}",
            where=contender.source,
            hint="Run them again.",
        )
    if accepted and not reason.strip():
        names = "; ".join(list(accepted.values())[:3])
        more = f"; and {len(accepted) - 3} more" if len(accepted) > 3 else ""
        raise RegressionError(
            f"this cannot become the baseline without a reason: {names}{more}",
            where=contender.source,
            hint=_REASON,
        )


def _content(contender: Side, accepted: Mapping[str, str], reason: str) -> dict[str, Any]:
    return {
        "storebench_baseline": BASELINE_VERSION,
        "storebench_version": __version__,
        "created_utc": dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
        "reason": reason,
        "accepted": list(accepted.values()),
        "cells": [dataclasses.asdict(cell) for _, cell in sorted(contender.cells.items())],
    }


def _write(folder: Path, text: str) -> Path:
    """Write a baseline, and the previous one into its history; if either cannot be written, both stay unchanged."""
    path = folder / BASELINE_NAME
    replaced = path.exists()
    with made_folder(folder / HISTORY if replaced else folder):
        kept = _keep(path, folder / HISTORY) if replaced else None
        try:
            write_whole(path, text)
        except BaseException:
            # The new baseline may already be in place; then only the history holds the older one.
            if kept is not None and path.read_bytes() == kept.read_bytes():
                kept.unlink(missing_ok=True)
            raise
    return path


def _keep(path: Path, history: Path) -> Path:
    """Copy a baseline into the history under a separate name."""
    raw = read_json(path)
    created_utc = raw.get("created_utc", "unknown") if isinstance(raw, dict) else "unknown"
    created = str(created_utc).replace(":", "").replace("+0000", "Z")
    stem = "".join(c if c.isalnum() or c in "-." else "_" for c in created)[:_STEM]
    kept = history / f"{stem}.json"
    number = 1
    while kept.exists():
        number += 1
        kept = history / f"{stem}-{number}.json"
    write_whole(kept, path.read_bytes())
    return kept
