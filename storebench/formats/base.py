"""The contract between the harness and a storage format: Format, Writer, Reader.

A format is a container: it keeps payloads (bytes that a codec made) and labels
in an order, and gives them back by index. It decides nothing else: the order
of reading, the decoding and the augmentation belong to the harness, so that
every format trains the same network on the same batches.

`storebench.testing.contract` is the test suite of this contract; a
third party's format inherits it.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, final

from storebench.codecs import Payload, get_codec
from storebench.errors import CorruptDataError, UnknownNameError
from storebench.formats.arrays import Batch, Indices
from storebench.formats.sequence import SampleSequence
from storebench.manifest import DIGESTS_NAME, MANIFEST_NAME, Manifest, StoreSpec

__all__ = [
    "Batch",
    "Format",
    "FormatInfo",
    "Indices",
    "Reader",
    "ReaderInfo",
    "Traits",
    "Usage",
    "Writer",
    "check_options",
]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a format can and cannot do; the harness acts on it and records what it did.

    Attributes
    ----------
    processes
        How many processes may open one store at a time; None for any number.
    fork_safe
        Whether a reader that is open may be used on both sides of a fork. The
        harness never does; it is said for people who embed a reader.
    random_access
        Whether one sample costs about one sample, wherever it lies.
    releases_gil
        Whether most of a fetch runs without Python's interpreter lock, so that threads help.
    holds_pixels
        Whether opening reads and decodes everything into memory, so that a fetch touches no disk.
    ready_made
        Whether it hands out a few batches that are in memory already: nothing is fetched,
        decoded or prepared, and its samples are real ones but not those of the plan.
    note
        What the harness does about a limit ("each reader opens a hard-linked snapshot").
    """

    processes: int | None = None
    fork_safe: bool = False
    random_access: bool = True
    releases_gil: bool = False
    holds_pixels: bool = False
    ready_made: bool = False
    note: str = ""


class Writer(ABC):
    """Take payloads and labels in order and put them into a folder.

    The folder is the store's temporary one: it exists, is empty and belongs to
    this writer. Used as a context manager: leaving it normally calls `close`,
    leaving it by an exception calls `abort`.

    Parameters
    ----------
    folder
        Where the data files go.
    spec
        Dataset geometry, format and codec. ``spec.dataset.count`` samples will come.
    """

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        self.folder = folder
        self.spec = spec

    @abstractmethod
    def append(self, payload: Payload, label: int) -> None:
        """Add the next sample. `payload` is only valid during the call."""

    @abstractmethod
    def close(self) -> None:
        """Write what is pending and sync every file to disk. Called once, when all samples came."""

    def abort(self) -> None:  # noqa: B027 - most writers have nothing but files to let go of
        """Let go of handles and locks without caring for the data; the folder is removed afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Reader(SampleSequence):
    """Give samples back by index. Opened in the process that uses it and never carried across a fork.

    Used by one thread at a time, which need not be the one that opened it.

    When a fetch returns, every byte is in memory that is private to the caller:
    a reader that hands out views of a mapped file would move its page faults
    into somebody else's clock.

    Parameters
    ----------
    store
        The store's folder.
    manifest
        What the store says of itself.
    options
        The backend's options ("readahead" -> "off"); see `Backend.options`.
        Unknown ones are refused by `Format.reader`.

    Attributes
    ----------
    labels
        int64 [count]; in memory from the opening on.
    payload_codec
        The codec of what `fetch` returns: the store's, or "raw" for a reader
        that decodes by itself (at its opening, or in its own threads).
    last_decode_ns
        How much of the last `fetch_into` was decoding, in nanoseconds of its
        wall time; 0 for readers that only copy.
    """

    options_help: ClassVar[Mapping[str, str]] = {}
    """Option name -> one line of what it does and which values it takes."""

    last_decode_ns: int = 0

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        self.store = store
        self.manifest = manifest
        self.options = options
        self.image_shape = manifest.dataset.image_shape
        self.payload_codec = manifest.codec

    @classmethod
    def traits_with(cls, options: Mapping[str, str], traits: Traits) -> Traits:  # noqa: ARG003 - for those that differ
        """Return the traits of this reader when it is opened with `options`: `traits`, unless an option changes them."""
        return traits

    @classmethod
    def index_files(cls, store: Path) -> list[Path]:  # noqa: ARG003 - for those that keep some
        """Return the files outside `store` that this reader keeps for it, as far as they exist.

        They are evicted and counted with the store's own.
        """
        return []

    @classmethod
    def ahead_bytes(cls, options: Mapping[str, str], manifest: Manifest) -> int:  # noqa: ARG003 - for those that plan
        """Return how many bytes of planned payload a reader with `options` reads beyond the batch in progress."""
        return 0

    @abstractmethod
    def fetch(self, indices: Indices) -> list[bytes]:
        """Return the payloads of `indices`, in that order, as bytes that the caller owns."""

    @abstractmethod
    def fetch_into(self, indices: Indices, out: Batch) -> int:
        """Copy raw pixels of `indices` into ``out[:len(indices)]``, one copy from the store to the batch.

        Only where `payload_codec` is "raw".

        Returns
        -------
        int
            Bytes of payload that were copied.
        """

    @final
    def read_into(self, indices: Indices, out: Batch) -> None:
        """Write the decoded pixels of `indices` into ``out[:len(indices)]``, whatever the payloads are.

        Parameters
        ----------
        indices
            int64 [n], each in ``range(count)``; indices may repeat.
        out
            uint8 [n or more, H, W, C], C-contiguous. Rows beyond n are left as they are.

        Raises
        ------
        CorruptDataError
            A payload does not decode; the line names the sample.
        """
        if self.payload_codec == "raw":
            self.fetch_into(indices, out)
            return
        codec = get_codec(self.payload_codec)
        for index, payload, image in zip(indices.tolist(), self.fetch(indices), out, strict=False):
            try:
                codec.decode_into(payload, image)
            except CorruptDataError as error:
                raise CorruptDataError(f"sample {index}: {error.what}", where=self.store) from error

    def plan(self, batches: Sequence[Indices]) -> None:
        """Learn which batches this reader will be asked for, in that order, until the next plan.

        A reader may use it to read ahead. `fetch` and `fetch_into` calls follow
        the plan, one call a batch; a call that departs from it must still be
        answered rightly.
        """

    def notes(self) -> dict[str, str]:
        """Return what a reader of the results should know of how this reader worked, by name."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of every handle, lock and temporary file. Calling it twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Usage(enum.StrEnum):
    """How well a library or a layout is used: a format's figures are those of this use of it."""

    EXPERT = "as its expert would"
    CAFFE = "as Caffe did"
    NEWCOMER = "as a newcomer would"


