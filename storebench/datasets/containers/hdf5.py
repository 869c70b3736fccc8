"""HDF5 files with one array of images, raw pixels or the bytes of image files, and one of labels beside it."""

import contextlib
import importlib
import math
import posixpath
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.datasets.base import Image
from storebench.datasets.containers.base import IMAGE_FIELDS, Container, Labels, reading_file
from storebench.datasets.containers.pixels import image_or_pixels, refuse_large
from storebench.errors import MissingDependencyError, UsageError

with contextlib.suppress(ImportError):
    importlib.import_module("hdf5plugin")  # it adds filters to the library

_ERRORS = (OSError, RuntimeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
reading = partial(reading_file, what="HDF5 cannot read it", errors=(*_ERRORS, MemoryError))
_MOST_ARRAYS = 10_000  # that are looked at
_MOST_CACHE_BYTES = 512 << 20
_LABELS_AT_ONCE = 1 << 16
_OTHER = "Name another array: write #IMAGES,LABELS behind the path."
_MATLAB = "MATLAB_class"  # the attribute of every array that MATLAB wrote
_CELLS = "#refs#/"  # the group of what MATLAB's cells hold
# Orders of the axes of images, the usual one first; without an N, there is one image.
# MATLAB counts the axes from the last.
_ORDERS = ("NHWC", "NCHW", "HWCN", "NHW", "HWC", "CHW", "HWN")
_ORDERS_OF_MATLAB = ("HWCN", "NHWC", "NCHW", "HWN", "HWC", "CHW", "NHW")


class Hdf5Arrays(Container):
    def scan(self) -> None:
        path = self.files[0]
        with reading(path), open_hdf5(path) as file:
            arrays = arrays_in(file)
            holding = [name for name, data in arrays.items() if _may_hold_images(name, data)]
            self._image = self.image_field(arrays, path, holding)
            images = checked_array(self._image, arrays, path)
            folder = posixpath.dirname(self._image)
            peers = {posixpath.basename(name): name for name in arrays if posixpath.dirname(name) == folder}
            named = {name: name for name in arrays} if self.asked.label else peers
            label = self.label_field(named, path, posixpath.basename(self._image))
            classes = checked_array(named[label], arrays, path) if label else None
            labels = Labels(path, self.asked)
            fits = _layouts(images, None if classes is None else classes.size)
            if not fits:
                shape = " x ".join(map(str, images.shape))
                kinds = "neither uint8 pixels, grey or RGB, nor bytes of image files"
                what = f"{self._image} holds {images.dtype} {shape}: {kinds}"
                raise UsageError(
                    what, where=path, hint="Write such an array, or name one with #IMAGES,LABELS."
                )
            self._layout, count = fits[0], len(images)
            if self._layout:
                sides = dict(zip(self._layout, images.shape, strict=True))
                count = sides.pop("N", 1)
                refuse_large([*sides.values()], path)
            if _MATLAB in images.attrs:
                self.notes = [f"{self._image} taken as MATLAB's {' x '.join(self._layout[::-1])}"]
            elif len(fits) > 1:
                self.notes = [f"{self._image} taken as {' x '.join(self._layout)}"]
            if classes is None:
                labels.skip(count)
            else:
                _add(classes, count, labels, path)
            self.classes = labels.classes()
            chunk = math.prod(images.chunks or (1,)) * images.dtype.itemsize
        self._cache_bytes = min(max(1 << 20, 2 * chunk), _MOST_CACHE_BYTES)

    def _open(self) -> Any:
        return open_hdf5(self.files[0], self._cache_bytes)[self._image]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The part of the array that one sample is, with a side of 1 along the axis of the samples."""
        sides = zip(self._layout or "N", self.handle.shape, strict=True)
        return tuple(1 if axis == "N" else side for axis, side in sides)

    def read(self, index: int) -> bytes | Image:
        with reading(self.files[0]):
            value = self.handle[tuple(index if axis == "N" else slice(None) for axis in self._layout or "N")]
        if not self._layout:
            return image_or_pixels(value if isinstance(value, bytes) else value.tobytes(), self.locate(index))
        axes = self._layout.replace("N", "")
        upright = value.transpose([axes.index(axis) for axis in "HWC" if axis in axes])
        return np.ascontiguousarray(np.atleast_3d(upright))

    def locate(self, index: int) -> str:
        return f"{self.files[0]}: {self._image}[{index}]"


def arrays_in(file: Any) -> dict[str, Any]:
    """Return the arrays of a file by their paths; of those that are not all in the file itself, what they are."""
    arrays: dict[str, Any] = {}

    def visit(name: str, link: Any) -> bool | None:
        item = None if isinstance(link, h5py.ExternalLink) else file.get(name)
        if item is None:
            arrays[name] = f"a link to {link.path if isinstance(link, h5py.SoftLink) else link.filename}"
        elif isinstance(item, h5py.Dataset) and item.shape and not name.startswith(_CELLS):
            elsewhere = f"in the file {item.external[0][0]}" if item.external else ""
            arrays[name] = elsewhere or ("a virtual data set" if item.is_virtual else item)
        return True if len(arrays) >= _MOST_ARRAYS else None

    file.visititems_links(visit)
    return arrays


def _may_hold_images(name: str, data: Any) -> bool:
    return posixpath.basename(name) in IMAGE_FIELDS if isinstance(data, str) else bool(_layouts(data, None))


def checked_array(name: str, arrays: dict[str, Any], path: Path) -> Any:
    """Return an array that can be read, or say why it cannot."""
    data = arrays[name]
    if isinstance(data, str):
        hint = "Copy its values into one array of this file."
        raise UsageError(f"{name} is {data}, which is not read", where=path, hint=hint)
    for code, _ in filters_of(data):
        if not h5py.h5z.filter_avail(code):
            what = f"{name} needs the filter {code} of HDF5, which is not installed"
            raise MissingDependencyError(what, where=path, hint="Run: pip install hdf5plugin.")
    kind = data.attrs.get(_MATLAB, b"")
    if "MATLAB_object_decode" in data.attrs or kind in (b"cell", b"char"):
        what = f"{name} is a {kind.decode()} of MATLAB, which is not read"
        raise UsageError(what, where=path, hint="Save it as an array of numbers.")
    return data


def filters_of(data: Any) -> list[tuple[int, str]]:
    """Return the numbers and names of the filters of a data set."""
    created = data.id.get_create_plist()
    filters = [created.get_filter(place) for place in range(created.get_nfilters())]
    return [(code, name.decode(errors="replace")) for code, _, _, name in filters]


def _layouts(data: Any, count: int | None) -> list[str]:
    """Return the orders that the axes of images may have, with `count` labels; "" for bytes of image files."""
    text, base = h5py.check_string_dtype(data.dtype), h5py.check_vlen_dtype(data.dtype)
    if data.ndim == 1 and (base == np.uint8 or (text is not None and text.length is None)):
        return [""]
    orders = [order[::-1] for order in _ORDERS_OF_MATLAB] if _MATLAB in data.attrs else _ORDERS
    orders = [order for order in orders if len(order) == data.ndim]
    sides = {order: dict(zip(order, data.shape, strict=True)) for order in orders}
    fits = [order for order in sides if data.dtype == np.uint8 and sides[order].get("C", 1) in (1, 3)]
    return [order for order in fits if sides[order].get("N", 1) == count] or fits


def _add(data: Any, count: int, labels: Labels, path: Path) -> None:
    if not data.size == max(data.shape) == count:
        raise UsageError(
            f"{data.name} has shape {data.shape}, not one label for each of {count:,} images",
            where=path,
            hint=_OTHER,
        )
    for start in range(0, len(data), _LABELS_AT_ONCE):
        for value in data[start : start + _LABELS_AT_ONCE].ravel().tolist():
            labels.add(value)


def open_hdf5(path: Path, cache_bytes: int = 1 << 20) -> Any:
    # Nothing is written, and read-only file systems have no locks.
    return h5py.File(path, "r", locking=False, rdcc_nbytes=cache_bytes)
