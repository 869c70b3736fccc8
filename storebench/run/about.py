"""The folder of a run and its run.json: read, checked and written; and the command that continues the run."""

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic

from storebench.errors import CorruptDataError, StorebenchError, from_os_error
from storebench.plain_text import plain
from storebench.record.lines import LOGS_DIR, MOST_RUN_BYTES, PAIRING_NAME, RECORDS_NAME, RUN_NAME, STEPS_DIR
from storebench.record.schema import Record
from storebench.record.shared import is_shared, read_shared
from storebench.run.replicates import replicate_key
from storebench.run.scenario import Scenario
from storebench.system.json_text import complaint, parse_json
from storebench.system.reading import read_small_file
from storebench.system.whole_files import write_whole
from storebench.units import number_of

_Count = Annotated[int, pydantic.Field(ge=0, strict=True)]


def make_run_folders(folder: Path) -> None:
    """Make the folders of a run, which may exist already; a copy of a run may lack those that were empty."""
    try:
        for name in (STEPS_DIR, LOGS_DIR):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder) from error


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The whole dataset, of which a part was measured, and the memory that it would have to fit into."""

    count: _Count
    total_bytes: _Count
    memory_bytes: _Count
    fits: pydantic.StrictBool


class About(pydantic.BaseModel):
    """The content of a ``run.json``; a file may hold more keys, which stay."""

    model_config = pydantic.ConfigDict(extra="allow")

    run_id: str
    scenario: dict[str, Any] = {}
    cells: list[dict[str, Any]]
    command: list[str] = []  # The words that continue the run.
    argv: list[str] = []  # The whole command line that began it, as it was given.
    stores: str = ""  # The folder of the stores, as a path from the run, because both may move together.
    left_out: list[dict[str, str]] = []
    """Cells of optional matrices that the machine did not permit, each with its backend and the reason."""
    whole: Whole | None = None
    ended: dict[str, pydantic.StrictInt] = {}
    """The rounds of each cell that the budget ended, by the cell's id."""

    @pydantic.model_validator(mode="after")
    def _identified(self) -> "About":
        if not all(isinstance(cell.get("cell_id"), str) for cell in self.cells):
            raise ValueError("a cell without cell_id")
        return self

    @property
    def cell_ids(self) -> set[str]:
        return {cell["cell_id"] for cell in self.cells}


def read_about(path: Path) -> About:
    """Return the content of a ``run.json``."""
    try:
        return About.model_validate(parse_json(read_small_file(path, most_bytes=MOST_RUN_BYTES), path))
    except CorruptDataError as error:
        what = error.what
    except pydantic.ValidationError as error:
        what = complaint(error)
    raise CorruptDataError(f"not a run ({what})", where=path, hint="Start a new run.")


def about_of(run: Path) -> About | None:
    """Return what a run's ``run.json``, or a shared file, says of it; None if it cannot be read."""
    with contextlib.suppress(OSError, CorruptDataError, pydantic.ValidationError):
        return About.model_validate(read_shared(run)) if is_shared(run) else read_about(run / RUN_NAME)
    return None


def write_about(folder: Path, about: About) -> None:
    """Write the ``run.json`` of a folder, completely or not at all."""
    try:
        write_whole(folder / RUN_NAME, about.model_dump_json(indent=2, exclude_defaults=True) + "\n")
    except OSError as error:
        raise from_os_error(error, folder) from error


def fewer_replicates(about: About) -> dict[str, int] | None:
    """Return the number of replicates of each cell that has fewer than its scenario, by the cell's id."""
    try:
        if not any(matrix.get("replicates") for matrix in about.scenario.get("matrix", ())):
            return {}
        numbers = Scenario.model_validate(about.scenario).fewer_replicates
    except (StorebenchError, ValueError, AttributeError, TypeError):
        return None
    return {cell.cell_id: number for cell, number in numbers.items()}


def whole_of(run: Path) -> Whole | None:
    """Return the whole dataset of a run that chose its backends; None for other runs."""
    about = about_of(run)
    return about.whole if about else None


def stores_of(run: Path) -> Path | None:
    """Return the folder of the stores that a run was begun with; None if its parent is not there."""
    about = about_of(run)
    named = run.resolve() / (about.stores if about else "")
    return Path(os.path.normpath(named)) if about and named.parent.is_dir() else None


def agreed(wholes: Iterable[Whole | None]) -> Whole | None:
    """Return the whole dataset that several runs describe; None if one of them describes none, or another one."""
    distinct = set(wholes)
    if len({whole and (whole.count, whole.fits) for whole in distinct}) != 1:
        return None
    return min(filter(None, distinct), key=dataclasses.astuple, default=None)


def resume_command(folder: Path, *, retry_failed: bool = False) -> str:
    """Return the command that continues a run, as one line of plain text: the words that began it, and where it is."""
    about = read_about(folder / RUN_NAME)
    words = about.command or ["bench", str(about.scenario.get("name", "SCENARIO.toml"))]
    retrying = ["--retry-failed"] if retry_failed else []
    return plain(shlex.join(["storebench", *words, "--resume", *retrying, "--out", str(folder)]))


def _runs(records: Iterable[tuple[Record, Path]]) -> dict[Path, About]:
    """Return the description of each run, by its folder; folders without a ``run.json`` are left out."""
    folders = dict.fromkeys(file.parent for _, file in records if file.name == RECORDS_NAME)
    return {folder: about for folder in folders if (about := about_of(folder))}


def incomplete(records: Sequence[tuple[Record, Path]]) -> Iterator[str]:
    """Yield a sentence on each run that lacks replicates which its ``run.json`` promises."""
    for folder, about in _runs(records).items():
        asked, fewer = about.scenario.get("replicates"), fewer_replicates(about)
        if (folder / PAIRING_NAME).is_file() or fewer is None or not isinstance(asked, int):
            continue
        rounds = dict.fromkeys(about.cell_ids, asked) | fewer | about.ended
        wanted = {(cell, number) for cell in about.cell_ids for number in range(rounds[cell])}
        done = {replicate_key(record) for record, file in records if file.parent == folder}
        if missing := wanted - done:
            yield (
                f"INCOMPLETE: {len(wanted) - len(missing)} of {number_of(len(wanted), 'replicate')} of run"
                f" {about.run_id} are recorded. Finish it with '{resume_command(folder)}'."
            )


def left_out(records: Iterable[tuple[Record, Path]]) -> dict[str, list[str]]:
    """Return the backends of optional matrices that the machine did not permit, by reason."""
    reasons: dict[str, list[str]] = {}
    for entry in (entry for about in _runs(records).values() for entry in about.left_out):
        names = reasons.setdefault(entry.get("reason", ""), [])
        names += {entry.get("backend", "")} - {*names}
    return reasons


def commands(records: Iterable[tuple[Record, Path]]) -> list[str]:
    """Return the command lines that began runs."""
    return [shlex.join(["storebench", *about.argv]) for about in _runs(records).values() if about.argv]


def places(records: Sequence[tuple[Record, Path]]) -> list[str]:
    """Return the places of runs in the order that they were given, or else in that of the records."""
    given = [str(cell.get("place")) for about in _runs(records).values() for cell in about.cells]
    return list(dict.fromkeys([*given, *(record.cell.place for record, _ in records)]))


def cut_short(records: Iterable[tuple[Record, Path]]) -> dict[str, str]:
    """Return the budget that ended a cell before its last round, by the cell's id."""
    runs = _runs(records).values()
    return {cell_id: str(about.scenario.get("budget")) for about in runs for cell_id in about.ended}
