"""The contract between the harness and a storage format: Format and Writer; `Reader` is in `formats.reader`.

A format is a container: it keeps payloads (bytes that a codec made) and labels
in an order, and returns them by index. It decides nothing else: the order
of reading, the decoding and the augmentation belong to the harness, so that
every format trains the same network on the same batches.

`storebench.testing.contract` is the test suite of this contract; a
third party's format inherits it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from storebench.arrays import Indices
from storebench.codecs import Payload
from storebench.datasets.base import Dataset
from storebench.errors import UnknownNameError
from storebench.formats.reader import Fetched, Reader, Traits
from storebench.formats.windows import Batch
from storebench.record.manifest import DIGESTS_NAME, MANIFEST_NAME, NAMES_NAME, Manifest, StoreSpec
from storebench.system.file_tree import FileTree

__all__ = ["Batch", "Fetched", "Format", "FormatInfo", "Indices", "Reader", "ReaderInfo", "Traits", "Writer"]


class Writer(ABC):
    """Take payloads and labels in order and put them into a folder.

    The folder is the store's temporary one: it exists, is empty and belongs to
    this writer. Used as a context manager: leaving it normally calls `close`,
    leaving it by an exception calls `abort`.

    Parameters
    ----------
    folder
        Folder for the data files.
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
        """Write buffered samples and sync every file to disk. Called once, after the last sample."""

    def abort(self) -> None:  # noqa: B027 - most writers hold only files
        """Release handles and locks. The data is not used any more, and the folder is removed afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


@dataclass(frozen=True, kw_only=True)
class ReaderInfo:
    """One reader of a format: its class and its description.

    Attributes
    ----------
    summary
        The way in which it reads, as a phrase.
    traits
        Properties that the harness acts on; the default is right for a reader that fetches from files.
    note
        A limit that people should know, and what the reader does about it; "" if there is none.
    """

    reader: type[Reader]
    summary: str
    traits: Traits = field(default_factory=Traits)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class FormatInfo:
    """The description of a format: its name, default codec and default reader.

    Attributes
    ----------
    borrows
        The store ("memory+raw") that it reads for geometry and labels, having
        none of its own; None for every format that stores something.
    """

    name: str
    summary: str
    default_codec: str
    default_reader: str
    borrows: str | None = None


class Format(ABC):
    """A storage format: makes writers and readers, and knows which files hold the data."""

    info: ClassVar[FormatInfo]

    @abstractmethod
    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the readers, by name; ``info.default_reader`` is one of them."""

    @abstractmethod
    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return a writer into the empty `folder`."""

    def writer_for(self, dataset: Dataset, folder: Path, spec: StoreSpec) -> Writer:  # noqa: ARG002
        """Return a writer of the samples of `dataset`; the default is `writer`."""
        return self.writer(folder, spec)

    def reader(
        self,
        store: Path,
        manifest: Manifest,
        name: str | None = None,
        options: Mapping[str, str] | None = None,
        url: str = "",
    ) -> Reader:
        """Open the store in this process with the reader called `name` (the default one if None).

        Parameters
        ----------
        options
            Option name -> value as a backend spells it ("readahead" -> "off").
        url
            The server that has a copy of the store's files, for a reader with the trait `servers`; "" for none.

        Raises
        ------
        UsageError
            The format has no such reader, the reader no such option, or the option does not accept the value.
        """
        name, readers = name or self.info.default_reader, self.readers()
        if name not in readers:
            raise UnknownNameError.of(f"reader of {self.info.name}", name, readers)
        typed = readers[name].reader.options_type.parse((options or {}).items(), f"{self.info.name}:{name}")
        reader: Callable[..., Reader] = readers[name].reader
        return reader(store, manifest, typed, *([url] if readers[name].traits.served else []))

    def traits(self, reader: str | None = None) -> Traits:
        """Return the traits of one reader of this format (the default one if None)."""
        return self.readers()[reader or self.info.default_reader].traits

    def data_files(self, store: Path) -> Sequence[Path]:
        """Return every file of the store that holds samples: these are evicted, counted and measured."""
        # Entries other than files and folders are listed too, so that measuring sizes refuses them.
        return FileTree(store, but={MANIFEST_NAME, DIGESTS_NAME, NAMES_NAME})

    def auditor(self, store: Path, manifest: Manifest) -> Reader:
        """Return a reader for reading everything once, in memory that does not grow with the store.

        The default reader, unless that one holds all pixels.
        """
        return self.reader(store, manifest)

    def check_structure(self, store: Path) -> None:  # noqa: B027 - most formats have nothing to check
        """Check properties of the store that the format's library relies on, and whose damage would crash the process.

        Called once before the store is verified, or read to be converted. The default checks nothing: most
        libraries raise an error where a file is damaged.

        Raises
        ------
        CorruptStoreError
            The file is damaged in such a place.
        """

    def locate(self, store: Path, manifest: Manifest, index: int) -> Path:  # noqa: ARG002
        """Return the file or folder that holds sample `index`, for a person who has to inspect it."""
        return store
