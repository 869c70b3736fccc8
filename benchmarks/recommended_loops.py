"""For each format of another project, the loop that its authors recommend for reading training data."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storebench.datasets.containers.tfrecord import records
from storebench.formats.peers.tfrecord import READ_BYTES, TfRecordReader, image_of

Batch = Callable[[list[int]], Sequence[Any]]
"""Return the payloads of some samples, by a library's own call."""

Stream = Callable[[], Iterator[Any]]
"""Yield the payloads of an epoch in the library's own order."""


def npy(store: Path) -> Batch:
    """Index the mapped array."""
    data = np.load(store / "data.npy", mmap_mode="r")
    if data.ndim > 1:
        return lambda numbers: data[numbers]
    ends = np.load(store / "offsets.npy").tolist()
    return lambda numbers: [data[ends[number] : ends[number + 1]].tobytes() for number in numbers]


def sqlite(store: Path) -> Batch:
    """Select one row per query (docs.python.org, sqlite3)."""
    import sqlite3

    base = sqlite3.connect(store / "data.sqlite")
    return lambda numbers: [
        base.execute("SELECT image FROM samples WHERE id = ?", (number,)).fetchone()[0] for number in numbers
    ]


def safetensors(store: Path) -> Batch:
    """Slice a tensor of the open file (the README of safetensors)."""
    from safetensors import safe_open

    file: Any = safe_open(store / "data.safetensors", "np")
    images = file.get_slice("image")
    if len(images.get_shape()) > 1:
        return lambda numbers: [images[number] for number in numbers]
    ends = file.get_tensor("offset").tolist()
    return lambda numbers: [images[ends[number] : ends[number + 1]].tobytes() for number in numbers]


def arrow(store: Path) -> Batch:
    """Take rows of the mapped table (Arrow's cookbook)."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.memory_map(str(store / "data.arrow"))).read_all().select(["image"])
    return lambda numbers: table.take(numbers)["image"].to_pylist()


def parquet(store: Path) -> Batch:
    """Take rows of the data set (Arrow's cookbook)."""
    import pyarrow.dataset as pd

    data = pd.dataset(store / "data.parquet")
    return lambda numbers: data.take(numbers, columns=["image"])["image"].to_pylist()


def hf(store: Path) -> Batch:
    """Fetch a batch as a DataLoader does."""
    from datasets import load_from_disk

    data = load_from_disk(store / "dataset")
    raw = getattr(data.features["image"], "dtype", "") == "binary"
    return lambda numbers: [
        row["image"] if raw else row["image"]["bytes"] for row in data.__getitems__(numbers)
    ]


def array_record(store: Path) -> Batch:
    """Fetch a batch of Grain's data source, with the parser of storebench instead of TensorFlow's."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource(str(store / "data.array_record"))
    return lambda numbers: [image_of(record) for record in source.__getitems__(numbers)]


def litdata(store: Path) -> Batch:
    """Index the StreamingDataset."""
    from litdata import StreamingDataset

    data = StreamingDataset(str(store / "data"))
    return lambda numbers: [data[number]["image"] for number in numbers]


def lance(store: Path) -> Batch:
    """Take rows of the data set."""
    import lance as library

    data = library.dataset(store / "data.lance")
    return lambda numbers: data.take(numbers, columns=["image"])["image"].to_pylist()


def rocksdb(store: Path) -> Batch:
    """Get several keys at once."""
    from rocksdict import AccessType, Options, Rdict

    base = Rdict(str(store), Options(raw_mode=True), access_type=AccessType.read_only())
    return lambda numbers: base[[b"%08d" % number for number in numbers]]


def zarr(store: Path) -> Batch:
    """Select rows orthogonally."""
    import zarr as library

    images: Any = library.open_array(store / "data.zarr/image", mode="r")
    return lambda numbers: images.oindex[numbers]


def tensorstore(store: Path) -> Batch:
    """Read rows in one call."""
    import tensorstore as library

    place = {"driver": "file", "path": str((store / "data.zarr/image").absolute())}
    images = library.open({"driver": "zarr3", "kvstore": place}, read=True).result()
    return lambda numbers: images[numbers].read().result()


def webdataset(store: Path) -> Stream:
    """Run the pipeline of the README: shuffled shards, then a buffer of 1,000."""
    from webdataset import WebDataset

    def epoch() -> Iterator[Any]:
        names = sorted(map(str, store.glob("*.tar")))
        for sample in WebDataset(names, shardshuffle=len(names)).shuffle(1000):
            yield sample.get("jpg") or sample["bin"]

    return epoch


def tfrecord(store: Path) -> Stream:
    """Read shuffled files through a buffer of 1,000, as tf.data's guide does; no library without TensorFlow runs."""

    def epoch() -> Iterator[Any]:
        paths = TfRecordReader.shuffled_shards(sorted(store.glob("*.tfrecord")), (0,))
        files = ((path, path.open("rb", READ_BYTES)) for path in paths)
        images = (image_of(record) for path, file in files for _, record in records(file, path))
        yield from TfRecordReader.shuffled(images, 1000, (0,))

    return epoch


LOOPS: dict[str, Callable[[Path], Batch]] = {
    "npy": npy,
    "sqlite": sqlite,
    "safetensors": safetensors,
    "arrow": arrow,
    "parquet": parquet,
    "hf": hf,
    "array_record": array_record,
    "litdata": litdata,
    "lance": lance,
    "rocksdb": rocksdb,
    "zarr": zarr,
    "zarr:tensorstore": tensorstore,
}
STREAMS: dict[str, Callable[[Path], Stream]] = {"webdataset": webdataset, "tfrecord": tfrecord}
