"""A scenario: a TOML file with one question, turned into a validated list of cells. Runs nothing.

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

Every key of a matrix that is written as a list is an axis: the matrix is the
product of its axes. The cache state "limited" needs ``memory``, what the page
cache may hold; ``readahead`` puts the store on a device with that read-ahead.
Both need rights that not every machine gives: a matrix that is ``optional`` is
left out where they are missing.

What a scenario may ask for is bounded: `MOST_CELLS`, `MOST_REPLICATES` and the other numbers below. Products
are checked before a cell is built.
"""

import itertools
import math
import re
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import pydantic

from storebench.datasets.base import FOLDER_PREFIX, MOST_SAMPLES, MOST_SEED, DatasetSpec
from storebench.datasets.catalog import DATASETS
from storebench.errors import CorruptDataError, ScenarioError, StorebenchError, UnknownNameError
from storebench.fileio.json_text import brief
from storebench.fileio.reading import read_small_file
from storebench.fileio.toml_text import parse_toml
from storebench.formats.registry import PAPER_BACKENDS, Backend, parse_backend
from storebench.names import printable
from storebench.results import Cell
from storebench.scenario_files import without_missing_libraries
from storebench.units import format_bytes, parse_bytes

CACHE_STATES = ("cold", "warm", "limited", "any")
LEAST_MEMORY_BYTES = 32 << 20
"""A limit below this holds little more than the process's own new memory."""

LIMITED_EPOCHS = 2
"""The default of a limited cell: the first epoch fills the page cache, the second shows the steady state."""

TIMEOUT_S = 6 * 3600.0
"""The default of `timeout_s`: what takes longer hangs."""

_PAGE_KIB = 4
LOADER_NAMES = ("processes", "threads", "ring")
MODEL_BATCHES = {"lenet": 64, "cifar10_quick": 100, "caffenet": 256, "resnet50": 64, "tiny": 64, "none": 64}
"""Caffe's training batch of each network (FACTS section 4), the default of `batch_size`."""

DATASET_MODELS = {"mnist": "lenet", "cifar10": "cifar10_quick", "imagenet": "caffenet"}
"""The network that the paper trained on each dataset; class folders get ImageNet's."""

MOST_FILE_BYTES = 4 * 2**20
MOST_CELLS = 100_000
"""Cells of one scenario: the product of the axes, summed over its matrices."""

MOST_REPLICATES = 1_000_000
"""Replicates of all cells together: at some 3 s each, more than a month."""

MOST_WORKERS = 256
MOST_THREADS = 1024
MOST_EPOCHS = 10_000
MOST_STEPS = 2**31 - 1
MOST_BATCH = 2**20
MOST_EMULATED_MS = 3_600_000

Samples = Annotated[int, pydantic.Field(ge=1, le=MOST_SAMPLES)]
Seed = Annotated[int, pydantic.Field(ge=0, le=MOST_SEED)]
Times = Annotated[int, pydantic.Field(ge=1, le=MOST_EPOCHS)]
Steps = Annotated[int, pydantic.Field(ge=1, le=MOST_STEPS)]
Workers = Annotated[int, pydantic.Field(ge=0, le=MOST_WORKERS)]
Threads = Annotated[int, pydantic.Field(ge=1, le=MOST_THREADS)]
BatchSize = Annotated[int, pydantic.Field(ge=1, le=MOST_BATCH)]
Natural = Annotated[int, pydantic.Field(ge=0, le=MOST_STEPS)]
Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Axis = pydantic.BeforeValidator(_listed)


