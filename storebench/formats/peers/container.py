"""A container of another program, read where it is: the store says where its samples are, and holds none of them."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from storebench.arrays import Indices
from storebench.codecs import Payload
from storebench.datasets.base import Dataset, Image
from storebench.datasets.containers.base import Container
from storebench.datasets.containers.dataset import in_place
from storebench.datasets.containers.tar import TarShards
from storebench.datasets.containers.tfrecord import TfRecords, records
from storebench.errors import UsageError
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Traits, Writer
from storebench.formats.common import damaged, load_integers, save_array, sync_folder
from storebench.formats.options import Options
from storebench.formats.peers.rows import LABELS_FILE, Row, RowsReader
from storebench.formats.peers.stream import SHARDS_FILE, Numbered, StreamReader
from storebench.formats.peers.tfrecord import TfRecordReader
from storebench.formats.peers.webdataset import WebDatasetReader
from storebench.formats.reader import Seed
from storebench.formats.registry import get_format, is_installed
from storebench.record.manifest import Manifest, StoreSpec
from storebench.settings.backend import STREAM
from storebench.system.pickles import unpickled

SCAN_FILE, NUMBERS_FILE = "container.pickle", "numbers.npy"

# The format whose library serves each kind that has an order of its own.
STREAMS: dict[type[Container], str] = {TarShards: "webdataset", TfRecords: "tfrecord"}


def backend_in_place(dataset: Dataset, *, may_stream: bool) -> tuple[str, tuple[Path, ...]]:
    """Return the backend that reads a container as its users do, and its files that hold samples."""
    place = in_place(dataset)
    assert place is not None
    container, numbers = place
    is_stream = isinstance(container, TarShards | TfRecords) and container.streams and _are_first(numbers)
    streams = may_stream and is_stream and is_installed(STREAMS[type(container)])
    codec = "" if container.are_files else "+raw"
    return f"container{codec}{f':{STREAM}' if streams else ''}", tuple(container.files_of(numbers))


def _are_first(numbers: Sequence[int] | Indices) -> bool:
    return np.array_equal(numbers, np.arange(len(numbers)))


class ContainerWriter(Writer):
    """Write where the samples are; the samples that come are those of the container, for the digests."""

    def __init__(self, folder: Path, spec: StoreSpec, container: Container, numbers: Sequence[int]) -> None:
        super().__init__(folder, spec)
        self._container, self._numbers = container, np.asarray(numbers, np.int64)

    def append(self, payload: Payload, label: int) -> None:
        """Keep nothing."""

    def close(self) -> None:
        container, numbers = self._container, self._numbers
        (self.folder / SCAN_FILE).write_bytes(pickle.dumps(container))
        save_array(self.folder / NUMBERS_FILE, numbers)
        if isinstance(container, TarShards | TfRecords) and container.streams and _are_first(numbers):
            shards = [container.spans.shard(number) for number in numbers.tolist()]
            _, sizes = np.unique(shards, return_counts=True)
            save_array(self.folder / SHARDS_FILE, sizes.astype(np.int64))
            save_array(self.folder / LABELS_FILE, container.classes.labels[numbers])
        sync_folder(self.folder)


def container_of(store: Path) -> Container:
    """Return the container of a store, with nothing of it open."""
    path = store / SCAN_FILE
    try:
        container = unpickled(path.read_bytes(), own=True)
    except (OSError, pickle.UnpicklingError) as error:
        raise damaged("it does not say where the samples are", path) from error
    assert isinstance(container, Container)
    return container


def data_files(store: Path) -> list[Path]:
    """Return the files of the container that hold samples of the store, in their order."""
    return container_of(store).files_of(load_integers(store / NUMBERS_FILE).tolist())


class ContainerReader(RowsReader):
    """Read samples in any order, by the container's own library where it has one."""

    library = "the container's library"

    def _open(self) -> Any:
        self._container = container_of(self.store)
        self.hold("_container")
        self._numbers = load_integers(self.store / NUMBERS_FILE)
        return self._container.classes.labels[self._numbers]

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        return list(map(_payload, self._container.read_many(self._numbers[numbers].tolist())))


