"""The rules within a run's folder: its records are those of its scenario, without gaps and without overlapping times."""

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.fileio.json_lines import rows_of
from storebench.probes.environment import match_key
from storebench.report.validation.findings import Finding, Rule, finding, of_run, record_name
from storebench.report.validation.tables import unnamed_tables
from storebench.results import KEPT_AT_LEAST, KEPT_BYTES, Record, Status
from storebench.runs.manifest import fewer_replicates, read_about, rounds_within_budget
from storebench.runs.records import RUN_NAME, STEPS_DIR, STEPS_NAME, SUPERSEDED_NAME
from storebench.runs.schedule import durations, has_time, replicate_key, round_s
from storebench.scenario import FEWEST_REPLICATES
from storebench.units import parse_duration

_SPENT_FRAC = 0.9
"""Least share of its budget that a run has spent, with another round, if the budget ended it."""

_MOST_NAMED = 20


def check_run(folder: Path, records: Sequence[Record]) -> list[Finding]:
    """Return the findings about the records of one run folder as a whole.

    Parameters
    ----------
    folder
        The run's folder. Without a ``run.json`` in it nothing is known of what should have run; one that cannot be
        read is a finding.
    records
        All its records, in the order of the file.
    """
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
    checks = (
        _strangers,
        _rounds,
        _no_steps,
        _portions,
        _not_proven,
        _environments,
        _code,
    )
    return [
        *(problem for check in checks for problem in check(about, records)),
        *_gaps(about, records, finished=_is_finished(folder, about)),
        *_time(about, records, again=_retried(folder)),
        *unnamed_tables(folder, about),
    ]


def _is_finished(folder: Path, about: dict[str, Any]) -> bool:
    """Return whether nothing of a run was left: its step tables are merged then. One that was extended may be interrupted."""
    merged = (folder / STEPS_NAME).exists() and not (folder / STEPS_DIR).exists()
    return merged and "replicates" in about.get("scenario", {}) and not about.get("extended_utc")