def _as_text(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Matrix(_Strict):
    """Axes whose product is a list of cells."""

    dataset: Annotated[str, pydantic.BeforeValidator(_as_text)]
    split: Literal["train", "test"] = "train"
    size: Samples | None = None
    limit: Samples | None = None
    data_seed: Seed = 0
    synthetic: bool | None = None
    backends: list[str] = list(PAPER_BACKENDS)
    model: str | None = None
    compute: Annotated[list[str], Axis] = ["real"]
    cache: Annotated[list[Literal["cold", "warm", "limited", "any"]], Axis] = ["any"]
    memory: str | None = None
    readahead: Annotated[list[Natural], Axis] | None = None
    loader: Annotated[list[Literal["processes", "threads", "ring"]], Axis] = ["processes"]
    workers: Annotated[list[Workers], Axis] = [0]
    batch_size: Annotated[list[BatchSize], Axis] | None = None
    epochs: Times | None = None
    passes: Times | None = None
    max_steps: Steps | None = None
    warmup_steps: Natural = 0
    shuffle: bool = True
    device: str = "cpu"
    seed: Seed = 0
    threads: Threads | None = None
    optional: bool = False

    @pydantic.field_validator("dataset")
    @classmethod
    def _known_dataset(cls, value: str) -> str:
        if value not in DATASETS and not value.startswith(FOLDER_PREFIX):
            raise ValueError(str(UnknownNameError.of("dataset", value, (*DATASETS, "folder:PATH"))))
        return value

    @pydantic.field_validator("compute")
    @classmethod
    def _known_compute(cls, values: list[str]) -> list[str]:
        for value in values:
            if not re.fullmatch(r"real|none|emulated:\d+(\.\d+)?", value):
                raise ValueError(f"compute is 'real', 'none' or 'emulated:MILLISECONDS', not {value!r}")
            if value.startswith("emulated:") and float(value.removeprefix("emulated:")) > MOST_EMULATED_MS:
                raise ValueError(f"compute emulates at most {MOST_EMULATED_MS:,} milliseconds per step")
        return values

    @pydantic.field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", value):
            raise ValueError(f"device is 'cpu', 'cuda' or 'cuda:NUMBER', not {value!r}")
        return value

    @pydantic.field_validator("model")
    @classmethod
    def _known_model(cls, value: str | None) -> str | None:
        if value is not None and value not in MODEL_BATCHES:
            raise ValueError(str(UnknownNameError.of("model", value, MODEL_BATCHES)))
        return value

    @pydantic.field_validator("backends")
    @classmethod
    def _known_backends(cls, values: list[str]) -> list[str]:
        for value in values:
            try:
                parse_backend(value)
            except StorebenchError as error:
                raise ValueError(str(error)) from error
        return values

    @pydantic.field_validator("memory")
    @classmethod
    def _enough_memory(cls, value: str | None) -> str | None:
        if value is not None and parse_bytes(value) < LEAST_MEMORY_BYTES:
            least = format_bytes(LEAST_MEMORY_BYTES)
            raise ValueError(f"memory {value!r} is less than {least}, which the process itself needs")
        return value

    @pydantic.field_validator("readahead")
    @classmethod
    def _whole_pages(cls, values: list[int] | None) -> list[int] | None:
        for value in values or ():
            if value % _PAGE_KIB:
                raise ValueError(f"readahead is in KiB and a multiple of {_PAGE_KIB} (a page), not {value}")
        return values

    @pydantic.model_validator(mode="after")
    def _limits(self) -> Self:
        if "limited" in self.cache and self.memory is None:
            raise ValueError("cache 'limited' needs memory, what the page cache may hold, such as '400 MiB'")
        if self.memory is not None and "limited" not in self.cache:
            raise ValueError("memory is for cells with a limited page cache: add 'limited' to cache")
        if not self.most_cells or not any(
            _exists(parse_backend(backend), cache) for backend in self.backends for cache in set(self.cache)
        ):
            raise ValueError(f"no cell is left: {'; '.join(self.impossible())}")
        return self

    @pydantic.model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.max_steps is not None and self.warmup_steps >= self.max_steps:
            raise ValueError("warmup_steps leaves no timed step below max_steps")
        if self.model == "none" and "real" in self.compute:
            raise ValueError("compute 'real' needs a model: name one, or set compute to 'none'")
        if self.passes is not None and set(self.cache) - {"warm", "any"}:
            raise ValueError(f"passes repeats what the first pass made warm, so cache cannot be {self.cache}")
        return self

    @property
    def spec(self) -> DatasetSpec:
        """Which samples the matrix asks for."""
        return DatasetSpec(
            name=self.dataset,
            split=self.split,
            size=self.size,
            limit=self.limit,
            seed=self.data_seed,
            synthetic=self.synthetic,
        )

    @property
    def most_cells(self) -> int:
        """How many cells the axes may make at most: their product, before any is built."""
        axes: list[Sized] = [self.backends, self.compute, self.cache, self.loader, self.workers]
        axes += [axis for axis in (self.batch_size, self.readahead) if axis]
        return math.prod(len(axis) for axis in axes)

    def cells(self) -> list[Cell]:
        """Return the product of the axes, less the cells that cannot exist (see `impossible`)."""
        model = self.model or DATASET_MODELS.get(self.dataset, "caffenet")
        readahead: list[int | None] = [*self.readahead] if self.readahead else [None]
        axes = itertools.product(
            [parse_backend(backend) for backend in self.backends],
            self.compute,
            self.cache,
            self.loader,
            self.workers,
            self.batch_size or [MODEL_BATCHES[model]],
            readahead,
        )
        return list(dict.fromkeys(self._cell(model, *axis) for axis in axes if _exists(axis[0], axis[2])))

    def impossible(self) -> list[str]:
        """Return one line for each backend that has no cell in one of the cache states, and why."""
        if "limited" not in self.cache:
            return []
        names = [backend for backend in self.backends if not _exists(parse_backend(backend), "limited")]
        return [f"{name} has no limited cell, for it holds all pixels in memory" for name in names]

    def _cell(
        self,
        model: str,
        backend: Backend,
        compute: str,
        cache: str,
        loader: str,
        workers: int,
        batch: int,
        readahead: int | None,
    ) -> Cell:
        reference = backend.traits.ready_made
        limited = cache == "limited" and not reference
        return Cell(
            **self.model_dump(include=_PASSED_ON),
            backend=str(backend),
            format=backend.format,
            codec=backend.codec,
            reader=backend.reader,
            reader_options=backend.options,
            loader=loader,
            workers=workers,
            batch_size=batch,
            model=model,
            compute=compute,
            epochs=self.epochs or (LIMITED_EPOCHS if limited else 1),
            # A reference that reads nothing has one cell, whatever the page cache or the device does.
            cache="any" if reference else cache,
            memory_bytes=parse_bytes(self.memory) if limited and self.memory else None,
            readahead_kib=None if reference else readahead,
        )


def _exists(backend: Backend, cache: str) -> bool:
    """Return whether there is such a cell: a backend that holds all pixels in memory has no limited one."""
    traits = backend.traits
    return cache != "limited" or traits.ready_made or not traits.holds_pixels


_PASSED_ON = {
    *("dataset", "split", "size", "limit", "data_seed", "synthetic", "passes", "max_steps"),
    *("warmup_steps", "shuffle", "device", "seed", "threads"),
}


class Scenario(_Strict):
    """One question and the cells that answer it.

    Attributes
    ----------
    conversions
        How often each conversion of the first store (PNG files where there are any) into each other store
        of the same samples is timed after the cells; 0 times none.
    timeout_s
        Seconds that one replicate of a cell, or one conversion, may take before it is killed and recorded as failed.
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
            That is less than 1, or too many for the cells.
        """
        try:
            return Scenario.model_validate({**dict(self), "replicates": replicates})
        except pydantic.ValidationError as error:
            raise ScenarioError(_message(error.errors()[0]), where="--replicates") from None

    def cells(self) -> list[Cell]:
        """Return every cell once, in the order of the file."""
        return list(dict.fromkeys(cell for matrix in self.matrix for cell in matrix.cells()))

    def impossible(self) -> list[str]:
        """Return one line for each backend and cache state of a matrix that have no cell, and why."""
        return list(dict.fromkeys(line for matrix in self.matrix for line in matrix.impossible()))

    def optional_cells(self) -> set[Cell]:
        """Return the cells that may be left out: those that only optional matrices ask for."""
        asked = {cell for matrix in self.matrix if not matrix.optional for cell in matrix.cells()}
        return {cell for matrix in self.matrix if matrix.optional for cell in matrix.cells()} - asked


def cell_spec(cell: Cell) -> DatasetSpec:
    """Return which samples a cell trains on."""
    return DatasetSpec(
        name=cell.dataset,
        split=cell.split,
        size=cell.size,
        limit=cell.limit,
        seed=cell.data_seed,
        synthetic=cell.synthetic,
    )


def cell_backend(cell: Cell) -> Backend:
    """Return the backend that a cell names."""
    return Backend(format=cell.format, codec=cell.codec, reader=cell.reader, options=cell.reader_options)


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
        It is not there, not TOML, or has a misspelt key or impossible value: the line and what was meant.
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
    """Validate a scenario that the command line put together."""
    try:
        return Scenario.model_validate(raw)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        names = [part for part in first["loc"] if isinstance(part, str) and part != "matrix"]
        key = names[-1] if names else None
        raise ScenarioError(_message(first), where=f"--{key.replace('_', '-')}" if key else None) from None


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
