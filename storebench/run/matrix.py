"""A matrix of a scenario: its keys, its axes, the rules for jobs of ranks, and the cells that they make."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

import pydantic

from storebench.datasets.base import LEAST_IMAGE_SIZE, MOST_IMAGE_SIZE, MOST_SAMPLES, DatasetSpec
from storebench.datasets.catalog import known_dataset, unknown_dataset
from storebench.errors import StorebenchError, UnknownNameError
from storebench.formats.registry import PAPER_BACKENDS, get_format, parse_backend, traits_of
from storebench.plain_text import printable
from storebench.record.schema import Cell
from storebench.settings.backend import Backend
from storebench.settings.loop_fields import AXES, MOST_SEED, NO_MODEL, SETTINGS
from storebench.settings.setting import Setting
from storebench.settings.tiers import find_tier
from storebench.settings.words import (
    LOCAL,
    CacheState,
    ComputeKind,
    Fill,
    LoaderKind,
    Place,
    Share,
    Split,
    Sync,
    TrainerData,
)
from storebench.units import format_bytes, parse_bytes

# The settings of jobs of several ranks, with their values in a cell of one rank.
_ONE_RANK: dict[str, Any] = {
    "global_batch_size": None,
    "pad": False,
    "sync": Sync.OVERLAPPED,
    "share": Share.NONE,
}

# The settings of a data store, with their values in a cell without one.
_NO_DATA_STORE: dict[str, Any] = {"store_fill": Fill.PRELOAD, "store_memory_bytes": None}

# The settings of jobs of several trainers, with their values in a cell of one trainer.
_ONE_TRAINER: dict[str, Any] = {"trainer_data": TrainerData.PARTITIONED, "tournament_steps": 0}


def job_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell; those that do not apply to its job have their defaults."""
    settled = dict(settings)
    if settled["ranks"] == 1:
        settled |= _ONE_RANK
    elif settled["compute"].kind is ComputeKind.NONE or settled["ranks"] == settled["trainers"]:
        settled["sync"] = Sync.OVERLAPPED  # no gradients are exchanged
    if settled["share"] is not Share.STORE:
        settled |= _NO_DATA_STORE
    elif settled["store_memory_bytes"] is not None:
        settled["store_memory_bytes"] = parse_bytes(settled["store_memory_bytes"])
    if settled["trainers"] == 1:
        settled |= _ONE_TRAINER
    return settled


# A lower limit holds little more than the new memory of the process itself.
LEAST_MEMORY_BYTES = 32 << 20

# Default number of epochs if the first one fills a page cache or a data store; the second is in the steady state.
FILLING_EPOCHS = 2

_PAGE_KIB = 4
# Caffe's training batch of each network, the default of `batch_size`.
MODEL_BATCHES = {"lenet": 64, "cifar10_quick": 100, "caffenet": 256, "resnet50": 64, "tiny": 64}
MODEL_BATCHES |= {"mlp": 64, "mlp_ekf": 64, "mlp_gekf": 64, "none": 64}

# Networks whose weights a Kalman filter trains, in the process of the loop.
FILTERED_MODELS = ("mlp_ekf", "mlp_gekf")

# Side of the square that a network crops of each image; the other networks take images of any size.
MODEL_CROPS = {"caffenet": 227, "resnet50": 224}

# Side of the images that most networks take.
NETWORK_SIDE = 224

# The network that the paper trained on each dataset; class folders get ImageNet's.
DATASET_MODELS = {"mnist": "lenet", "cifar10": "cifar10_quick", "imagenet": "caffenet"}

MOST_EMULATED_MS = 3_600_000

SampleCount = Annotated[int, pydantic.Field(ge=1, le=MOST_SAMPLES)]
Seed = Annotated[int, pydantic.Field(ge=0, le=MOST_SEED)]
ImageSide = Annotated[int, pydantic.Field(ge=LEAST_IMAGE_SIZE, le=MOST_IMAGE_SIZE)]


# Marks a key that takes one value or a list.
Axis = pydantic.BeforeValidator(lambda value: value if isinstance(value, list) else [value])

_ANNOTATED: Any = Annotated
_LIST: Any = list


class Strict(pydantic.BaseModel):
    """A table of a scenario: an unknown key and a value of another type are errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _loop_key(row: Setting) -> tuple[Any, Any]:
    """Return type and field of a matrix's key for a setting of the loop."""
    kind: Any = str if row.text else row.kind
    if kind is int:
        kind = Annotated[int, pydantic.Field(ge=row.least, le=row.most)]
    default = row.asked_default
    if row.axis is not None:
        kind = _ANNOTATED[_LIST[kind], Axis]
        default = default if default in (None, ...) else [default]
    kind = kind | None if default is None else kind
    return kind, pydantic.Field(default, description=row.meaning)


