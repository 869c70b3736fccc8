"""The words that rooms share: values of settings (splits, cache states, loaders, ...), and the limits of a loop."""

import enum
import re
from typing import Any, Self

from storebench.errors import UnknownNameError


class Word(enum.StrEnum):
    """One of a few words; in JSON it is the word itself."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema of a string that is one of the words, and becomes a member."""
        from pydantic_core import core_schema

        words = core_schema.literal_schema([word.value for word in cls])
        return core_schema.no_info_after_validator_function(
            cls, words, serialization=core_schema.to_string_ser_schema()
        )


class Split(Word):
    """Which part of a dataset is read."""

    TRAIN = "train"
    TEST = "test"

    @classmethod
    def of(cls, text: str) -> "Split":
        if text not in list(cls):
            raise UnknownNameError.of("split", text, [word.value for word in cls])
        return cls(text)


class Limit(enum.StrEnum):
    """What can limit a loop: of a measured cell, a planned store or a profiled program."""

    COMPUTE = "compute"
    COPY = "copy"
    CONTENTION = "contention"
    CORES = "cores"
    WORKERS = "workers"
    LOOP = "loading in the loop"
    READER = "reader"
    DECODE = "decode"
    PREP = "prep"
    FETCH = "fetch"
    LATENCY = "read latency"
    STORAGE = "device bandwidth"
    REQUESTS = "device requests"
    HANDOFF = "handoff"
    BALANCED = "balanced"
    # Of profiled programs only.
    TRANSFORM = "decode or transforms"
    WAITING = "waits in the dataset"
    LOCK = "a lock"
    REPEATED = "work repeated for each sample"
    SLOW_SAMPLES = "a few slow samples"
    COLLATE = "collate"
    SMALL_BATCHES = "small batches"
    PINNING = "pinning"
    LOADER = "the loader"
    MANY_WORKERS = "too many workers"
    STARTUP = "the start of epochs"
    STALLS = "stalls"
    UNKNOWN = "too few steps"


class CacheState(Word):
    """State of the page cache that a cell asks for."""

    COLD = "cold"  # No page of the store is resident when an epoch starts.
    WARM = "warm"  # All pages of the store are resident when an epoch starts.
    LIMITED = "limited"  # The page cache holds less than the store.
    ANY = "any"  # The cache stays as it is found.


# Cache states that hold for a portion of an epoch only.
BOUNDED_STATES = (CacheState.COLD, CacheState.LIMITED)


class LoaderKind(Word):
    """The way in which batches reach the loop."""

    PROCESSES = "processes"  # The worker processes of torch's DataLoader.
    THREADS = "threads"
    RING = "ring"  # Processes that write into a ring of shared memory.


class Sync(Word):
    """The moment at which the ranks of a job exchange gradients."""

    OVERLAPPED = "overlapped"  # During the backward pass, in buckets.
    AFTER = "after"  # In one piece after the backward pass.
    NONE = "none"  # Never: each rank trains its own network.


class Share(Word):
    """The way in which the ranks of a job share reading."""

    NONE = "none"  # Each rank reads its own samples.
    NODE = "node"  # One rank per node reads each batch for all ranks there, into shared memory.
    STORE = "store"
    """Each rank keeps a part of the samples in memory and sends them to the ranks that need them."""


class Fill(Word):
    """The moment at which the ranks of a job fill their data store."""

    PRELOAD = "preload"  # Before the first epoch: each rank reads a part of the store.
    FIRST_EPOCH = "first-epoch"  # In the first epoch: each rank keeps the samples that it serves.


class TrainerData(Word):
    """The samples of each trainer of a job."""

    PARTITIONED = "partitioned"  # A part of the samples; no two trainers share a sample.
    REPLICATED = "replicated"  # All samples.


class ComputeKind(Word):
    """The work of the loop on a batch."""

    REAL = "real"  # It trains the network.
    NONE = "none"  # It asks for the next batch at once.
    EMULATED = "emulated"  # It sleeps for as long as an accelerator would compute.


