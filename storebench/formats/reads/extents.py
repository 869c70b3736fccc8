"""A reader of samples with known places in one file: the common part of lmdb:direct and hdf5:direct."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.formats.base import Fetched, Reader
from storebench.formats.options import Options
from storebench.formats.reads.direct_file import DirectFile, Offsets
from storebench.formats.reads.planned import Locate, PlannedReads, ReadPolicy
from storebench.formats.windows import Batch, Windows, check_range
from storebench.record.manifest import Manifest


def locator(offsets: Offsets, lengths: npt.NDArray[np.integer]) -> Locate:
    """Return the function that looks up places in arrays with one entry per sample."""

    def locate(indices: Indices) -> tuple[Offsets, Offsets]:
        check_range(indices, len(offsets))
        return offsets[indices], lengths[indices].astype(np.int64, copy=False)

    return locate


class ExtentReader(Reader):
    """Serve samples by explicit, planned reads; a subclass finds their places and calls `_serve`."""

    options_type = ReadPolicy
    options: ReadPolicy
    reads: PlannedReads

    @classmethod
    def ahead_bytes(cls, options: Options, manifest: Manifest) -> int:  # noqa: ARG003
        """Return the window that is read ahead of the loop. A store that is read in one pass is read further ahead."""
        assert isinstance(options, ReadPolicy)
        return options.window() if options.explicit and options.merged else 0

    def _serve(
        self, path: Path, locate: Locate, *, mean_bytes: int, check: Callable[[], None] | None = None
    ) -> None:
        """Open `path`. `check` raises an error if the file has changed; its size is always checked."""
        file = DirectFile(path, advise_random=self.options.explicit)
        self.reads = PlannedReads(
            file, locate, mean_bytes=mean_bytes, policy=self.options, check=check or file.check_size
        )

    def _fetch(self, indices: Indices) -> list[bytes]:
        return self.reads.payloads(indices)

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        self.reads.copy_rows(indices, out.reshape(len(out), -1))
        return Fetched(out.nbytes)

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        self.reads.copy_windows(indices, windows, self.image_shape, out)
        return Fetched(len(indices) * self.manifest.dataset.image_bytes)

    def _plan(self, batches: Sequence[Indices]) -> None:
        self.reads.plan(batches)

    def notes(self) -> dict[str, str]:
        return self.reads.notes()

    def _close(self) -> None:
        if hasattr(self, "reads"):  # else its constructor failed
            self.reads.close()
