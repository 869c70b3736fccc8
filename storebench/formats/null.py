"""The reference that stores nothing: one batch that is in memory already, again and again.

Its cell is the ceiling that the network (or the loader, where nothing is
computed) sets: no storage format can be faster.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from storebench.errors import UsageError
from storebench.formats.base import Batch, Format, FormatInfo, Indices, Reader, ReaderInfo, Traits, Writer
from storebench.formats.support import load_labels
from storebench.manifest import Manifest, StoreSpec


class NullReader(Reader):
    """Know the labels of the borrowed store, and leave the pixels as they are."""

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / "labels.npy", manifest.count)
        self.payload_codec = "raw"

    def fetch(self, indices: Indices) -> list[bytes]:
        """Return grey images."""
        return [bytes(np.full(self.image_shape, 128, dtype=np.uint8)) for _ in indices]

    def fetch_into(self, indices: Indices, out: Batch) -> int:
        """Fill the batch with grey; the harness asks once and keeps the batch."""
        out[: len(indices)] = 128
        return len(indices) * self.manifest.dataset.image_bytes

    def close(self) -> None:
        """Do nothing: nothing is open."""


class NullFormat(Format):
    """One ready batch for ever."""

    info = FormatInfo(
        name="null",
        summary="no storage: one batch that is in memory already, the ceiling of every backend",
        default_codec="raw",
        default_reader="ready",
        traits=Traits(releases_gil=True, holds_pixels=True, ready_made=True, note="its samples are nobody's"),
        borrows="memory+raw",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the only way in."""
        return {"ready": ReaderInfo(reader=NullReader, summary="hand out the same batch again and again")}

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:  # noqa: ARG002 - whatever it is
        """Refuse: there is nothing to write."""
        raise UsageError(
            "the backend null stores nothing", where=folder, hint="It is only for 'run' and 'bench'."
        )
