"""The shortfall of a run: replicates, rounds and conversions that its ``run.json`` promises and its records lack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.matrix import MOST_REPLICATES
from storebench.results import Record
from storebench.runs.manifest import fewer_replicates, read_about, resume_command, rounds_within_budget
from storebench.runs.records import PAIRING_NAME, RECORDS_NAME, RUN_NAME
from storebench.runs.schedule import ReplicateKey, replicate_key


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """What one run lacks.

    Attributes
    ----------
    run_id
        The run.
    resume
        The command that continues it; "" for one side of a comparison with a revision, which cannot be continued by itself.
    recorded, wanted
        Replicates that are recorded, and those of all rounds so far.
    whole_rounds, rounds
        Rounds of which every replicate is recorded, and all rounds so far.
    empty_cells, cells
        Cells without a record, as (dataset, backend, cache state), and the number of all cells.
    """

    run_id: str
    resume: str
    recorded: int
    wanted: int
    whole_rounds: int
    rounds: int
    empty_cells: tuple[tuple[str, str, str], ...]
    cells: int


def shortfalls(records: Sequence[tuple[Record, Path]]) -> list[Shortfall]:
    """Return the shortfall of each run that is not complete.

    Parameters
    ----------
    records
        All records, each with its file. Of a file that is not in a run's folder, nothing is known.
    """
    by_folder: dict[Path, list[Record]] = {}
    for record, file in records:
        if file.name == RECORDS_NAME:
            by_folder.setdefault(file.parent, []).append(record)
    missing = (_shortfall(folder, own) for folder, own in by_folder.items())
    return [shortfall for shortfall in missing if shortfall is not None]


def left_out(records: Sequence[tuple[Record, Path]]) -> dict[str, list[str]]:
    """Return the backend of each cell of an optional matrix that the machine did not permit, by the reason."""
    reasons: dict[str, list[str]] = {}
    for folder in dict.fromkeys(file.parent for _, file in records if file.name == RECORDS_NAME):
        try:
            for entry in read_about(folder / RUN_NAME).get("left_out", ()):
                reasons.setdefault(str(entry["reason"]), []).append(str(entry["backend"]))
        except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
            continue  # validation reports a file that cannot be read
    return reasons


def _shortfall(folder: Path, records: Sequence[Record]) -> Shortfall | None:
    """Return the shortfall of a run; None if it is complete, or its ``run.json`` does not say what it promises."""
    try:
        about = read_about(folder / RUN_NAME)
        rounds = _rounds(about)
    except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
        return None  # validation reports a file that cannot be read
    done = set(map(replicate_key, records))
    is_side = (folder / PAIRING_NAME).is_file()
    if is_side:
        rounds = rounds[: 1 + max(replicate for _, replicate in done)]  # a budget may have ended it
    wanted = [replicate for replicates in rounds for replicate in replicates]
    recorded = sum(replicate in done for replicate in wanted)
    known = {cell_id for cell_id, _ in done}
    shortfall = Shortfall(
        run_id=str(about["run_id"]),
        resume="" if is_side else resume_command(folder, str(about.get("scenario", {}).get("name", ""))),
        recorded=recorded,
        wanted=len(wanted),
        whole_rounds=sum(all(replicate in done for replicate in replicates) for replicates in rounds),
        rounds=len(rounds),
        empty_cells=tuple(_named(cell) for cell in about["cells"] if cell["cell_id"] not in known),
        cells=len(about["cells"]),
    )
    return None if recorded == len(wanted) or not rounds else shortfall


def _rounds(about: Mapping[str, Any]) -> list[list[ReplicateKey]]:
    """Return the replicates of each round so far; empty if the description does not say how many there are."""
    cells, least = about["cells"], about.get("scenario", {}).get("replicates")
    fewer = fewer_replicates(about)
    if fewer is None or not isinstance(least, int) or least * len(cells) > MOST_REPLICATES:
        return []
    cell_ids = [str(cell["cell_id"]) for cell in cells]
    return [
        [(cell_id, number) for cell_id in cell_ids if number < fewer.get(cell_id, least)]
        for number in range(rounds_within_budget(about, least))
    ]


def _named(cell: Mapping[str, Any]) -> tuple[str, str, str]:
    dataset, backend, cache = (str(cell.get(name, "")) for name in ("dataset", "backend", "cache"))
    return dataset, backend, cache
