"""What a plan is for and what it says: the target, the plan of each store, and of all."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from storebench.accelerators import Accelerator
from storebench.analysis.choices import TrainingChange
from storebench.analysis.labels import backend_label, place_words
from storebench.analysis.plan.prediction_errors import PredictionKind
from storebench.settings.words import Limit, Place
from storebench.units import format_bytes

HOUR = 3600
# Another store is worth a conversion from here on.
FASTER = 1.1


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machines to plan for; cores, memory and accelerators are those of each node."""

    accelerator: Accelerator
    workers: int  # of each training process; there is one process per accelerator
    cores: int
    samples: int
    count: int = 1
    nodes: int = 1
    memory_bytes: float | None = None
    """Page cache; None if it holds the store."""
    bytes_per_s: float | None = None
    """Storage that all nodes share; None for the run's own device in each node. The same for the next two."""
    requests_per_s: float | None = None
    first_byte_s: float | None = None
    epochs: int | None = None

    @property
    def other_storage(self) -> bool:
        return not (self.bytes_per_s is self.requests_per_s is self.first_byte_s is None)

    @property
    def accelerators(self) -> int:
        return self.nodes * self.count

    @property
    def needed(self) -> float:
        return self.accelerators * self.accelerator.images_per_s


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What accelerators that never wait ask of the storage while nothing is in memory."""

    bytes_per_image: float  # with what the reader reads beside the image
    bytes_per_s: float
    requests_per_s: float
    opens_per_s: float  # of files; 0 where many images are in one


@dataclass(frozen=True, kw_only=True)
class StorePlan:
    store: str
    place: Place
    readahead_kib: int | None  # where it makes a difference
    container: str  # format and codec: backends that share them read the same files
    stored_bytes: float
    images_per_s: float  # over all epochs, or over one after many if their number is open
    low: float
    high: float
    busy: float
    busy_low: float
    busy_high: float
    first_h: float
    epoch_h: float  # of the last epoch
    total_h: float | None
    limit: Limit
    lift: str  # as much of the limiting resource keeps the accelerators busy; "" if they are, or nothing does
    asked: Asked
    build_s: float | None
    change: TrainingChange = TrainingChange.NOTHING  # beside training from the images as the user has them
    pays_after_epochs: float | None = None
    """Epochs after which a conversion to the fastest store that can be built saves time; None if it does not."""
    kinds: tuple[PredictionKind, ...]  # in what the prediction differs from the cells

    def converted(self, best: "StorePlan") -> "StorePlan":
        """Return it with the epochs after which a conversion to the fastest store pays, if that is worth it."""
        build_s = 0.0 if self.container == best.container else best.build_s
        if self.place.remote or build_s is None or best.epoch_h * FASTER > self.epoch_h:
            return self
        return replace(self, pays_after_epochs=build_s / (HOUR * (self.epoch_h - best.epoch_h)))

    @property
    def load(self) -> tuple[float, bool]:
        """What it asks of the storage, the least first; plain files are the simpler store."""
        return self.asked.bytes_per_s, not self.container.startswith("files+")

    def is_tied(self, best: "StorePlan") -> bool:
        """Whether the errors of both predictions permit it to be as fast as the fastest."""
        width = math.hypot(*(math.log(store.images_per_s / store.low) for store in (self, best)))
        return math.log(best.images_per_s / self.images_per_s) - width <= math.log(FASTER)

    @property
    def label(self) -> str:
        name = ", ".join(filter(None, (backend_label(self.store), place_words(self.place))))
        if self.readahead_kib is None:
            return name
        return f"{name}, {format_bytes(1024 * self.readahead_kib)} ahead"

    @property
    def in_place(self) -> bool:
        """Whether it is the images as the user has them, so that nothing converts to it."""
        return self.container.startswith("container+") or self.container == "files+original"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one dataset: the stores, best first, what they rest on, and what cells to add, and for what."""

    target: Target
    dataset: str
    image_shape: str
    stores: tuple[StorePlan, ...]
    """The fastest first; of those that are about equally fast, the one that asks least of the storage."""
    ties: tuple[str, ...]  # each may be the fastest, by the errors of such predictions
    conversion: str  # the fastest store that can be built
    caveats: tuple[str, ...]
    lacking: tuple[str, ...]

    @property
    def choice(self) -> StorePlan:
        """The store to use: of those that are about equally fast, what the user has, then what asks least."""
        return min(_equal(self.stores), key=lambda store: (not store.in_place, store.load))


def _equal(stores: Sequence[StorePlan]) -> list[StorePlan]:
    most = max(store.images_per_s for store in stores)
    return [store for store in stores if FASTER * store.images_per_s >= most]


def ordered(stores: Sequence[StorePlan]) -> Iterator[StorePlan]:
    while stores:
        equal = _equal(stores)
        yield from sorted(equal, key=lambda store: store.load)
        stores = [store for store in stores if store not in equal]