def _strangers(about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    """Find records of another run, and of cells that the scenario does not have."""
    known = {cell["cell_id"] for cell in about["cells"]}
    for record in records:
        if record.run_id != about.get("run_id"):
            message = f"the record is of run {record.run_id}, the folder of run {about.get('run_id')}"
            yield finding(Rule.RUN, record, "run_id", message)
        if record.cell.cell_id not in known:
            yield finding(Rule.RUN, record, "cell", "the run's scenario has no such cell")


def _rounds(about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    """Find rounds that the run's scenario does not have, and added rounds that its rule cannot have added.

    A round that a run lists as added excuses the cells that it lacks, and the rule makes intervals wider.
    """
    scenario = about.get("scenario", {})
    if "replicates" not in scenario:
        return
    planned = _planned(about)
    fewer = fewer_replicates(about)
    if fewer is None:
        return
    for record in records:
        number = min(planned, fewer.get(record.cell.cell_id, planned))
        if record.replicate >= number:
            what = "the cell" if number < planned else "the run"
            message = f"round {record.replicate} is recorded, and {what} has {number}"
            yield finding(Rule.RUN, record, "replicate", message)


def _retried(folder: Path) -> bool:
    """Return whether a failed replicate of a run ran once more."""
    with contextlib.suppress(CorruptDataError):  # `unnamed_tables` finds it
        return any(row.get("status") == Status.FAILED for row in rows_of(folder / SUPERSEDED_NAME))
    return False


def _time(about: dict[str, Any], records: Sequence[Record], *, again: bool) -> Iterator[Finding]:
    """Find a run that ended before its budget was spent, or went on afterwards: stopping at will would bias its results.

    Parameters
    ----------
    again
        Whether failed replicates ran again, so that the records no longer say how long the first attempts took.
    """
    scenario, ended_after = about.get("scenario", {}), about.get("ended_after")
    budget_s, planned, fewer = _budget_s(scenario), scenario.get("replicates", 0), fewer_replicates(about)
    fixed = budget_s is not None
    if ended_after is not None and not (fixed and FEWEST_REPLICATES <= ended_after < planned):
        message = f"its scenario does not let it end after {ended_after} rounds"
        yield of_run(about, "ended_after", message)
        return
    if budget_s is None or not fixed or fewer is None or again:
        return
    last = max((record.replicate for record in records), default=0)
    before_s = sum(durations(record for record in records if record.replicate < last).values())
    if last >= FEWEST_REPLICATES and before_s > budget_s:
        message = f"round {last} began after {before_s:.0f} s, although its scenario has {budget_s:.0f} s for all of them"
        yield of_run(about, "replicate", message)
    if ended_after is None:
        return
    took = durations(records)
    spent_s = sum(took.values())
    pending = (
        cell["cell_id"] for cell in about["cells"] if fewer.get(cell["cell_id"], planned) > ended_after
    )
    next_s = round_s(took, pending)
    if has_time(ended_after, spent_s, next_s, _SPENT_FRAC * budget_s):
        message = (
            f"it ended after {spent_s:.0f} s, and a round of {next_s:.0f} s more fits into {budget_s:.0f} s"
        )
        yield of_run(about, "ended_after", message)


def _planned(about: dict[str, Any]) -> int:
    """Return the number of rounds that a run has: those of its scenario within its budget, and those that it added."""
    return rounds_within_budget(about, about["scenario"]["replicates"])


def _budget_s(scenario: dict[str, Any]) -> float | None:
    """Return the seconds for all replicates of a scenario; None for no limit, or for one that cannot be read."""
    with contextlib.suppress(ValueError):
        return None if scenario.get("budget") is None else parse_duration(scenario["budget"])
    return None


def _gaps(about: dict[str, Any], records: Sequence[Record], *, finished: bool) -> Iterator[Finding]:
    """Find replicates that are missing although the run was finished, or although a later round or epoch is recorded.

    A run that was interrupted ends early. It has no gap: rounds follow one another. Rounds that a run added have only
    the cells that it lists for them.
    """
    fewer = _fewer_rounds(about, records)
    done = Counter(map(replicate_key, records))
    last_round = max((record.replicate for record in records), default=0)
    rounds = _planned(about) if finished else last_round
    of_cell = {record.cell.cell_id: record for record in records}
    for cell in about["cells"]:
        cell_id = cell["cell_id"]
        expected = range(min(rounds, fewer.get(cell_id, rounds)))
        lacking = (number for number in expected if not done[cell_id, number])
        missing = list(itertools.islice(lacking, _MOST_NAMED))
        if missing:
            lost = ", ".join(map(str, missing)) + " and more" * (len(missing) == _MOST_NAMED)
            known_by = "the run was finished" if finished else f"round {last_round} is"
            message = f"round {lost} is not recorded, although {known_by}"
            known = of_cell.get(cell_id)
            name = record_name(known) if known else f"{cell.get('dataset')} {cell.get('backend')} [{cell_id}]"
            yield Finding(
                kind=Rule.RUN,
                cell=name,
                cell_id=str(cell_id),
                run_id=str(about.get("run_id")),
                figure="replicate",
                message=message,
            )
    for record in records:
        recorded = done[replicate_key(record)]
        if record.epoch == 0 and recorded != record.cell.epochs:
            message = f"{recorded} of {record.cell.epochs} epochs are recorded"
            yield finding(Rule.RUN, record, "epoch", message)


def _fewer_rounds(about: dict[str, Any], records: Sequence[Record]) -> dict[str, int]:
    """Return the number of rounds of each cell that has fewer than the run, by the cell's id.

    If the scenario cannot be read here, these are the cells that ended after as many rounds as a matrix of their backend has.
    """
    fewer = fewer_replicates(about)
    if fewer is not None:
        return fewer
    named = [
        (name, matrix.get("replicates"))
        for matrix in about["scenario"]["matrix"]
        if isinstance(matrix.get("backends"), list)
        for name in matrix["backends"]
    ]
    last = {record.cell: record.replicate for record in sorted(records, key=lambda record: record.replicate)}
    return {
        cell.cell_id: number + 1 for cell, number in last.items() if (cell.backend.name, number + 1) in named
    }


def _no_steps(_about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    for record in records:
        if record.status is Status.OK and record.steps and record.steps_file is None:
            yield finding(Rule.STEPS, record, "steps_file", "nothing shows the steps that the sums are of")


def _portions(_about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    """Find steady portions that no sampled residency supports."""
    for record in records:
        portion, cache = record.portion, record.cache
        if portion is not None and (cache is None or not cache.curve):
            message = "a steady portion is claimed, but no residency was sampled during the epoch"
            yield finding(Rule.CACHE, record, "cache.curve", message)


def _not_proven(_about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    """Find usable records in which too few timed samples were compared."""
    for record in records:
        seen = record.coverage
        if record.status is not Status.OK or record.code is None or record.cell.backend.is_null:
            continue
        if seen is None or not seen.timed_checked:
            message = "no sample of the timed batches was compared with the dataset"
            yield finding(Rule.COVERAGE, record, "coverage", message)
        elif seen.timed_checked < _fewest_checked(record):
            message = (
                f"{seen.timed_checked} samples of the timed batches were compared with the dataset, where "
                f"{_fewest_checked(record)} are kept whatever that takes"
            )
            yield finding(Rule.COVERAGE, record, "coverage.timed_checked", message)


def _fewest_checked(record: Record) -> int:
    """Return the least number of samples that are kept from the timed batches; it is smaller for large images."""
    shape = record.store.image_shape if record.store else (1, 1, 1)
    return min(KEPT_AT_LEAST, record.timed_samples, max(1, KEPT_BYTES // max(1, math.prod(shape))))


def _environments(_about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    for record in records:
        place = record.environment
        if place is not None and place.key != match_key(place.match):
            message = f"{place.key} is not the digest of what has to match ({match_key(place.match)})"
            yield finding(Rule.RUN, record, "environment.key", message)


def _code(_about: dict[str, Any], records: Sequence[Record]) -> Iterator[Finding]:
    """Find records of other code than the first ones: a run refuses to go on with code that changed."""
    known: dict[str, tuple[str, str]] = {}
    for record in records:
        if record.code is None:
            continue
        for owner, code in (
            ("storebench", record.code.digest),
            (record.cell.backend.format, record.code.plugin),
        ):
            first = known.setdefault(owner, (code, record_name(record)))
            if first[0] != code:
                message = f"{code or 'none'} of {owner}, but {first[0] or 'none'} in {first[1]}"
                yield finding(Rule.RUN, record, "code", message)
