"""Read, check and write ``run.json``, the description of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from storebench.errors import CorruptDataError, StorebenchError, from_os_error
from storebench.fileio.json_text import complaint, parse_json
from storebench.fileio.reading import read_small_file
from storebench.fileio.whole_files import write_whole
from storebench.runs.records import MOST_RUN_BYTES, RUN_NAME
from storebench.scenario import Scenario

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
    extended_utc: list[_Text] = []
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


def cut_short(run: Path) -> tuple[int, int] | None:
    """Return the rounds of a run that its budget cut short, and those that were planned for its cells; None otherwise."""
    try:
        about = read_about(run / RUN_NAME)
        fewer, most = fewer_replicates(about), about["scenario"]["replicates"]
    except (OSError, CorruptDataError, TypeError, KeyError):
        return None
    if fewer is None or about.get("ended_after") is None:
        return None
    planned = max((fewer.get(cell["cell_id"], most) for cell in about["cells"]), default=most)
    return about["ended_after"], planned


def rounds_within_budget(about: Mapping[str, Any], planned: int) -> int:
    """Return the number of rounds that a run has of those that were planned: fewer if its budget ran out before all of them."""
    ended_after = about.get("ended_after")
    return planned if ended_after is None else min(planned, ended_after)


def write_about(folder: Path, about: Mapping[str, object]) -> None:
    """Write the ``run.json`` of a folder, completely or not at all."""
    try:
        write_whole(folder / RUN_NAME, json.dumps(about, indent=2) + "\n")
    except OSError as error:
        raise from_os_error(error, folder) from error
