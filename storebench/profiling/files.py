"""The files that a loader reads, and the share of them that is in the page cache."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from storebench.probes.page_count import resident

_MANY_FILES, _COUNTED_FILES = 8, 64


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files that were seen open, and the share of them that was in the page cache at that time."""

    count: int
    folder: str
    resident_frac: float | None


def files_of(seen: Iterable[str]) -> Files | None:
    """Count the resident share of the files that were seen, or of others beside them if there are many small ones."""
    try:
        paths = [path for path in map(Path, sorted(seen)) if path.is_file() and path.stat().st_size]
        if not paths:
            return None
        folders = sorted({path.parent for path in paths})
        counted = paths
        if len(paths) >= _MANY_FILES:  # each of these was read just before it was seen
            counted = [
                Path(entry.path)
                for folder in folders[:_MANY_FILES]
                for _, entry in zip(range(_COUNTED_FILES // _MANY_FILES), os.scandir(folder), strict=False)
                if entry.is_file()
            ]
        return Files(
            count=len(paths), folder=os.path.commonpath(folders), resident_frac=resident(counted).frac
        )
    except Exception:  # noqa: BLE001 - files come and go, and not every kernel counts
        return None