class _Text(str):
    """A text of some grammar; in JSON it is the text itself."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            cls, core_schema.str_schema(), serialization=core_schema.to_string_ser_schema()
        )


class Compute(_Text):
    """The compute of one training step: "real", "none" or "emulated:MILLISECONDS"."""

    __slots__ = ("kind", "milliseconds")

    kind: ComputeKind
    milliseconds: float

    def __new__(cls, text: str) -> Self:
        if not re.fullmatch(r"real|none|emulated:\d+(\.\d+)?", text):
            raise ValueError(f"compute is 'real', 'none' or 'emulated:MILLISECONDS', not {text!r}")
        compute = super().__new__(cls, text)
        kind, _, milliseconds = text.partition(":")
        compute.kind = ComputeKind(kind)
        compute.milliseconds = float(milliseconds or 0)
        return compute

    @property
    def duration(self) -> str:
        """The milliseconds of an emulated step as they were written; "" for the other kinds."""
        return self.partition(":")[2]


# Real training.
REAL = Compute("real")


class Place(_Text):
    """Where a store is read: "local", an absolute folder, or an object store ("s3:URL", "s3:here?EMULATED").

    "copy:" before an object store: every replicate copies the store to this disk first, and reads it there; before a
    folder: the copy in it ends with the run. Records may have servers of other kinds, which no run starts any more
    ("nfs:here"), and mounts ("ssh:here", "weed:here").
    """

    __slots__ = ("copies", "emulated", "folder", "kind", "url")

    copies: bool  # From a server to this disk.
    folder: str  # Perhaps of another file system; "" for every other place.
    kind: str  # "s3", or a kind that only records have; "" for this disk and for a folder.
    url: str  # The address of a server that runs already; "" for every other place.
    emulated: dict[str, float]  # What the run's own server emulates, by the names of `storebench place up`.

    def __new__(cls, text: str) -> Self:
        if "@" in text:
            raise ValueError(
                "a place names no credentials: they come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        server = re.fullmatch(
            r"(?P<copy>copy:)?(?P<kind>s3|nfs|ssh|weed):(here(?:\?(?P<emulated>[a-z=&.+\d-]+))?|(?P<url>\S+))",
            text,
        )
        place = super().__new__(cls, text)
        place.copies, place.kind, place.url, place.emulated = False, "", "", {}
        path = text.removeprefix("copy:")
        place.folder = path if path.startswith("/") else ""
        if server is not None:
            place.copies, place.kind = bool(server["copy"]), server["kind"]
            place.url = (server["url"] or "").rstrip("/")
            place.emulated = _emulated(place.kind, server["emulated"] or "")
        if (server is None and text != "local" and not place.folder) or (
            place.url and not re.fullmatch(r"https?://[^/?#]+/[^/?#][^?#]*", place.url)
        ):
            raise ValueError(
                "place is 'local', a folder from / or copy:FOLDER, s3:http://HOST:PORT/BUCKET, or s3:here with what it "
                f"emulates, joined by '&' (s3:here?first-byte-ms=20&mb-s=50), not {text!r}"
            )
        return place

    @property
    def remote(self) -> bool:
        """Whether readers ask a server for every sample."""
        return self.kind in ("s3", "nfs") and not self.copies

    @property
    def mounted(self) -> bool:
        """Whether readers read files of a file system that is not this disk's."""
        return bool(self.folder) or (self.kind in ("ssh", "weed") and not self.copies)


def _emulated(kind: str, text: str) -> dict[str, float]:
    """Return the numbers of ``first-byte-ms=20&mb-s=50``."""
    names = ("first-byte-ms", "mb-s") if kind == "s3" else ("round-trip-ms", "mb-s")
    pairs = [pair.partition("=") for pair in text.split("&") if pair]
    for name, _, value in pairs:
        if name not in names or not re.fullmatch(r"\d+(\.\d+)?", value) or not 0 < float(value) <= 10_000:
            raise ValueError(
                f"{kind}:here emulates {' and '.join(names)}, each above 0 and at most 10,000, not {name}={value}"
            )
    return {name: float(value) for name, _, value in pairs}


# The folder of the stores.
LOCAL = Place("local")