@dataclass(frozen=True, kw_only=True)
class ReaderInfo:
    """One way into a format: its class, and what it says of itself where it differs from the format.

    Attributes
    ----------
    usage
        How the store is read; None where the format's author does not say.
    expert_would
        One sentence: what an expert of the format would change about the reading.
    """

    reader: type[Reader]
    summary: str
    traits: Traits | None = None
    usage: Usage | None = None
    expert_would: str = ""


@dataclass(frozen=True, kw_only=True)
class FormatInfo:
    """The face of a format: name, default codec and reader, traits.

    Attributes
    ----------
    borrows
        The store ("memory+raw") that it reads for geometry and labels, having
        none of its own; None for every format that stores something.
    usage
        How the store is written; None where the format's author does not say.
    expert_would
        One sentence: what an expert of the format would change about the writing.
    """

    name: str
    summary: str
    default_codec: str
    default_reader: str
    traits: Traits = field(default_factory=Traits)
    borrows: str | None = None
    usage: Usage | None = None
    expert_would: str = ""


class Format(ABC):
    """A storage format: makes writers and readers, and knows which files hold the data."""

    info: ClassVar[FormatInfo]

    @abstractmethod
    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the ways in, by name; ``info.default_reader`` is one of them."""

    @abstractmethod
    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return a writer into the empty `folder`."""

    def reader(
        self,
        store: Path,
        manifest: Manifest,
        name: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Reader:
        """Open the store in this process with the reader called `name` (the default one if None)."""
        name = name or self.info.default_reader
        info, options = self.readers()[name], options or {}
        check_options(f"{self.info.name}:{name}", info.reader, options)
        return info.reader(store, manifest, options)

    def traits(self, reader: str | None = None, options: Mapping[str, str] | None = None) -> Traits:
        """Return the traits of one reader of this format, opened with `options`."""
        info = self.readers()[reader or self.info.default_reader]
        return info.reader.traits_with(options or {}, info.traits or self.info.traits)

    def data_files(self, store: Path) -> list[Path]:
        """Return every file of the store that holds samples: what is evicted, counted and measured."""
        own = {MANIFEST_NAME, DIGESTS_NAME}
        # What is neither a file nor a folder is listed too, so that it is refused when sizes are taken.
        return sorted(path for path in store.rglob("*") if path.name not in own and not path.is_dir())

    def auditor(self, store: Path, manifest: Manifest) -> Reader:
        """Return a reader for reading everything once, in memory that does not grow with the store.

        The default reader, unless that one holds all pixels.
        """
        return self.reader(store, manifest)

    def check_structure(self, store: Path) -> None:  # noqa: B027 - most formats have nothing to check
        """Check what the format's library takes for granted and would end the process over.

        Called once before the store is verified, or read to be converted. The default checks nothing: most
        libraries raise an error where a file is damaged.

        Raises
        ------
        CorruptStoreError
            The file is damaged in such a place.
        """

    def locate(self, store: Path, manifest: Manifest, index: int) -> Path:  # noqa: ARG002 - for formats with a file a sample
        """Return the file or folder in which sample `index` lies, for a person who has to look at it."""
        return store


def check_options(name: str, reader: type[Reader], options: Mapping[str, str]) -> None:
    """Refuse options that a reader does not have.

    Raises
    ------
    UnknownNameError
        With the nearest option that it has.
    """
    for option in options:
        if option not in reader.options_help:
            raise UnknownNameError.of(f"option of {name}", option, reader.options_help)
