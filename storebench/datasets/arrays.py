"""A dataset that fits in memory: read and checked as a whole, and read again after pickling."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.datasets.base import Dataset, DatasetInfo, Image, Provenance
from storebench.datasets.sources import check_index, fingerprint
from storebench.settings.words import Split

_DIGEST_BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Images, uint8 [N, H, W, C] in any memory order, and their labels, int64 [N]."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    provenance: Provenance

    def digest(self) -> str:
        """Return the digest of all pixels and labels, which does not depend on the memory order."""
        digest = hashlib.blake2b(digest_size=16)
        for start in range(0, len(self.images), _DIGEST_BLOCK):
            digest.update(np.ascontiguousarray(self.images[start : start + _DIGEST_BLOCK]).data)
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return digest.hexdigest()


class ArrayDataset(Dataset):
    """Serve samples from arrays that `load` reads."""

    def __init__(self, name: str, split: Split, load: Callable[[], Arrays]) -> None:
        arrays = load()
        self._load = load
        self._arrays: Arrays | None = arrays
        count, height, width, channels = arrays.images.shape
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=count,
            image_shape=(height, width, channels),
            class_names=arrays.class_names,
            provenance=arrays.provenance,
            fingerprint=fingerprint("arrays", arrays.images.shape, arrays.digest()),
        )

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset."""
        return self._info

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, C], label)."""
        check_index(index, self._info.count)
        if self._arrays is None:
            self._arrays = self._load()
        return np.array(self._arrays.images[index], order="C"), int(self._arrays.labels[index])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}
