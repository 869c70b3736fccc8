"""Scenarios: TOML files with one question each, validated and multiplied into cells. Nothing runs here.

::

    name = "paper"
    question = "Which storage format feeds the paper's networks fastest?"
    replicates = 3

    [[matrix]]
    dataset = "mnist"
    model = "lenet"
    backends = ["png", "hdf5", "lmdb"]
    cache = ["cold", "warm"]
    workers = [0, 2]

Every key of a matrix that is a list is an axis: the matrix is the product of its
axes. The cache state "limited" needs ``memory``, the limit of the page cache;
``readahead`` puts the store on a device with that read-ahead. Both need rights
that not every machine gives: an ``optional`` matrix is left out without them.

A scenario is bounded by `MOST_CELLS` and `MOST_REPLICATES`, which are checked before a cell is built.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self, cast

import pydantic

from storebench.datasets.base import MOST_SAMPLES
from storebench.errors import CorruptDataError, ScenarioError, UnknownNameError
from storebench.fileio.json_text import brief
from storebench.fileio.reading import read_small_file
from storebench.fileio.toml_text import parse_toml
from storebench.matrix import Matrix, Seed, Strict
from storebench.results import Cell
from storebench.scenario_files import without_missing_libraries
from storebench.settings.loop import MOST_EPOCHS

TIMEOUT_S = 6 * 3600.0
"""Default of `timeout_s`: a replicate that takes longer hangs."""

MOST_FILE_BYTES = 4 * 2**20
MOST_CELLS = 100_000
"""Cells of one scenario: the product of the axes, summed over its matrices."""

MOST_REPLICATES = 1_000_000
"""Replicates of all cells together: at some 3 s each, more than a month."""

Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class Scenario(Strict):
    """One question and the cells that answer it.

    Attributes
    ----------
    name
        Name of the scenario, and part of the names of its run folders.
    question
        The question that the cells answer; `storebench scenarios` prints it.
    replicates
        Fresh processes per cell.
    conversions
        How often each conversion from the first store (PNG files if there are any) into each other store of the
        same samples is timed after the cells; 0 for never.
    seed
        Seed of the order in which cells run.
    check_pixels
        Read each epoch a second time, untimed, and compare every decoded sample with its digest.
    test_limit
        Most test samples for the test accuracy; 0 measures none.
    timeout_s
        Seconds after which a replicate of a cell, or a conversion, is killed and recorded as failed.
    matrix
        The matrices, at least one.
    """

    name: Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_-]+$")]
    question: str = ""
    replicates: Annotated[int, pydantic.Field(ge=1, le=MOST_REPLICATES)] = 1
    conversions: Annotated[int, pydantic.Field(ge=0, le=MOST_EPOCHS)] = 0
    seed: Seed = 0
    check_pixels: bool = True
    test_limit: Annotated[int, pydantic.Field(ge=0, le=MOST_SAMPLES)] = 10_000
    timeout_s: Seconds = TIMEOUT_S
    matrix: Annotated[list[Matrix], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _not_too_many(self) -> Self:
        cells = sum(matrix.most_cells for matrix in self.matrix)
        if cells > MOST_CELLS:
            raise ValueError(f"the axes make {cells:,} cells, more than {MOST_CELLS:,}; shorten one")
        if cells * self.replicates > MOST_REPLICATES:
            raise ValueError(
                f"{cells:,} cells times {self.replicates:,} replicates are more than {MOST_REPLICATES:,}"
            )
        return self

    def repeated(self, replicates: int) -> "Scenario":
        """Return this scenario with another number of replicates.

        Raises
        ------
        ScenarioError
            The number is less than 1, or too large for the cells.
        """
        try:
            return Scenario.model_validate({**dict(self), "replicates": replicates})
        except pydantic.ValidationError as error:
            raise ScenarioError(_message(error.errors()[0]), where="--replicates") from None

    def cells(self) -> list[Cell]:
        """Return every cell once, in the order of the file."""
        return list(dict.fromkeys(cell for matrix in self.matrix for cell in matrix.cells()))

    def impossible(self) -> list[str]:
        """Return one line per backend of a matrix that has no cell in a cache state, with the reason."""
        return list(dict.fromkeys(line for matrix in self.matrix for line in matrix.impossible()))

    def optional_cells(self) -> set[Cell]:
        """Return the cells that may be left out, because only optional matrices contain them."""
        asked = {cell for matrix in self.matrix if not matrix.optional for cell in matrix.cells()}
        return {cell for matrix in self.matrix if matrix.optional for cell in matrix.cells()} - asked


def load_scenario(path: Path, *, tell: Callable[[str], None] | None = None) -> Scenario:
    """Read and validate a scenario file.

    Parameters
    ----------
    path
        The file.
    tell
        Is told of each library that is not installed, and the backends that need it are left out; None refuses them.

    Raises
    ------
    ScenarioError
        The file is missing, is not TOML, or has a misspelt key or a wrong value. The message names the line and the
        nearest key.
    """
    try:
        text = read_small_file(path, most_bytes=MOST_FILE_BYTES).decode("utf-8")
    except CorruptDataError as error:
        raise ScenarioError(error.what, where=path, hint="Name a scenario file.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ScenarioError(
            f"cannot be read ({reason})", where=path, hint="See 'storebench scenarios'."
        ) from None
    raw = parse_toml(text, path)
    kept = raw if tell is None else without_missing_libraries(raw, tell)
    try:
        return Scenario.model_validate(kept)
    except pydantic.ValidationError as error:
        raise _explained(error, text, path) from None


def make_scenario(raw: dict[str, Any]) -> Scenario:
    """Validate a scenario that the command line assembled."""
    try:
        return Scenario.model_validate(raw)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        names = [part for part in first["loc"] if isinstance(part, str) and part != "matrix"]
        key = names[-1] if names else ""
        where = _ARGUMENTS.get(key, f"--{key.replace('_', '-')}") if key else None
        raise ScenarioError(_message(first), where=where) from None


_ARGUMENTS = {"backends": "BACKEND"}
"""Keys of a matrix that the command line takes as arguments, which have no option."""


def _explained(error: pydantic.ValidationError, text: str, path: Path) -> ScenarioError:
    first = cast("dict[str, Any]", error.errors()[0])
    location = [part for part in first["loc"] if not str(part).startswith("function-")]
    key = next((str(part) for part in reversed(location) if isinstance(part, str)), "")
    table = next((part for part in location if isinstance(part, int)), None) if "matrix" in location else None
    line = _line_of(text, key, table if len(location) > 1 else None)
    where = f"{path}:{line}" if line else str(path)
    if first["type"] == "extra_forbidden":
        known = Matrix.model_fields if "matrix" in location else Scenario.model_fields
        unknown = UnknownNameError.of("key", key, known)
        return ScenarioError(unknown.what, where=where, hint=unknown.hint)
    message = _message(first)
    return ScenarioError(f"{key}: {message}" if key else message, where=where)


def _message(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    given = error.get("input")
    return message if error["type"] == "value_error" else f"{message}, not {brief(given)}"


def _line_of(text: str, key: str, table: int | None) -> int | None:
    """Return the line, from 1, that sets `key` in the table numbered `table` ([[matrix]] counted from 0)."""
    seen = -1
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"\s*\[\[\s*matrix\s*\]\]", line):
            seen += 1
        here = table is None or seen == table
        if here and (re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line)):
            return number
    return None
