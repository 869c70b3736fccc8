"""The folder of a run and its run.json: read, checked and written; and the command that continues the run."""

import contextlib
import dataclasses
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from storebench.errors import CorruptDataError, StorebenchError, from_os_error
from storebench.plain_text import plain
from storebench.record.lines import (
    LOGS_DIR,
    MOST_RUN_BYTES,
    PAIRING_NAME,
    RECORDS_NAME,
    RUN_NAME,
    STEPS_DIR,
)
from storebench.record.schema import Record
from storebench.run.scenario import Scenario
from storebench.run.schedule import replicate_key
from storebench.system.json_text import complaint, parse_json
from storebench.system.reading import read_small_file
from storebench.system.whole_files import write_whole
from storebench.units import number_of


def make_run_folders(folder: Path) -> None:
    """Make the folders of a run, which may exist already; a copy of a run may lack those that were empty."""
    try:
        for name in (STEPS_DIR, LOGS_DIR):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder) from error


_HINT = "Start a new run."
_Text = pydantic.StrictStr


class _Cell(pydantic.BaseModel):
    cell_id: _Text


class _Asked(pydantic.BaseModel):
    replicates: pydantic.StrictInt = 1
    budget: _Text | None = None
    matrix: list[dict[str, Any]] = []


class _About(pydantic.BaseModel):
    """The keys that storebench needs; a file may hold more."""

    run_id: _Text
    cells: list[_Cell]
    scenario: _Asked = _Asked()
    command: list[_Text] = []
    ended_after: pydantic.StrictInt | None = None


def read_about(path: Path) -> dict[str, Any]:
    """Return the content of a ``run.json``, with all its keys."""
    try:
        about: dict[str, Any] = parse_json(read_small_file(path, most_bytes=MOST_RUN_BYTES), path)
        _About.model_validate(about)
    except CorruptDataError as error:
        raise CorruptDataError(f"not a run ({error.what})", where=path, hint=_HINT) from None
    except pydantic.ValidationError as error:
        raise CorruptDataError(f"not a run ({complaint(error)})", where=path, hint=_HINT) from None
    return about


def fewer_replicates(about: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the number of replicates of each cell that has fewer than its scenario, by the cell's id."""
    scenario = about.get("scenario", {})
    if not any(matrix.get("replicates") for matrix in scenario.get("matrix", ())):
        return {}
    try:
        numbers = Scenario.model_validate(scenario).fewer_replicates
    except (StorebenchError, ValueError):
        return None
    return {cell.cell_id: number for cell, number in numbers.items()}


def write_about(folder: Path, about: Mapping[str, object]) -> None:
    """Write the ``run.json`` of a folder, completely or not at all."""
    try:
        write_whole(folder / RUN_NAME, json.dumps(about, indent=2) + "\n")
    except OSError as error:
        raise from_os_error(error, folder) from error


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The whole dataset, of which a part was measured, and the memory that it would have to fit into."""

    count: int
    total_bytes: int
    memory_bytes: int
    fits: bool


def note_whole(run: Path, whole: Whole) -> None:
    """Describe the whole dataset in the ``run.json`` of a run that measures a part of it."""
    write_about(run, read_about(run / RUN_NAME) | {"whole": dataclasses.asdict(whole)})


def whole_of(run: Path) -> Whole | None:
    """Return the whole dataset of a run that chose its backends; None for other runs, and if ``run.json`` is not valid."""
    try:
        described = read_about(run / RUN_NAME).get("whole")
        whole = None if described is None else pydantic.TypeAdapter(Whole).validate_python(described)
    except (OSError, CorruptDataError, AttributeError, TypeError, ValueError):
        return None  # validation reports a file that cannot be read
    return whole if whole and min(whole.count, whole.total_bytes, whole.memory_bytes) >= 0 else None


def stores_of(run: Path) -> Path | None:
    """Return the folder of the stores that a run was begun with; None if its parent is not there."""
    with contextlib.suppress(OSError, CorruptDataError):  # named where the run is opened
        named = run.resolve() / str(read_about(run / RUN_NAME).get("stores", ""))
        return Path(os.path.normpath(named)) if named.parent.is_dir() else None
    return None


def agreed(wholes: Iterable[Whole | None]) -> Whole | None:
    """Return the whole dataset that several runs describe; None if one of them describes none, or another one."""
    distinct = set(wholes)
    if len({whole and (whole.count, whole.fits) for whole in distinct}) != 1:
        return None
    return min(filter(None, distinct), key=dataclasses.astuple, default=None)


CHOSEN_BACKENDS = "first"
"""Name of the scenario of a ``storebench run`` that chooses its backends."""


def resume_command(folder: Path, *, retry_failed: bool = False) -> str:
    """Return the command that continues a run, as one line of plain text: the words that began it, and where it is."""
    about = read_about(folder / RUN_NAME)
    words = about.get("command") or ["bench", str(about.get("scenario", {}).get("name", "SCENARIO.toml"))]
    retrying = ["--retry-failed"] if retry_failed else []
    return plain(shlex.join(["storebench", *words, "--resume", *retrying, "--out", str(folder)]))


def incomplete(records: Iterable[tuple[Record, Path]]) -> Iterator[str]:
    """Yield a sentence on each run that lacks replicates which its ``run.json`` promises."""
    by_folder: dict[Path, set[tuple[str, int]]] = {}
    for record, file in records:
        if file.name == RECORDS_NAME:
            by_folder.setdefault(file.parent, set()).add(replicate_key(record))
    for folder, done in by_folder.items():
        try:
            about = read_about(folder / RUN_NAME)
            asked = about.get("scenario", {}).get("replicates")
            fewer = fewer_replicates(about)
        except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
            continue  # validation reports a file that cannot be read
        if fewer is None or not isinstance(asked, int) or (folder / PAIRING_NAME).is_file():
            continue
        cells = [str(cell["cell_id"]) for cell in about["cells"]]
        rounds = range(about.get("ended_after") or asked)
        wanted = {(cell, number) for cell in cells for number in rounds if number < fewer.get(cell, asked)}
        if missing := wanted - done:
            yield (
                f"INCOMPLETE: {len(wanted) - len(missing)} of {number_of(len(wanted), 'replicate')} of run"
                f" {about['run_id']} are recorded. Finish it with '{resume_command(folder)}'."
            )


def left_out(records: Iterable[tuple[Record, Path]]) -> dict[str, list[str]]:
    """Return the backends of optional matrices that the machine did not permit, by reason."""
    reasons: dict[str, dict[str, None]] = {}
    for folder in dict.fromkeys(file.parent for _, file in records if file.name == RECORDS_NAME):
        try:
            for entry in read_about(folder / RUN_NAME).get("left_out", ()):
                reasons.setdefault(str(entry["reason"]), {})[str(entry["backend"])] = None
        except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
            continue
    return {reason: list(names) for reason, names in reasons.items()}
