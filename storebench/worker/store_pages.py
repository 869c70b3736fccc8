"""The pages of a store's files: how many samples share one, and how many may be resident without having been requested."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.arrays import Floats
from storebench.probes.page_count import PAGE_BYTES

EXCESS_MAX_FRAC = 0.10
"""Share of the store's pages that may be resident without having been requested while an epoch still counts as cold.

With an excess e and a requested share a of the samples, a random sample is found in memory with probability e / (1 - a).
With an excess of a tenth this is at most one sample in five in the first half of an epoch, and a third of all samples of
an epoch whose excess is at the limit throughout. A smaller limit could not be distinguished from the noise of sampled
files (`storebench.probes.residency.MOST_FILES`) and from batches in progress."""

EXCESS_FLOOR_BYTES = 2 << 20
"""The same in bytes, used if it is more: pages of labels, branch pages and headers, which no sample requests by itself."""

SPARE_MOST = 2
"""A store may have this many pages per page of payload. Residency is a share of no more than these pages.

A file that was made larger than its content would otherwise hide that everything else in it is resident."""


@dataclass(frozen=True, kw_only=True)
class StorePages:
    """Size of a store, for judging its residency.

    Attributes
    ----------
    count
        Samples in the store.
    pages
        Pages of its data files.
    payload_bytes
        Payload of all samples.
    """

    count: int
    pages: int
    payload_bytes: int

    @property
    def samples_per_page(self) -> float:
        """Average number of samples that overlap one page: 1 if each sample has pages of its own."""
        return 1.0 if self.pages >= self._own_pages else PAGE_BYTES / self._mean_bytes + 1

    @property
    def used_pages(self) -> float:
        """Pages that can hold samples: all of them, unless the files are much larger than the payload."""
        payload = self._own_pages if self.pages >= self._own_pages else self.payload_bytes / PAGE_BYTES
        return min(self.pages, SPARE_MOST * payload) or self.pages

    @property
    def tolerated_frac(self) -> float:
        """Share of `used_pages` that may be resident without having been requested."""
        return max(EXCESS_MAX_FRAC, EXCESS_FLOOR_BYTES / max(1, self.used_pages * PAGE_BYTES))

    def of_used(self, resident_frac: npt.ArrayLike) -> Floats:
        """Return shares of all pages as shares of `used_pages`, float64, at most 1."""
        shares: Floats = np.asarray(resident_frac, np.float64) * (self.pages / max(1, self.used_pages))
        return np.minimum(shares, 1.0)

    @property
    def _mean_bytes(self) -> float:
        return max(1.0, self.payload_bytes / max(1, self.count))

    @property
    def _own_pages(self) -> float:
        """Pages of a store in which each sample has pages of its own."""
        return float(self.count * np.ceil(self._mean_bytes / PAGE_BYTES))
