"""Files as other programs write them: images in HDF5 and LMDB, without any manifest of ours."""

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np

from tests.support.photo_folders import photo_file


def jpegs(count: int) -> list[bytes]:
    """Return JPEG files of several sizes, from some 700 to 3,000 bytes."""
    kinds = [photo_file(number, (32 + 4 * number, 48)) for number in range(8)]
    # A comment of their own makes them different files, and any number of them cheap.
    return [_with_comment(kinds[number % len(kinds)], b"%06d" % number) for number in range(count)]


def _with_comment(jpeg: bytes, text: bytes) -> bytes:
    return jpeg[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text + jpeg[2:]


def varint(number: int) -> bytes:
    """Return a number as protocol buffers write it: seven bits per byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def datum(*, data: bytes, label: int, shape: tuple[int, int, int] | None = None) -> bytes:
    """Return Caffe's Datum, as convert_imageset writes it: raw pixels of a shape, or an encoded image without one."""
    sides = b"".join(bytes([8 * (1 + place)]) + varint(side) for place, side in enumerate(shape or ()))
    encoded = b"\x38\x01" if shape is None else b"\x38\x00"
    return sides + b"\x22" + varint(len(data)) + data + b"\x28" + varint(label) + encoded


def pickled(images: Iterable[bytes], protocol: int = 4) -> list[bytes]:
    """Return pickled tuples of image and label."""
    return [pickle.dumps((image, number), protocol) for number, image in enumerate(images)]


def write_lmdb(
    folder: Path, records: Iterable[tuple[bytes, bytes]], *, name: str | None = None, **flags: Any
) -> Path:
    """Write a database; return its data file."""
    with lmdb.open(str(folder), map_size=256 << 20, max_dbs=4) as env:
        database = env.open_db(name.encode(), **flags) if name else None
        with env.begin(write=True, db=database) as transaction:
            for key, value in records:
                transaction.put(key, value)
    return folder / "data.mdb"


def numbered(values: Sequence[bytes], pattern: bytes = b"%08d") -> list[tuple[bytes, bytes]]:
    """Return values with their numbers as keys."""
    return [(pattern % number, value) for number, value in enumerate(values)]


def write_vlen(path: Path, images: Sequence[bytes], **options: Any) -> Path:
    """Write images as values of variable length, the commonest way to put JPEG files into HDF5."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("images", (len(images),), h5py.vlen_dtype(np.uint8), **options)
        for row, image in enumerate(images):
            data[row] = np.frombuffer(image, np.uint8)
        file["labels"] = np.arange(len(images)) % 10
    return path
