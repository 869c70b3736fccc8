"""A store as a dataset: its samples are read back through its default reader, to make another store from them."""

from pathlib import Path
from typing import Any

import numpy as np

from storebench.codecs import get_codec
from storebench.datasets.base import Dataset, DatasetInfo, Image
from storebench.digests import DigestTable
from storebench.formats import Reader, get_format, parse_backend
from storebench.formats.registry import traits_of
from storebench.manifest import Manifest
from storebench.stores.find import open_store, read_digest_table


class StoreSamples(Dataset):
    """The samples of a store.

    Each process that reads from it opens its own reader at its first sample.

    Parameters
    ----------
    path
        The store's folder.

    Raises
    ------
    CorruptStoreError
        It is not a store, files are missing or have changed in size since they were written, or its format's
        library could not read it safely.
    SchemaVersionError
        Another version of storebench wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Manifest = open_store(path).manifest
        get_format(self.manifest.format).check_structure(path)
        self._reader: Reader | None = None

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset from which the store was made."""
        return self.manifest.dataset

    @property
    def digests(self) -> DigestTable:
        """Digests of the samples as written, uint8 [count, 16]."""
        return read_digest_table(self.path, self.manifest)

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index`, read and decoded, as (uint8 [H, W, C], label)."""
        if self._reader is None:
            self._reader = self._open()
        indices = np.array([index], np.int64)
        image = np.empty((1, *self.info.image_shape), np.uint8)
        if self._reader.payload_codec == "raw":
            self._reader.fetch_into(indices, image)
        else:
            (payload,) = self._reader.fetch(indices)
            get_codec(self._reader.payload_codec).decode_into(payload, image[0])
        return image[0], int(self._reader.labels[index])

    def close(self) -> None:
        """Close this process's reader, if it has one."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> Reader:
        backend = parse_backend(f"{self.manifest.format}+{self.manifest.codec}")
        found = get_format(self.manifest.format)
        if traits_of(backend).holds_pixels:
            return found.auditor(self.path, self.manifest)
        return found.reader(self.path, self.manifest, backend.reader, dict(backend.options))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}
