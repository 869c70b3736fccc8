"""Scenarios: TOML files with one question each, found, validated and multiplied into cells. Nothing runs here."""

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from storebench.datasets.base import MOST_SAMPLES
from storebench.errors import (
    CorruptDataError,
    MissingDependencyError,
    ScenarioError,
    StorebenchError,
    UnknownNameError,
)
from storebench.formats.registry import PAPER_BACKENDS, parse_backend
from storebench.record.schema import Cell
from storebench.run.matrix import Matrix, Seed, Strict
from storebench.system.json_text import wrong_value
from storebench.system.reading import read_small_file
from storebench.system.toml_text import parse_toml
from storebench.units import parse_duration

# A link to the checkout's `scenarios` folder; the files themselves in a wheel.
SHIPPED = Path(__file__).resolve().parents[1] / "scenarios"


def shipped_scenarios() -> dict[str, Path]:
    """Return the scenario files that come with storebench, by name; in a checkout, its own files."""
    return {path.stem: path.resolve() for path in sorted(SHIPPED.glob("*.toml"))}


def find_scenario(word: str) -> Path:
    """Return the scenario file that a word of the command line means."""
    if "/" in word or word.endswith(".toml"):
        return Path(word)
    shipped = shipped_scenarios()
    if word in shipped:
        return shipped[word]
    if Path(word).is_file():
        return Path(word)
    raise UnknownNameError.of("scenario", word, shipped)


def without_missing_libraries(raw: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the table of a scenario without the backends whose library is not installed."""
    matrices = raw.get("matrix")
    if not isinstance(matrices, list):
        return raw
    reasons: dict[str, None] = {}
    kept: list[Any] = []
    for matrix in matrices:
        backends = matrix.get("backends", list(PAPER_BACKENDS)) if isinstance(matrix, dict) else None
        backends = backends if isinstance(backends, list) else []
        missing = [_missing_library(name) for name in backends]
        if not any(missing) or (all(missing) and matrix.get("optional") is not True):
            kept.append(matrix)
            continue
        reasons |= dict.fromkeys(filter(None, missing))
        if present := [name for name, reason in zip(backends, missing, strict=True) if not reason]:
            kept.append({**matrix, "backends": present})
    for reason in reasons:
        tell(f"left out: {reason}")
    return {**raw, "matrix": kept}


def _missing_library(backend: Any) -> str:
    """Return the reason why a backend's library cannot be imported; "" if it can, or without such a backend."""
    if not isinstance(backend, str):
        return ""
    try:
        parse_backend(backend)
    except MissingDependencyError as error:
        return str(error)
    except StorebenchError:
        return ""  # validation says what is wrong with it
    return ""


MOST_FILE_BYTES = 4 * 2**20

# Rounds that run in any case: a verdict needs as many.
FEWEST_REPLICATES = 5

PositiveSeconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class Scenario(Strict):
    """One question and the cells that answer it."""

    name: Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_-]+$")]
    """Name of the scenario, and part of the names of its run folders."""
    question: str = ""  # The question that the cells answer; `storebench scenarios` prints it.
    replicates: Annotated[int, pydantic.Field(ge=1)] = 1
    """Fresh processes per cell, a fixed number. A matrix may have fewer."""
    budget: str | None = None
    """The time for converting and all replicates, such as `12 min`. Where 5 rounds would not fit, cells of the highest
    `priority` end first; those of priority 1 run 5 rounds in any case. Later rounds run where they fit, and then
    5 rounds of cells that ended too early. `--replicates N` lifts it. Default: no limit."""
    repeat_disturbed: bool = False
    """Measure a replicate again, at the end of its round and at most twice, if it did not hold its cache
    state, or if other work took more than 20% of the cores during it but not during most of its round. Other
    attempts are in `superseded.jsonl`."""
    seed: Seed = 0  # Seed of the order in which cells run.
    ceilings: bool = True
    """Measure the ceilings of memory and device in each process, after its epochs. Comparisons of two
    revisions do not use them."""
    test_limit: Annotated[int, pydantic.Field(ge=0, le=MOST_SAMPLES)] = 10_000
    """Most test samples for the test accuracy; 0 measures none."""
    timeout_s: PositiveSeconds = 6 * 3600.0
    """Seconds after which a replicate of a cell is killed and recorded as failed."""
    stall_s: PositiveSeconds = 600.0
    """With `ranks`: seconds after which a rank that makes no progress (no batch, no next phase) counts as
    hanging. The replicate is killed and recorded as failed, and the record names the rank."""
    matrix: Annotated[list[Matrix], pydantic.Field(min_length=1)]

    @pydantic.field_validator("budget")
    @classmethod
    def _known_duration(cls, value: str | None) -> str | None:
        if value is not None:
            parse_duration(value)
        return value

    @pydantic.model_validator(mode="after")
    def _one_rule(self) -> Self:
        most = max((matrix.replicates or 0 for matrix in self.matrix), default=0)
        if most > self.replicates:
            raise ValueError(
                f"a matrix has {most} replicates, more than the scenario, which has {self.replicates}"
            )
        return self

    @property
    def budget_s(self) -> float | None:
        """Seconds for converting and all replicates; None for no limit."""
        return None if self.budget is None else parse_duration(self.budget)

    @property
    def fewer_replicates(self) -> dict[Cell, int]:
        """The number of replicates of each cell that has fewer than the scenario."""
        if not any(matrix.replicates for matrix in self.matrix):
            return {}
        numbers = Counter[Cell]()
        for matrix in self.matrix:
            for cell in matrix.cells():
                numbers[cell] = max(numbers[cell], matrix.replicates or self.replicates)
        return {cell: number for cell, number in numbers.items() if number < self.replicates}

    @property
    def priorities(self) -> dict[Cell, int]:
        """The priority of each cell: a budget ends those of the highest number first."""
        numbers: dict[Cell, int] = {}
        for matrix in self.matrix:
            for cell in matrix.cells():
                numbers[cell] = min(matrix.priority, numbers.get(cell, matrix.priority))
        return numbers

    def repeated(self, replicates: int) -> "Scenario":
        """Return this scenario with a fixed number of replicates, the same for every cell, and without a budget."""
        left_out: Any = {"budget": True, "matrix": {"__all__": {"replicates"}}}
        given = self.model_dump(exclude=left_out, exclude_unset=True)
        return Scenario.model_validate({**given, "replicates": replicates}, strict=False)

    def cells(self) -> list[Cell]:
        return list(dict.fromkeys(cell for matrix in self.matrix for cell in matrix.cells()))

    def chosen(self, only: Collection[str]) -> list[Cell]:
        """Return the cells that any of some names (`names_of`) means; all cells without a name."""
        wanted = set(only)
        return [cell for cell in self.cells() if not wanted or wanted & names_of(cell)]

    def impossible(self) -> list[str]:
        """Return one line per backend of a matrix that has no cell in a cache state, with the reason."""
        return list(dict.fromkeys(line for matrix in self.matrix for line in matrix.impossible()))

    def optional_cells(self) -> set[Cell]:
        """Return the cells that may be left out, because only optional matrices contain them."""
        required = {cell for matrix in self.matrix if not matrix.optional for cell in matrix.cells()}
        return {cell for matrix in self.matrix if matrix.optional for cell in matrix.cells()} - required


