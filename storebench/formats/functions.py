"""Readers of a library that has no format of its own: functions of an installed module, `package.module:make_NAME`."""

import importlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storebench.arrays import Indices
from storebench.errors import UsageError
from storebench.formats.base import Fetched, Format, FormatInfo, Reader, ReaderInfo, Writer
from storebench.formats.common import load_labels
from storebench.formats.options import Options
from storebench.formats.packed import DATA_FILE, LABELS_FILE, ArrayWriter
from storebench.formats.windows import Batch
from storebench.record.manifest import Manifest, StoreSpec

# Functions whose names begin so open a reader of what `write` of the same module has written.
MAKERS = "make_"
_FOLDER = "data"
# What a maker returned for a folder is shared in a process: some libraries open a file there only once.
_OPEN: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()


def module_format(name: str) -> type[Format]:
    """Return the format of a module; raise `ModuleNotFoundError` if there is none."""
    module = importlib.import_module(name)
    makers = {key: value for key, value in vars(module).items() if key.startswith(MAKERS)}
    if not makers or not callable(getattr(module, "write", None)):
        raise UsageError(
            f"the module has no function write, or none called {MAKERS}...",
            where=name,
            hint="docs/ci.md says what they do.",
        )

    infos = {key: ReaderInfo(reader=_reader(make), summary=key) for key, make in makers.items()}

    class ModuleFormat(Format):
        info = FormatInfo(name=name, summary=name, default_codec="raw", default_reader=min(makers))

        def readers(self) -> Mapping[str, ReaderInfo]:
            return infos

        def writer(self, folder: Path, spec: StoreSpec) -> Writer:
            if spec.codec != "raw":
                raise UsageError(f"{name} stores pixels, so its codec is raw, not {spec.codec}")
            return _Writer(folder, spec, module.write)

    return ModuleFormat


class _Writer(ArrayWriter):
    def __init__(self, folder: Path, spec: StoreSpec, write: Callable[..., Any]) -> None:
        super().__init__(folder, spec)
        self._write = write

    def close(self) -> None:
        super().close()
        (self.folder / _FOLDER).mkdir()
        self._write(self.folder / _FOLDER, np.load(self.folder / DATA_FILE, mmap_mode="r"))
        (self.folder / DATA_FILE).unlink()
        os.sync()


def _reader(make: Callable[[Path], Callable[[list[int]], Sequence[Any]]]) -> type[Reader]:
    class FunctionReader(Reader):
        def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
            super().__init__(store, manifest, options)
            self.labels = load_labels(store / LABELS_FILE, manifest.count)
            key = (make, store, os.getpid())
            self._read = _OPEN[key] = _OPEN.get(key) or make(store / _FOLDER)

        def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
            images = self._read(self._checked(indices))
            for row, image in zip(out, images, strict=True):
                row[:] = np.frombuffer(image, np.uint8).reshape(row.shape)
            return Fetched(out.nbytes)

        def _close(self) -> None:
            del self._read

    return FunctionReader