class MatrixWithoutLoop(Strict):
    """The keys of a matrix that say which samples and backends it is about, and the rules for all of its keys."""

    dataset: Annotated[
        str, pydantic.BeforeValidator(lambda value: printable(value) if isinstance(value, str) else value)
    ]
    """The dataset. ``folder:PATH`` is a folder with one subfolder of images per class, ``list:FILE`` a list
    of image files with their labels, ``container:PATH`` and ``hf:FOLDER`` files of another program that hold
    images and labels."""
    split: Split = Split.TRAIN  # The part of the dataset.
    size: SampleCount | None = None  # Grow or cut the dataset to this many samples. Default: as it is.
    limit: SampleCount | None = None  # Use only the first samples, after `size`. Default: all.
    data_seed: Seed = 0  # Seed of derived and synthetic samples.
    synthetic: bool | None = None
    """Ask for the synthetic stand-in, or refuse it. Default: only where no real files are found."""
    image_size: ImageSide | None = None
    """Side of the square images that every codec serves; for folders and ImageNet. Default: 256, or the size
    that all images of a folder have if it is smaller; the codec `original` serves the network's size."""
    skip_unreadable: bool = False
    """Leave out image files that cannot be read or do not decode. Otherwise the first one is an error."""
    backends: list[str] = list(PAPER_BACKENDS)  # Container, codec and reader of each store.
    replicates: Annotated[int, pydantic.Field(ge=1)] | None = None
    """Fresh processes per cell of this matrix, fewer than those of the scenario. They run in its first rounds, and a
    run that is extended adds none. Default: the scenario's number."""
    priority: Annotated[int, pydantic.Field(ge=1, le=9)] = 1
    """1 for cells that the answer needs. Where a budget has no time for 5 rounds, cells of the highest number end
    first."""
    optional: bool = False
    """Leave the matrix out where this machine lacks the rights for `memory`, `readahead` or `tier`."""

    if TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any:
            """Let the keys of the loop be read, which `Matrix` adds."""

    @pydantic.field_validator("*")
    @classmethod
    def _possible(cls, value: Any, about: pydantic.ValidationInfo) -> Any:
        """Refuse a value that no other key could make possible."""
        match about.field_name:
            case _ if value is None:
                pass
            case "store_memory":
                parse_bytes(value)
            case "dataset" if not known_dataset(value):
                raise ValueError(str(unknown_dataset(value)))
            case "compute" if any(compute.milliseconds > MOST_EMULATED_MS for compute in value):
                raise ValueError(f"compute emulates at most {MOST_EMULATED_MS:,} milliseconds per step")
            case "device" if not re.fullmatch(r"cpu|cuda(:\d+)?", value):
                raise ValueError(f"device is 'cpu', 'cuda' or 'cuda:NUMBER', not {value!r}")
            case "model" if value not in MODEL_BATCHES:
                raise ValueError(str(UnknownNameError.of("model", value, MODEL_BATCHES)))
            case "memory" if parse_bytes(value) < LEAST_MEMORY_BYTES:
                least = format_bytes(LEAST_MEMORY_BYTES)
                raise ValueError(f"memory {value!r} is less than {least}, which the process itself needs")
            case "place" if others := [place for place in value if place.kind not in ("", "s3")]:
                raise ValueError(f"{others[0]} is in records only: mount a share, and name its folder")
            case "tier":
                try:
                    [find_tier(name) for name in value]
                except StorebenchError as error:
                    raise ValueError(str(error)) from error
            case "readahead" if uneven := [kib for kib in value if kib % _PAGE_KIB]:
                raise ValueError(
                    f"readahead is in KiB and a multiple of {_PAGE_KIB} (a page), not {uneven[0]}"
                )
            case "backends":
                try:
                    [parse_backend(name) for name in value]
                except StorebenchError as error:
                    raise ValueError(str(error)) from error
        return value

    def _refuse_given(self, defaults: Mapping[str, Any], why: str) -> None:
        """Refuse the first of some settings that has another value than its default."""
        for row in SETTINGS:
            default = defaults.get(row.name)
            if row.name in defaults and getattr(self, row.key) not in (None, default, [default]):
                raise ValueError(f"{row.key} {why}")

    @pydantic.model_validator(mode="after")
    def _for_ranks(self) -> Self:
        whole = self.global_batch_size
        if max(self.ranks, default=1) == 1:
            self._refuse_given(_ONE_RANK, "is for jobs of several ranks: set ranks as well")
        if whole is not None and self.batch_size is not None:
            raise ValueError(
                "batch_size is that of one rank, and follows from global_batch_size: set one of them"
            )
        uneven = [ranks for ranks in self.ranks if whole is not None and whole % ranks]
        if uneven:
            raise ValueError(f"global_batch_size {whole} cannot be divided among {uneven[0]} ranks")
        workers = max(self.workers, default=0)
        by_thread = workers == 1 and set(self.loader) == {LoaderKind.THREADS}
        if Share.NODE in self.share and workers and not by_thread:
            raise ValueError(
                "share 'node' has one reader per node, in the loop of its first rank or in one thread: "
                "set workers to 0, or to 1 with loader 'threads'"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _in_own_order(self) -> Self:
        streams = [name for name in self.backends if parse_backend(name).native_order]
        if not streams:
            return self
        if max(self.workers, default=0) > 1 or max(self.ranks, default=1) > 1:
            raise ValueError(
                f"{streams[0]} is one stream in its own order: set workers to 0 or 1, and ranks to 1"
            )
        in_place = next((name for name in streams if traits_of(parse_backend(name)).fixed_place), None)
        if in_place is not None and (self.size is not None or self.skip_unreadable):
            raise ValueError(
                f"{in_place} serves all samples of a container, or the first ones: use limit instead of size, "
                "and leave out skip_unreadable"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _placed(self) -> Self:
        places = [place for place in self.place if place.remote]
        for backend in map(parse_backend, self.backends):
            if any(_reads_at(backend, place) for place in self.place):
                continue
            if not places:
                raise ValueError(
                    f"{backend.name} asks an object store: set place to s3:http://HOST:PORT/BUCKET"
                )
            near = [
                f"{backend.format}+{backend.codec}:{name}"
                for name, info in get_format(backend.format).readers().items()
                if info.traits.served
            ]
            instead = f"{near[0]} reads there" if near else "nothing of it does"
            raise ValueError(
                f"{backend.name} cannot be read from {places[0]} without a mount, {instead}; "
                f"place 'copy:{places[0]}' copies it first"
            )
        fixed = next((name for name in self.backends if traits_of(parse_backend(name)).fixed_place), None)
        if fixed is not None and ({*self.place} != {LOCAL} or self.readahead):
            raise ValueError(
                f"{fixed} reads files where they are, so it cannot be put elsewhere: leave it out"
            )
        if places and {*self.cache} - {CacheState.ANY}:
            raise ValueError("no page cache of this machine holds what a server sends: set cache to 'any'")
        return self

    @pydantic.model_validator(mode="after")
    def _held(self) -> Self:
        filling = Fill.FIRST_EPOCH in self.store_fill
        if Share.STORE not in self.share:
            self._refuse_given(_NO_DATA_STORE, "is for the data store of a job: add 'store' to share")
            return self
        if max(self.workers, default=0):
            raise ValueError("share 'store' exchanges samples in the loop of each rank, so workers must be 0")
        if CacheState.LIMITED in self.cache:
            raise ValueError("share 'store' has no limited cell, because it holds the samples in memory")
        if filling and self.epochs == 1:
            raise ValueError(
                "a data store that the first epoch fills needs a second epoch to serve: set epochs to 2 or more"
            )
        if filling and self.max_steps is not None:
            raise ValueError(
                "max_steps would leave samples out of a data store that the first epoch fills: use 'preload'"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _trained_apart(self) -> Self:
        several = max(self.trainers, default=1) > 1
        if not several:
            self._refuse_given(_ONE_TRAINER, "is for jobs of several trainers: set trainers as well")
        for ranks, trainers in itertools.product(self.ranks, self.trainers):
            if ranks % trainers:
                raise ValueError(f"{ranks} ranks cannot be divided among {trainers} trainers")
        if several and Sync.NONE in self.sync:
            raise ValueError("the ranks of a trainer train one network: with trainers, sync cannot be 'none'")
        if several and set(self.share) != {Share.NONE}:
            raise ValueError("each trainer has its own samples: with trainers, share must be 'none'")
        if not any(self.tournament_steps):
            return self
        if any(compute.kind is not ComputeKind.REAL for compute in self.compute):
            raise ValueError("a tournament scores trained networks: tournament_steps needs compute 'real'")
        unread = next((name for name in self.backends if traits_of(parse_backend(name)).ready_made), None)
        if unread is not None:
            raise ValueError(
                f"{unread} has no samples on which a tournament could score networks: leave it out"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _sensible(self) -> Self:
        if CacheState.LIMITED in self.cache and self.memory is None:
            raise ValueError(
                "cache 'limited' needs a limit of the page cache: --memory '400 MiB', or memory in a scenario"
            )
        if self.memory is not None and CacheState.LIMITED not in self.cache:
            raise ValueError("memory is for cells with a limited page cache: add 'limited' to cache")
        if next(self._points(), None) is None:
            raise ValueError(f"no cell is left: {'; '.join(self.impossible())}")
        if self.max_steps is not None and self.warmup_steps >= self.max_steps * (self.passes or 1):
            raise ValueError("warmup_steps leaves no timed step below max_steps")
        if self.model == NO_MODEL and any(compute.kind is ComputeKind.REAL for compute in self.compute):
            raise ValueError("compute 'real' needs a model: name one, or set compute to 'none'")
        if self.passes is not None and set(self.cache) - {CacheState.WARM, CacheState.ANY}:
            states = [str(state) for state in self.cache]
            raise ValueError(
                f"later passes read what the first one made warm, so with passes the cache cannot be {states}"
            )
        if self.model in FILTERED_MODELS and (max(self.ranks) > 1 or self.device != "cpu"):
            raise ValueError(f"{self.model} is trained by one process on the CPU: leave out ranks and device")
        if max(self.ranks) > 1 and ":" in self.device:
            raise ValueError(
                f"each rank has its own GPU, so with ranks the device is 'cuda', not {self.device!r}"
            )
        return self

    @property
    def data(self) -> DatasetSpec:
        """The samples of the matrix."""
        return DatasetSpec(
            name=self.dataset,
            split=self.split,
            size=self.size,
            limit=self.limit,
            seed=self.data_seed,
            synthetic=self.synthetic,
            image_size=self.image_size,
            skip_unreadable=self.skip_unreadable,
        )

    def cells(self) -> list[Cell]:
        """Return the product of the axes, less the cells that cannot exist (see `impossible`)."""
        return list(dict.fromkeys(self._cell(backend, axes) for backend, axes in self._points()))

    def _points(self) -> Iterator[tuple[Backend, dict[str, Any]]]:
        """Return the backend of each cell, and its place on the axes."""
        backends = [parse_backend(backend) for backend in self.backends]
        names = [row.name for row in AXES]
        for backend, *values in itertools.product(backends, *(self._axis(row) for row in AXES)):
            axes = dict(zip(names, values, strict=True))
            limited = axes["cache"] is CacheState.LIMITED
            shared = axes["share"] is not Share.NONE and axes["ranks"] > 1
            if _reads_at(backend, axes["place"]) and not (_holds(backend) and (limited or shared)):
                yield backend, axes

    def impossible(self) -> list[str]:
        """Return one line per backend and cache state or way of sharing in which it has no cell."""
        holding = [name for name in self.backends if _holds(parse_backend(name))]
        missing = ["limited cell"] if CacheState.LIMITED in self.cache else []
        shared = sorted(set(self.share) - {Share.NONE}) if max(self.ranks, default=1) > 1 else []
        missing += [f"cell with share '{share}'" for share in shared]
        return [
            f"{name} has no {what}, because it holds all pixels in memory"
            for what in missing
            for name in holding
        ]

    def _axis(self, row: Setting) -> list[Any]:
        """Return the values of an axis; [None] if its value follows from other settings."""
        missing = [None] if row.asked_default is None else []
        return list(getattr(self, row.key) or missing)

    def _cell(self, backend: Backend, axes: dict[str, Any]) -> Cell:
        fields = {row.name: getattr(self, row.key) for row in SETTINGS if row.axis is None} | axes
        fields["model"] = self.model or DATASET_MODELS.get(self.dataset, "caffenet")
        shared = self.global_batch_size and self.global_batch_size // fields["ranks"]
        fields["batch_size"] = fields["batch_size"] or shared or MODEL_BATCHES[fields["model"]]
        reference = traits_of(backend).ready_made
        limited = fields["cache"] is CacheState.LIMITED and not reference
        fields["memory_bytes"] = parse_bytes(self.memory) if limited and self.memory else None
        if reference:
            # A reference reads nothing, so it has one cell for all states of the page cache and all devices.
            fields |= {
                "cache": CacheState.ANY,
                "readahead_kib": None,
                "place": LOCAL,
                "tier": None,
                "share": Share.NONE,
            }
        fields = job_settings(fields)
        fills = limited or fields["store_fill"] is Fill.FIRST_EPOCH
        fields["epochs"] = fields["epochs"] or (FILLING_EPOCHS if fills else 1)
        return Cell(data=self.data, backend=backend, **fields)


if TYPE_CHECKING:
    Matrix = MatrixWithoutLoop
else:
    Matrix = pydantic.create_model(
        "Matrix",
        __base__=MatrixWithoutLoop,
        __module__=__name__,
        __doc__="Axes whose product is a list of cells.",
        **{row.key: _loop_key(row) for row in SETTINGS},
    )


def _reads_at(backend: Backend, place: Place) -> bool:
    """Whether a backend has a cell at a place: at a server if its reader asks one."""
    traits = traits_of(backend)
    return backend.is_null or (traits.served if place.remote else not traits.remote)


def _holds(backend: Backend) -> bool:
    """Whether a backend holds all pixels in memory: it has no limited cell, and nothing to share."""
    traits = traits_of(backend)
    return traits.holds_pixels and not traits.ready_made
