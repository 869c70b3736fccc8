"""LMDB databases of images: values are image files or messages of Caffe (Datum), each under any key."""

import math
import os
import re
import weakref
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from storebench.datasets.base import Image
from storebench.datasets.containers.base import Container, Labels, listed, reading_file
from storebench.datasets.containers.pixels import image_or_pixels, is_image_file, is_pickle
from storebench.datasets.containers.protobuf import signed, wire_fields
from storebench.errors import CorruptDataError, UsageError
from storebench.units import number_of

_WHOLE = (lmdb.VersionMismatchError, lmdb.IncompatibleError, lmdb.MemoryError)
reading = partial(reading_file, what="LMDB cannot read it", errors=(lmdb.Error,), whole=_WHOLE)
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL = range(1, 6)
# Fields of Datum. Its pixels are planes, in the order of OpenCV.
_ENCODED = 7


class LmdbRecords(Container):
    readahead = True  # whether the kernel reads ahead of a value

    def scan(self) -> None:
        path = self.files[0]
        if self.asked.image or self.asked.label:
            raise UsageError("LMDB has no fields", where=path, hint="Name its folder alone.")
        self._keys, self._ends = bytearray(), array("q", [0])
        labels = Labels(path, self.asked)
        samples, others = set[bytes](), dict[bytes, tuple[bytes, str]]()
        with reading(path), self.handle.begin(buffers=True) as transaction:
            for view, value in transaction.cursor():
                key = bytes(view)
                pattern = re.sub(rb"\d+", b"#", key)
                try:
                    label = _label(key, value, transaction)
                except ValueError as error:
                    others.setdefault(pattern, (key, str(error)))
                    continue
                labels.add(label, f"{path}: key {key_text(key)}")
                samples.add(pattern)
                self._keys += key
                self._ends.append(len(self._keys))
                if self.is_late():
                    break
        if wrong := [key for pattern, key in others.items() if pattern in samples or not samples]:
            key, why = wrong[0]
            pickled = is_pickle(self._value(key))
            reason = "pickled, which could run any code" if pickled else f"no Datum of Caffe either: {why}"
            # Among images, it is damaged; a database of others is whole.
            raise (CorruptDataError if samples else UsageError)(
                f"its value is no image file, and {reason}",
                where=f"{path}: key {key_text(key)}",
                hint="Write the values as image files; named databases are not read.",
            )
        used = {pattern.replace(b"image", b"label") for pattern in samples}
        left = [key_text(key) for pattern, (key, _) in others.items() if pattern not in used]
        self.notes = (
            [f"{number_of(len(left), 'kind')} of other records left out: {listed(left)}"] if left else []
        )
        self.classes = labels.classes()
        if len(labels) and getattr(self.read(0), "shape", ())[2:] == (3,):
            order = "blue, green, red, as convert_imageset writes them"
            self.notes = [*self.notes, f"the planes of each Datum taken as {order}"]

    def read(self, index: int) -> bytes | Image:
        value = self._value(self._key(index))
        if is_image_file(value):
            return value
        try:
            datum = _datum(memoryview(value))
        except ValueError as error:
            raise CorruptDataError(f"no Datum ({error})", where=self.locate(index)) from error
        sides = [] if datum.get(_ENCODED) else [datum.get(side) for side in (_HEIGHT, _WIDTH, _CHANNELS)]
        image = image_or_pixels(datum[_DATA], self.locate(index), sides, planar=True)
        # Caffe keeps the planes as OpenCV reads images: blue first.
        return image if isinstance(image, bytes) else np.ascontiguousarray(image[..., ::-1])

    def name(self, index: int) -> str:
        return key_text(self._key(index))

    def locate(self, index: int) -> str:
        return f"{self.files[0]}: key {self.name(index)}"

    def _open(self) -> Any:
        return shared_lmdb(self.files[0], readahead=self.readahead)

    def _key(self, index: int) -> bytes:
        return bytes(self._keys[self._ends[index] : self._ends[index + 1]])

    def _value(self, key: bytes) -> bytes:
        with reading(self.files[0]), self.handle.begin() as transaction:
            value: bytes | None = transaction.get(key)
        if value is None:
            raise CorruptDataError(f"the key {key_text(key)} is missing", where=self.files[0])
        return value


def _label(key: bytes, value: memoryview, transaction: Any) -> Any:
    """Return the label of a sample, from its Datum, another record or its folder; ValueError if it is no sample."""
    value[-1:].tobytes()  # in the process of the scan, which may crash if the value is not in the file
    if not is_image_file(value):
        return signed(_datum(value).get(_LABEL, 0))
    if b"image" in key and (label := transaction.get(key.replace(b"image", b"label"))) is not None:
        return label
    folder = key.rpartition(b"/")[0].rpartition(b"/")[2]
    return folder or None


def _datum(value: memoryview) -> dict[int, Any]:
    """Return the fields of a Datum by their numbers; ValueError if it is none with an image."""
    datum = dict(wire_fields(value))
    sides: list[Any] = [datum.get(side, 0) for side in (_CHANNELS, _HEIGHT, _WIDTH, _LABEL)]
    data = datum.get(_DATA)
    if not isinstance(data, memoryview) or not all(isinstance(side, int) for side in sides):
        raise ValueError("it has no bytes of an image (float_data is not read)")
    if not is_image_file(data) and math.prod(sides[:3]) != len(data):
        raise ValueError(f"{len(data):,} bytes are no image of {' x '.join(map(str, sides[:3]))}")
    return datum


def open_lmdb(path: Path, **options: Any) -> Any:
    """Open a database to read; nothing is written, and no lock file is made."""
    modes = {"subdir": False, "readonly": True, "lock": False, "create": False}
    with reading(path):
        env = lmdb.open(os.fsencode(path), **modes, max_spare_txns=8, **options)
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if path.stat().st_size < needed:  # a read of its last pages would crash
        env.close()
        raise CorruptDataError(
            f"cut short: its pages need {needed:,} bytes", where=path, hint="Copy the file again."
        )
    return env


# What this process has open, or inherited, by process, device and inode.
_environments: weakref.WeakValueDictionary[tuple[int, int, int], Any] = weakref.WeakValueDictionary()


def shared_lmdb(path: Path, **options: Any) -> Any:
    """Return the database that all readers in this process share, as LMDB opens a file once per process."""
    status = path.stat()
    key = os.getpid(), status.st_dev, status.st_ino
    for inherited in [env for (process, *_), env in _environments.items() if process != key[0]]:
        inherited.close()
    env = _environments.get(key)
    if env is None:
        _environments[key] = env = open_lmdb(path, **options)
    elif not options.items() <= env.flags().items():
        what, hint = "it is open in this process with another readahead", "Close that reader first."
        raise UsageError(what, where=path, hint=hint)
    return env


def key_text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
