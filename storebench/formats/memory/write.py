"""Names and layout of a store of one array, or of a pack of payloads, and its writer."""

import contextlib
from pathlib import Path
from typing import IO

import numpy as np

from storebench.codecs import Payload
from storebench.formats.base import Writer
from storebench.formats.common import save_array, sync_folder
from storebench.manifest import StoreSpec

DATA_FILE = "data.npy"

PAYLOADS_FILE = "payloads.bin"

OFFSETS_FILE = "offsets.npy"

LABELS_FILE = "labels.npy"


class MemoryWriter(Writer):
    """Write one .npy array of raw pixels, or one pack of encoded payloads with their offsets."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels: list[int] = []
        self._offsets = [0]
        self._raw = spec.codec == "raw"
        self._file: IO[bytes] = (folder / (DATA_FILE if self._raw else PAYLOADS_FILE)).open("xb")
        if self._raw:
            shape = (spec.dataset.count, *spec.dataset.image_shape)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, payload: Payload, label: int) -> None:
        """Append one payload."""
        self._file.write(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))

    def close(self) -> None:
        """Write labels and offsets and sync."""
        self._file.close()
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, dtype=np.int64))
        if not self._raw:
            save_array(self.folder / OFFSETS_FILE, np.asarray(self._offsets, dtype=np.int64))
        sync_folder(self.folder)

    def abort(self) -> None:
        """Close the file; buffered bytes may not fit on the disk."""
        with contextlib.suppress(OSError):
            self._file.close()
