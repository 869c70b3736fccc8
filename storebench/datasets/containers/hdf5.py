"""HDF5 files with one array of images, raw pixels or the bytes of image files, and one of labels beside it."""

import math
import posixpath
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.datasets.base import Image
from storebench.datasets.containers.base import Container, Labels, reading_file
from storebench.datasets.containers.pixels import image_or_pixels, refuse_large
from storebench.errors import CorruptDataError

_ERRORS = (OSError, RuntimeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
reading = partial(reading_file, what="HDF5 cannot read it", errors=(*_ERRORS, MemoryError))
_MOST_ARRAYS = 10_000  # that are looked at
_MOST_CACHE_BYTES = 512 << 20
_LABELS_AT_ONCE = 1 << 16
_OTHER = "Name another array: write #IMAGES,LABELS behind the path."


class Hdf5Arrays(Container):
    def scan(self) -> None:
        path = self.files[0]
        with reading(path), open_hdf5(path) as file:
            arrays = _arrays(file)
            holding = [name for name, data in arrays.items() if layout_of(data) is not None]
            self._image = self.image_field(arrays, path, holding)
            images = arrays[self._image]
            if (layout := layout_of(images)) is None:
                shape = " x ".join(map(str, images.shape))
                what = f"{self._image} holds {images.dtype} {shape}: neither uint8 pixels nor bytes of image files"
                raise CorruptDataError(what, where=path, hint=_OTHER)
            if layout:
                refuse_large(images.shape[1:], path)
            self._layout = layout
            folder = posixpath.dirname(self._image)
            beside = {posixpath.basename(name): name for name in arrays if posixpath.dirname(name) == folder}
            named = {name: name for name in arrays} if self.asked.label else beside
            label = self.label_field(named, path, posixpath.basename(self._image))
            labels = Labels(path, self.asked)
            if label:
                _add(arrays[named[label]], len(images), labels, path)
            else:
                labels.skip(len(images))
            self.classes = labels.classes()
            chunk = math.prod(images.chunks or (1,)) * images.dtype.itemsize
        self._cache_bytes = min(max(1 << 20, 2 * chunk), _MOST_CACHE_BYTES)

    def _open(self) -> Any:
        return open_hdf5(self.files[0], self._cache_bytes)[self._image]

    def read(self, index: int) -> bytes | Image:
        with reading(self.files[0]):
            value = self.handle[index]
        if not self._layout:
            return image_or_pixels(value if isinstance(value, bytes) else value.tobytes(), self.locate(index))
        return np.ascontiguousarray(
            np.atleast_3d(value.transpose(1, 2, 0) if self._layout == "CHW" else value)
        )

    def locate(self, index: int) -> str:
        return f"{self.files[0]}: {self._image}[{index}]"


def _arrays(file: Any) -> dict[str, Any]:
    """Return the arrays of a file by their paths, as far as they are in the file itself."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset) and item.shape and not item.external and not item.is_virtual:
            found[name] = item
        return True if len(found) >= _MOST_ARRAYS else None

    file.visititems(visit)
    return found


def layout_of(data: Any) -> str | None:
    """Return the order of the axes of images, "" for bytes of image files, None if an array holds neither."""
    text, base = h5py.check_string_dtype(data.dtype), h5py.check_vlen_dtype(data.dtype)
    if data.ndim == 1 and (base == np.uint8 or (text is not None and text.length is None)):
        return ""
    if data.dtype != np.uint8 or data.ndim not in (3, 4):
        return None
    if data.ndim == 3:
        return "HW"
    return "HWC" if data.shape[3] in (1, 3) else "CHW" if data.shape[1] in (1, 3) else None


def _add(data: Any, count: int, labels: Labels, path: Path) -> None:
    if data.shape not in ((count,), (count, 1)):
        raise CorruptDataError(
            f"{data.name} has shape {data.shape}, not one label for each of {count:,} images",
            where=path,
            hint=_OTHER,
        )
    for start in range(0, count, _LABELS_AT_ONCE):
        for value in data[start : start + _LABELS_AT_ONCE].ravel().tolist():
            labels.add(value)


def open_hdf5(path: Path, cache_bytes: int = 1 << 20) -> Any:
    # Nothing is written, and read-only file systems have no locks.
    return h5py.File(path, "r", locking=False, rdcc_nbytes=cache_bytes)
