"""The rules within a run's folder: its records are those of its scenario, without gaps, of one code."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.probes.environment import match_key
from storebench.report.checks.findings import Finding, Rule, finding, record_name
from storebench.results import Record
from storebench.runs.manifest import fewer_replicates, read_about, rounds_within_budget
from storebench.runs.records import RUN_NAME, STEPS_DIR, STEPS_NAME
from storebench.runs.schedule import replicate_key

_MOST_NAMED = 20


def check_run(folder: Path, records: Sequence[Record]) -> list[Finding]:
    """Return the findings about all records of one run folder; without a ``run.json`` nothing is known of its plan."""
    path = folder / RUN_NAME
    if not path.exists():
        return []
    try:
        about = read_about(path)
    except (OSError, CorruptDataError) as error:
        reason = error.what if isinstance(error, CorruptDataError) else str(error)
        message = f"it is not complete JSON with a list of cells, so the planned cells are unknown: {reason}"
        return [
            Finding(kind=Rule.RUN, cell=str(path), cell_id="", run_id="", figure=RUN_NAME, message=message)
        ]
    merged = (folder / STEPS_NAME).exists() and not (folder / STEPS_DIR).exists()
    finished = merged and "replicates" in about.get("scenario", {}) and not about.get("extended_utc")
    return [*_strangers(about, records), *_gaps(about, records, finished=finished), *_code(records)]


def _strangers(about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    """Find records of another run, of cells or rounds that the scenario does not have, and of a changed machine."""
    known = {cell["cell_id"] for cell in about["cells"]}
    planned, fewer = _planned(about), fewer_replicates(about)
    for record in records:
        if record.run_id != about.get("run_id"):
            message = f"the record is of run {record.run_id}, the folder of run {about.get('run_id')}"
            yield finding(Rule.RUN, record, "run_id", message)
        if record.cell.cell_id not in known:
            yield finding(Rule.RUN, record, "cell", "the run's scenario has no such cell")
        if planned is not None and fewer is not None:
            number = min(planned, fewer.get(record.cell.cell_id, planned))
            if record.replicate >= number:
                message = f"round {record.replicate} is recorded, and the cell has {number}"
                yield finding(Rule.RUN, record, "replicate", message)
        place = record.environment
        if place is not None and place.key != match_key(place.match):
            message = f"{place.key} is not the digest of what has to match ({match_key(place.match)})"
            yield finding(Rule.RUN, record, "environment.key", message)


def _planned(about: dict[str, Any]) -> int | None:
    least = about.get("scenario", {}).get("replicates")
    return rounds_within_budget(about, least) if isinstance(least, int) else None


def _gaps(about: dict[str, Any], records: Sequence[Record], *, finished: bool) -> Iterator[Finding]:
    """Find replicates and epochs that are missing although a later one is recorded, or the run was finished.

    A run that was interrupted ends early and has no gap: rounds follow one another.
    """
    fewer, planned = fewer_replicates(about), _planned(about)
    done = Counter(map(replicate_key, records))
    last_round = max((record.replicate for record in records), default=0)
    rounds = planned if finished and planned is not None else last_round
    of_cell = {record.cell.cell_id: record for record in records}
    for cell in about["cells"] if fewer is not None else ():
        cell_id = cell["cell_id"]
        own = range(min(rounds, (fewer or {}).get(cell_id, rounds)))
        missing = list(itertools.islice((number for number in own if not done[cell_id, number]), _MOST_NAMED))
        if missing:
            known_by = "the run was finished" if finished else f"round {last_round} is"
            known = of_cell.get(cell_id)
            yield Finding(
                kind=Rule.RUN,
                cell=record_name(known)
                if known
                else f"{cell.get('dataset')} {cell.get('backend')} [{cell_id}]",
                cell_id=str(cell_id),
                run_id=str(about.get("run_id")),
                figure="replicate",
                message=f"round {', '.join(map(str, missing))} is not recorded, although {known_by}",
            )
    for record in records:
        recorded = done[replicate_key(record)]
        if record.epoch == 0 and recorded != record.cell.epochs:
            message = f"{recorded} of {record.cell.epochs} epochs are recorded"
            yield finding(Rule.RUN, record, "epoch", message)


def _code(records: Sequence[Record]) -> Iterator[Finding]:
    """Find records of other code than the first ones: a run refuses to go on with code that changed."""
    known: dict[str, tuple[str, str]] = {}
    for record in records:
        if record.code is None:
            continue
        owners = (("storebench", record.code.digest), (record.cell.backend.format, record.code.plugin))
        for owner, code in owners:
            first = known.setdefault(owner, (code, record_name(record)))
            if first[0] != code:
                message = f"{code or 'none'} of {owner}, but {first[0] or 'none'} in {first[1]}"
                yield finding(Rule.RUN, record, "code", message)
