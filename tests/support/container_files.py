"""Samples in containers as other programs write them: tar shards, Parquet, Arrow, TFRecord, MDS, LMDB, HDF5."""

import functools
import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.foreign_files import datum, numbered, varint, write_lmdb, write_vlen

Sample = tuple[bytes, int]  # an image file and its label


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def shards(folder: Path, samples: Sequence[Sample]) -> str:
    for number, half in enumerate(_halves(samples)):
        members = {f"{at:06d}.{key}": value for at, s in enumerate(half) for key, value in _fields(s)}
        write_tar(folder / f"{number:03d}.tar", members)
    return f"{folder}/*.tar"


def _fields(sample: Sample) -> list[tuple[str, bytes]]:
    return [("jpg", sample[0]), ("cls", b"%d" % sample[1])]


def _halves(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    return [samples[: len(samples) // 2], samples[len(samples) // 2 :]]


def table(samples: Sequence[Sample], **columns: Any) -> pa.Table:
    images = [{"bytes": content, "path": "a.jpg"} for content, _ in samples]
    return pa.table({"image": images, "label": [label for _, label in samples]} | columns)


def parquet(folder: Path, samples: Sequence[Sample]) -> str:
    folder.mkdir()
    for number, half in enumerate(_halves(samples)):
        pq.write_table(table(half), folder / f"{number}.parquet", row_group_size=4)
    return str(folder)


def saved_by_hugging_face(folder: Path, samples: Sequence[Sample]) -> str:
    """Write what ``Dataset.save_to_disk`` does, and a cache beside it."""
    folder.mkdir()
    rows = table(samples)
    for name in ("data-00000-of-00001.arrow", "cache-1.arrow"):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=5)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    return f"hf:{folder}"


@functools.cache
def crc32c(data: bytes) -> int:
    """Return the checksum bit by bit, as its definition has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def record(content: bytes) -> bytes:
    """Return a record of a TFRecord file."""

    def checksum(data: bytes) -> bytes:
        crc = crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(content))
    return length + checksum(length) + content + checksum(content)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(features: dict[str, bytes | int]) -> bytes:
    """Return a tf.train.Example whose features have one value each."""
    entries = b""
    for name, value in features.items():
        kind, content = (1, value) if isinstance(value, bytes) else (3, varint(value))
        entries += field(1, field(1, name.encode()) + field(2, field(kind, field(1, content))))
    return field(1, entries)


def tfrecord(folder: Path, samples: Sequence[Sample]) -> str:
    folder.mkdir()
    for number, half in enumerate(_halves(samples)):
        names = ("image/encoded", "image/class/label")
        records = (record(example(dict(zip(names, sample, strict=True)))) for sample in half)
        (folder / f"{number}.tfrecord").write_bytes(b"".join(records))
    return f"{folder}/*.tfrecord"


def mds_shard(samples: Sequence[Sample]) -> bytes:
    bodies = [struct.pack("<Iq", len(content), label) + content for content, label in samples]
    begin = 4 * (len(bodies) + 2)
    offsets = np.cumsum([begin, *map(len, bodies)]).astype("<u4")
    return struct.pack("<I", len(bodies)) + offsets.tobytes() + b"".join(bodies)


def mds(folder: Path, samples: Sequence[Sample]) -> str:
    folder.mkdir()
    entries = []
    for number, half in enumerate(_halves(samples)):
        name = f"shard.{number:05d}.mds"
        (folder / name).write_bytes(mds_shard(half))
        entries.append(
            {
                "column_names": ["class", "image"],
                "column_encodings": ["int", "jpeg"],
                "column_sizes": [8, None],
                "raw_data": {"basename": name},
                "samples": len(half),
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return str(folder)


def caffe(folder: Path, samples: Sequence[Sample]) -> str:
    write_lmdb(folder, numbered([datum(data=content, label=label) for content, label in samples]))
    return str(folder)


def plain_lmdb(folder: Path, samples: Sequence[Sample]) -> str:
    """Write image files under keys like paths, whose folders are the classes."""
    keys = (b"%d/%06d.jpg" % (label, number) for number, (_, label) in enumerate(samples))
    write_lmdb(folder, zip(keys, (content for content, _ in samples), strict=True))
    return str(folder)


def paired_lmdb(folder: Path, samples: Sequence[Sample]) -> str:
    """Write images and labels under keys of the same number, and their count."""
    images = numbered([content for content, _ in samples], b"image-%09d")
    labels = numbered([b"%d" % label for _, label in samples], b"label-%09d")
    write_lmdb(folder, [*images, *labels, (b"num-samples", b"%d" % len(samples))])
    return f"{folder}/data.mdb"


def hdf5(folder: Path, samples: Sequence[Sample]) -> str:
    folder.mkdir()
    path = write_vlen(folder / "a.h5", [content for content, _ in samples])
    with h5py.File(path, "a") as file:
        file["labels"][:] = [label for _, label in samples]
    return f"{path}#images,labels"


WRITERS: dict[str, Callable[[Path, Sequence[Sample]], str]] = {
    "tar": shards,
    "Parquet": parquet,
    "Hugging Face": saved_by_hugging_face,
    "TFRecord": tfrecord,
    "MDS": mds,
    "Caffe": caffe,
    "LMDB": plain_lmdb,
    "LMDB, paired": paired_lmdb,
    "HDF5": hdf5,
}
"""Write samples into a new folder; return what ``--dataset`` calls them."""
