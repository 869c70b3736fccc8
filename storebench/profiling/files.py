"""The files that a loader reads, and the share of them that is in the page cache."""

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from storebench.probes.machine import mount_of
from storebench.probes.page_count import resident

_MANY_FILES, _COUNTED_FILES = 8, 64


@dataclass(frozen=True, kw_only=True)
class Files:
    """The folder of the files that were seen open, and the share of them that was in the page cache at that time."""

    folder: str
    filesystem: str
    suffix: str
    resident_frac: float | None

    def beside(self, seen: Iterable[str]) -> "Files":
        """Return with the folder that also holds files of this kind that were seen later, as those of other classes."""
        parents = [path.parent for path in map(Path, seen) if path.suffix.lower() == self.suffix]
        return replace(self, folder=os.path.commonpath([self.folder, *parents]))


def files_of(seen: Iterable[str]) -> Files | None:
    """Count the resident share of the files that were seen, or of others beside them if there are many small ones."""
    try:
        sizes = {path: path.stat().st_size for path in map(Path, seen) if path.is_file()}
        largest = max(sizes, key=sizes.__getitem__, default=Path())
        if not sizes.get(largest):
            return None
        # A process has other files open as well.
        paths = sorted(path for path, size in sizes.items() if size and path.suffix == largest.suffix)
        folder = os.path.commonpath([path.parent for path in paths])
        if len(paths) >= _MANY_FILES:  # each of these was read just before it was seen
            beside = itertools.islice(paths[0].parent.iterdir(), _COUNTED_FILES)
            paths = [path for path in beside if path.is_file()]
        return Files(
            folder=folder,
            filesystem=mount_of(folder).fstype,
            suffix=largest.suffix.lower(),
            resident_frac=resident(paths).frac,
        )
    except OSError:  # files come and go
        return None
