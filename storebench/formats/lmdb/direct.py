"""LMDB without the library: offsets from the page index, explicit reads of what is cold, one gather of what is not."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptStoreError, UsageError
from storebench.formats.arrays import Batch, Indices
from storebench.formats.base import Fetched, Traits
from storebench.formats.common import checked_labels, damaged
from storebench.formats.keyvalue import LABEL_KEY
from storebench.formats.lmdb.index import PageIndex, kept_indexes, open_index
from storebench.formats.lmdb.pages import DATA_FILE, transactions
from storebench.formats.lmdb.walk import TreeWalk
from storebench.formats.reads.extents import ExtentReader, locator
from storebench.formats.reads.policy import OPTIONS_HELP, switch
from storebench.formats.reads.shared_pixels import Pixels, SharedPixels, gather, store_tag
from storebench.manifest import Manifest

_FILL_BYTES = 32 << 20


class LmdbDirectReader(ExtentReader):
    """Read a plain ``data.mdb`` at the speed of the machine. The file may not be written meanwhile."""

    options_help: ClassVar[Mapping[str, str]] = {
        **OPTIONS_HELP,
        "prov": "on (default): offsets from the page index; off: the tree is walked for each sample",
        "dm": "with prov=off: on hands the walk's position on from sample to sample; off (default) starts at the root",
        "lmm": "on: the first reader of the machine reads the store into memory that all share; off (default)",
    }

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        self._walk: TreeWalk | None = None
        self._shared: SharedPixels | None = None
        try:
            self._open(open_index(store))
            if switch(options, "lmm", default=False):
                self._share()
        except BaseException:
            self.close()
            raise

    @classmethod
    def traits_with(cls, options: Mapping[str, str], traits: Traits) -> Traits:
        """Return `traits`; with lmm the epoch is served from memory, so a cache state is one of the opening."""
        return dataclasses.replace(traits, holds_pixels=options.get("lmm") == "on")

    @classmethod
    def index_files(cls, store: Path) -> list[Path]:
        """Return the page index, which is kept beside the store or in the user's cache folder."""
        return kept_indexes(store)

    def _fetch(self, indices: Indices) -> list[bytes]:
        return super()._fetch(indices) if self._shared is None else self._raw_payloads(indices)

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if self._shared is None:
            return super()._fetch_into(indices, out)
        return Fetched(gather(self._shared.array, indices, out))

    def _plan(self, batches: Sequence[Indices]) -> None:
        if self._shared is None:  # there is nothing to read ahead of shared memory
            super()._plan(batches)

    def notes(self) -> dict[str, str]:
        """Say how positions were found, too."""
        notes = super().notes()
        if self._shared is not None:
            notes["lmm"] = "read by this reader" if self._shared.filled_here else "read by another reader"
        return {**notes, "positions": "page index" if self._walk is None else "tree walk"}

    def _close(self) -> None:
        super()._close()
        # Only now: the look-ahead has stopped walking.
        if self._walk is not None:
            self._walk.close()
        if self._shared is not None:
            self._shared.close()

    def _open(self, index: PageIndex) -> None:
        count = self.manifest.count
        if index.numbered != count or len(index) != count + 1:
            raise damaged(
                f"{index.numbered} numbered records of {len(index)} where {count} and "
                f"{LABEL_KEY.decode()!r} were expected",
                self._path,
            )
        offsets, lengths = index.offsets[:count], index.lengths[:count]
        self._check_lengths(lengths, self._path)
        locate = locator(offsets, lengths)
        if not switch(self.options, "prov", default=True):
            hand_on = switch(self.options, "dm", default=False)
            self._walk = TreeWalk(self._path, count, hand_on=hand_on)
            locate = self._walk.locate
        mean = int(lengths.mean()) if count else 0
        self._page_bytes = index.page_bytes
        self._serve(self._path, locate, mean_bytes=mean, check=self._check)
        self._seen = transactions(self.reads.file.fd, index.page_bytes)
        if index.identity.transaction.to_bytes(8, "little") not in (self._seen[:8], self._seen[8:]):
            raise self._changed()
        self.labels = self._read_labels(int(index.offsets[count]), int(index.lengths[count]))

    def _read_labels(self, offset: int, length: int) -> npt.NDArray[np.int64]:
        if length != 8 * self.manifest.count:
            raise damaged(
                f"{length} bytes of labels where {8 * self.manifest.count} were expected", self._path
            )
        raw = np.empty(length, np.uint8)
        self.reads.file.read_fully(offset, raw)
        return checked_labels(raw.view("<i8").astype(np.int64), self.manifest.count, self._path)

    def _share(self) -> None:
        if self.payload_codec != "raw":
            raise UsageError(
                "lmm shares raw pixels only", where=self._path, hint="Use a store of raw pixels."
            )
        shape = (self.manifest.count, *self.image_shape)
        self._shared = SharedPixels(f"lmm-{store_tag(self.store, self.manifest)}", shape, self._fill)
        super()._close()  # a mapping that nobody reads from would only keep pages from being evicted

    def _fill(self, pixels: Pixels) -> None:
        rows = max(1, _FILL_BYTES // self.manifest.dataset.image_bytes)
        batches = [np.arange(at, min(at + rows, len(pixels))) for at in range(0, len(pixels), rows)]
        super()._plan(batches)
        for batch in batches:
            super()._fetch_into(batch, pixels[batch[0] : batch[-1] + 1])
        super()._plan([])

    def _check(self) -> None:
        """Refuse to serve from pages that a writer may have reused: this reader is in no reader table."""
        file = self.reads.file
        if transactions(file.fd, self._page_bytes) != self._seen or file.shrank():
            raise self._changed()

    def _changed(self) -> CorruptStoreError:
        return CorruptStoreError(
            "the database was written to while it was read", where=self._path, hint="Open it again."
        )