def _payload(image: bytes | Image) -> Row:
    return image if isinstance(image, bytes) else image.reshape(-1).data


class ContainerStream(StreamReader):
    """Read shards as their users do: in a drawn order, one after the other, through a shuffle buffer."""

    def __new__(cls, store: Path, manifest: Manifest, options: Options) -> Self:  # noqa: ARG004 - as __init__
        kind = _kind_of(store)
        assert issubclass(kind, cls)
        return object.__new__(kind)

    @classmethod
    def native_order(cls, store: Path, manifest: Manifest, options: Options, seed: Seed) -> Indices:
        if cls is ContainerStream:
            return _kind_of(store).native_order(store, manifest, options, seed)
        return super().native_order(store, manifest, options, seed)

    @staticmethod
    def shard_name(number: int) -> str:
        raise NotImplementedError

    def _paths(self, count: int) -> list[Path]:  # noqa: ARG002 - as many as there are files
        return data_files(self.store)


class TarStream(ContainerStream, WebDatasetReader):
    """Tar shards through WebDataset."""

    def _numbered(self, samples: Iterator[dict[str, Any]]) -> Iterator[Numbered]:
        container = container_of(self.store)
        assert isinstance(container, TarShards)
        numbers = {str(path): iter(part) for path, part in self.shards.items()}
        for sample in samples:
            fields = {name: value for name, value in sample.items() if not name.startswith("__")}
            image = container.image_of(fields, sample["__key__"])
            if image is not None and (number := next(numbers[sample["__url__"]], None)) is not None:
                yield number, image


class TfRecordStream(ContainerStream, TfRecordReader):
    """TFRecord files, every checksum of which is checked."""

    def _images(self, path: Path, file: IO[bytes]) -> Iterator[Row]:
        container = container_of(self.store)
        assert isinstance(container, TfRecords)
        for offset, record in records(file, path):
            yield _payload(container.image_of(record, f"{path}: sample at byte {offset:,}"))


def _kind_of(store: Path) -> type[ContainerStream]:
    container = container_of(store)
    if not isinstance(container, TarShards | TfRecords):
        raise UsageError(
            f"{container.kind} has no order of its own",
            where=container.files[0],
            hint="Name the backend container, without a reader.",
        )
    if not (store / SHARDS_FILE).exists():
        raise UsageError(
            "a stream serves all samples of a container, or the first ones, and no links in tar",
            where=container.files[0],
            hint="Name the backend container, without a reader.",
        )
    get_format(STREAMS[type(container)])  # its error says how to install a missing library
    return TarStream if isinstance(container, TarShards) else TfRecordStream


class ContainerFormat(Format):
    """The container that a dataset was read from."""

    info = FormatInfo(
        name="container",
        summary="the container of another program as it is (--dataset CONTAINER); nothing is copied",
        default_codec="original",
        default_reader="random",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "random": ReaderInfo(
                reader=ContainerReader,
                summary="any order: row groups, mapped Arrow, LMDB's get, h5py, offsets in tar, TFRecord and MDS",
                traits=Traits(fixed_place=True),
            ),
            "stream": ReaderInfo(
                reader=ContainerStream,  # type: ignore[type-abstract] # it makes one of a kind
                summary="tar (WebDataset) and TFRecord, shard by shard through a shuffle buffer: its own order",
                traits=Traits(native_order=True, fixed_place=True),
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        raise UsageError(
            f"{spec.dataset.name} is no container", where=folder, hint="Name one with --dataset CONTAINER."
        )

    def writer_for(self, dataset: Dataset, folder: Path, spec: StoreSpec) -> Writer:
        place = in_place(dataset)
        if place is None:
            return self.writer(folder, spec)
        container, numbers = place
        codec, where = "original" if container.are_files else "raw", container.files[0]
        if spec.codec != codec:
            what = f"the images of {container.kind} are read as they are, not as {spec.codec}"
            raise UsageError(what, where=where, hint=f"Name container+{codec}.")
        return ContainerWriter(folder, spec, container, numbers)

    def data_files(self, store: Path) -> list[Path]:
        return data_files(store)
