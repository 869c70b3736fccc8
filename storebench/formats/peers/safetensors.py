"""safetensors: a JSON header of named tensors, then their bytes; read slice by slice from a mapped file."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from storebench.formats.base import FormatInfo, ReaderInfo
from storebench.formats.common import damaged
from storebench.formats.packed import whole_offsets
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader, required
from storebench.formats.peers.writers import PackedWriter

OFFSET = "offset"
HEADER_BYTES = 512


class SafetensorsWriter(PackedWriter):
    """Write labels and offsets before the images, as they come: the library writes only whole files from memory."""

    file_name = "data.safetensors"

    def _start(self) -> None:
        super()._start()
        self.file.seek(HEADER_BYTES + 8 * (2 * self.spec.dataset.count + 1))

    def _finish(self) -> None:
        count, end = len(self.labels), self.offsets[-1]
        starts = np.cumsum([0, 8 * count, 8 * (count + 1), end]).tolist()
        shapes = {
            LABEL: ("I64", [count]),
            OFFSET: ("I64", [count + 1]),
            IMAGE: ("U8", list(self.shape or (end,))),
        }
        header = {
            name: {"dtype": kind, "shape": shape, "data_offsets": starts[place : place + 2]}
            for place, (name, (kind, shape)) in enumerate(shapes.items())
        }
        self.file.seek(0)
        self.file.write((HEADER_BYTES - 8).to_bytes(8, "little"))
        self.file.write(json.dumps(header).encode().ljust(HEADER_BYTES - 8))
        self.file.write(np.array([*self.labels, *self.offsets], "<i8").tobytes())
        super()._finish()


class SafetensorsReader(RowsReader):
    """One slice per sample of the tensor of all images."""

    library = "safetensors"

    def _open(self) -> Any:
        from safetensors import SafetensorError, safe_open

        path = required(self.store / SafetensorsWriter.file_name)
        try:
            file: Any = safe_open(path, "np")
        except SafetensorError as error:
            raise damaged(f"safetensors cannot open it ({error})", path) from error
        self._images = file.get_slice(IMAGE)
        self.hold("_images")
        shape = self._images.get_shape()
        if self._images.get_dtype() != "U8":
            raise damaged(f"images {self._images.get_dtype()} where U8 was expected", path)
        if self.payload_codec == "raw":
            if shape != [self.manifest.count, *self.image_shape]:
                raise damaged(f"images {shape} of another shape", path)
        else:
            self._bounds = whole_offsets(file.get_tensor(OFFSET), self.manifest.count, shape[0], path)
        return file.get_tensor(LABEL)

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        images = self._images
        if self.payload_codec == "raw":
            return [images[number].reshape(-1).data for number in numbers]
        bounds = self._bounds
        return [images[bounds[number] : bounds[number + 1]].tobytes() for number in numbers]


class SafetensorsFormat(PeerFormat):
    info = FormatInfo(
        name="safetensors",
        summary="one tensor of all images [N,H,W,C], or of all payloads with their offsets, and the labels",
        default_codec="raw",
        default_reader="slices",
    )
    writes = SafetensorsWriter
    reads = ReaderInfo(
        reader=SafetensorsReader,
        summary="one slice per sample from the mapped file",
        note="one tensor per sample would be as fast, but a header has room for about a million",
    )
