"""safetensors: a JSON header of named tensors, then their bytes; read slice by slice from a mapped file."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from storebench.codecs import Payload
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.common import damaged, sync_folder
from storebench.formats.peers.rows import IMAGE, LABEL, Row, RowsReader, required, whole_offsets
from storebench.manifest import StoreSpec

DATA_FILE = "data.safetensors"
OFFSET = "offset"
HEADER_BYTES = 512


class SafetensorsWriter(Writer):
    """Write labels and offsets before the images, whose bytes may go on: the library writes only whole files from memory."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels: list[int] = []
        self._offsets = [0]
        self._shape = (spec.dataset.count, *spec.dataset.image_shape) if spec.codec == "raw" else None
        self._file: IO[bytes] = (folder / DATA_FILE).open("xb")
        self._file.seek(HEADER_BYTES + 8 * (2 * spec.dataset.count + 1))

    def append(self, payload: Payload, label: int) -> None:
        self._file.write(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))

    def close(self) -> None:
        count, end = len(self._labels), self._offsets[-1]
        starts = np.cumsum([0, 8 * count, 8 * (count + 1), end]).tolist()
        shapes = {
            LABEL: ("I64", [count]),
            OFFSET: ("I64", [count + 1]),
            IMAGE: ("U8", list(self._shape or (end,))),
        }
        header = {
            name: {"dtype": kind, "shape": shape, "data_offsets": starts[place : place + 2]}
            for place, (name, (kind, shape)) in enumerate(shapes.items())
        }
        self._file.seek(0)
        self._file.write((HEADER_BYTES - 8).to_bytes(8, "little"))
        self._file.write(json.dumps(header).encode().ljust(HEADER_BYTES - 8))
        self._file.write(np.array([*self._labels, *self._offsets], "<i8").tobytes())
        self._file.close()
        sync_folder(self.folder)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class SafetensorsReader(RowsReader):
    """One slice per sample of the tensor of all images."""

    library = "safetensors"

    def _open(self) -> npt.ArrayLike:
        path = required(self.store / DATA_FILE)
        labels, offsets, shape = self._described(path)
        self._images = _opened(path).get_slice(IMAGE)
        self.hold("_images")
        if self.payload_codec == "raw":
            if shape != [self.manifest.count, *self.image_shape]:
                raise damaged(f"images {shape} of another shape", path)
        else:
            self._bounds = whole_offsets(offsets, self.manifest.count, shape[0], path)
        return labels

    @staticmethod
    def _described(path: Path) -> tuple[npt.ArrayLike, Any, Any]:
        """Return labels, offsets and the shape of the images; the mapping ends here, so that the pages can be evicted."""
        file = _opened(path)
        images = file.get_slice(IMAGE)
        if images.get_dtype() != "U8":
            raise damaged(f"images {images.get_dtype()} where U8 was expected", path)
        return file.get_tensor(LABEL), file.get_tensor(OFFSET), images.get_shape()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        images = self._images
        if self.payload_codec == "raw":
            return [images[number].reshape(-1).data for number in numbers]
        bounds = self._bounds
        return [images[bounds[number] : bounds[number + 1]].data for number in numbers]


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, "np")
    except SafetensorError as error:
        raise damaged(f"safetensors cannot open it ({error})", path) from error


class SafetensorsFormat(Format):
    """Named tensors in one file."""

    info = FormatInfo(
        name="safetensors",
        summary="one tensor of all images [N,H,W,C], or of all payloads with their offsets, and the labels",
        default_codec="raw",
        default_reader="slices",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "slices": ReaderInfo(
                reader=SafetensorsReader,
                summary="one slice per sample from the mapped file",
                note="one tensor per sample would be as fast, but a header has room for about a million",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return SafetensorsWriter(folder, spec)
