"""A store as a dataset: its samples are read back through its default reader, to make another store from them."""

from pathlib import Path
from typing import Any

import numpy as np

from storebench.codecs import any_size
from storebench.datasets.base import Dataset, DatasetInfo, Image
from storebench.datasets.images import checked
from storebench.datasets.sources import check_index
from storebench.digests import DigestTable
from storebench.formats import Reader, get_format
from storebench.manifest import Manifest
from storebench.stores.find import open_store, read_digest_table


class StoreSamples(Dataset):
    """The samples of a store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Manifest = open_store(path).manifest
        get_format(self.manifest.format).check_structure(path)
        self._reader: Reader | None = None
        self.original_info = self.manifest.dataset if any_size(self.manifest.codec) else None
        self.decoded_before = self.manifest.decoded

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
        return self._open()[index]

    def original(self, index: int, *, decode: bool = True) -> tuple[bytes, int]:
        """Return the bytes of the image file of sample `index`, and its label."""
        check_index(index, self.manifest.count)
        reader = self._open()
        [payload] = reader.fetch(np.array([index], np.int64))
        if decode and not self.decoded_before:
            checked(payload, f"{self.path}: sample {index}")
        return payload, int(reader.labels[index])

    def _open(self) -> Reader:
        """Return this process's reader, opened when it is first needed."""
        if self._reader is None:
            self._reader = get_format(self.manifest.format).auditor(self.path, self.manifest)
        return self._reader

    def close(self) -> None:
        """Close this process's reader, if it has one."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}
