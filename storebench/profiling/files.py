"""The files that a loader reads, and the share of them that is in the page cache."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from storebench.probes.machine import mount_of
from storebench.probes.page_count import resident

_MANY_FILES, _COUNTED_FILES = 8, 64

_NEARLY_ALL = 0.9

IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}


@dataclass(frozen=True, kw_only=True)
class Files:
    """The folder of the files that were seen open, and the share of them that was in the page cache at that time."""

    folder: str
    filesystem: str
    suffix: str
    resident_frac: float | None

    def in_home(self, seen: Mapping[str, int]) -> "Files":
        """Return with the innermost folder that holds nearly all files of this kind that were seen, as those of all classes."""
        paths = {path: count for path, count in seen.items() if path.lower().endswith(self.suffix)}
        above = Counter[Path]()
        for path, count in paths.items():
            above.update(dict.fromkeys(Path(path).parents, count))
        homes = [folder for folder, count in above.items() if count >= _NEARLY_ALL * sum(paths.values())]
        return replace(self, folder=str(max(homes, key=lambda home: len(home.parts), default=self.folder)))


def files_of(seen: Iterable[str]) -> Files | None:
    """Count the resident share of the files that were seen, or of others beside them if there are many small ones."""
    try:
        sizes = {path: path.stat().st_size for path in map(Path, seen) if path.is_file()}
        # A process has lists and models open as well.
        largest = max(sizes, key=lambda path: (path.suffix.lower() in IMAGES, sizes[path]), default=Path())
        if not sizes.get(largest):
            return None
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
