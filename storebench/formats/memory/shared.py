"""Memory, once per machine: all readers of a store share one array of decoded pixels."""

from pathlib import Path

import numpy as np

from storebench.arrays import Pixels
from storebench.codecs import any_size
from storebench.formats.common import NPY_ERRORS, damaged, load_labels
from storebench.formats.memory.audit import decode_pack, pack_offsets
from storebench.formats.memory.write import DATA_FILE, LABELS_FILE, PAYLOADS_FILE
from storebench.formats.options import Options
from storebench.formats.reads.shared_pixels import store_tag
from storebench.formats.reads.shared_reader import SharedPixelsReader
from storebench.manifest import Manifest

_ROWS_BYTES = 8 << 20


class MemorySharedReader(SharedPixelsReader):
    """Gather from pixels in shared memory, decoded there by the first process that opened them."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        if any_size(manifest.codec):
            self._share_files(
                store_tag(store, manifest), pack_offsets(store, manifest.count), self._fill_files
            )
        else:
            self._share(store_tag(store, manifest), self._fill)

    def _fill(self, pixels: Pixels) -> None:
        if self.manifest.codec == "raw":
            self._fill_raw(pixels)
        else:
            decode_pack(self.store, self.manifest.codec, pixels)

    def _fill_files(self, content: Pixels) -> None:
        path = self.store / PAYLOADS_FILE
        with path.open("rb") as file:
            for at in range(0, len(content), _ROWS_BYTES):
                part = content[at : at + _ROWS_BYTES]
                if file.readinto(part.data) != len(part):
                    raise damaged("the pack is cut short", path)

    def _fill_raw(self, pixels: Pixels) -> None:
        path = self.store / DATA_FILE
        try:
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                shape, _, kind = np.lib.format.read_array_header_1_0(file)
                if shape != pixels.shape or kind != np.uint8:
                    raise damaged(f"{kind}{shape} where uint8{pixels.shape} was expected", path)
                flat = pixels.reshape(-1)
                for at in range(0, len(flat), _ROWS_BYTES):
                    part = flat[at : at + _ROWS_BYTES]
                    if file.readinto(part.data) != len(part):
                        raise damaged("the array is cut short", path)
        except FileNotFoundError:
            raise damaged("the file is missing", path) from None
        except NPY_ERRORS as error:
            raise damaged(f"the file cannot be read ({error})", path) from error