def names_of(cell: Cell) -> set[str]:
    """Return the names by which `Scenario.chosen` knows a cell."""
    return {cell.cell_id, cell.backend.name, cell.backend.format, cell.data.name}


def load_scenario(path: Path, *, tell: Callable[[str], None] | None = None) -> Scenario:
    """Read and validate a scenario file; with `tell`, leave out backends without a library and say so."""
    try:
        text = read_small_file(path, most_bytes=MOST_FILE_BYTES).decode("utf-8")
    except (CorruptDataError, OSError, UnicodeDecodeError) as error:
        strange = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        reason = error.what if isinstance(error, CorruptDataError) else strange
        hint = "Name a scenario file; 'storebench scenarios' lists those that are there."
        raise ScenarioError(f"the scenario cannot be read ({reason})", where=path, hint=hint) from None
    raw = parse_toml(text, path)
    try:
        return Scenario.model_validate(without_missing_libraries(raw, tell) if tell else raw)
    except pydantic.ValidationError as error:
        raise _explained(error, path) from None


def make_scenario(raw: dict[str, Any]) -> Scenario:
    """Validate a scenario that the command line assembled."""
    try:
        return Scenario.model_validate(raw)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        names = [part for part in first["loc"] if isinstance(part, str) and part != "matrix"]
        key = names[-1] if names else ""
        # Backends are arguments, which have no option.
        where = "BACKEND" if key == "backends" else f"--{key.replace('_', '-')}" if key else None
        raise ScenarioError(wrong_value(first), where=where) from None


def _explained(error: pydantic.ValidationError, path: Path) -> ScenarioError:
    """Return the error that names the matrix and the misspelt key, or the key of an impossible value."""
    first = error.errors()[0]
    location = [part for part in first["loc"] if not str(part).startswith(("function-", "[key]"))]
    *table, key = [part for part in location if isinstance(part, str)] or [""]
    number = next((part + 1 for part in location if isinstance(part, int)), "")
    where = f"{path}: {' '.join([*table, str(number)]).strip()}" if table else path
    if first["type"] == "extra_forbidden":
        unknown = UnknownNameError.of("key", key, (Matrix if table else Scenario).model_fields)
        return ScenarioError(unknown.what, where=where, hint=unknown.hint)
    message = wrong_value(first)
    return ScenarioError(f"{key}: {message}" if key else message, where=where)
