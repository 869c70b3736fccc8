"""Bring the page cache into the state that a cell requests, and count it instead of assuming it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from storebench.errors import CellFailedError
from storebench.formats.registry import get_format, traits_of
from storebench.probes.machine import mount_of
from storebench.probes.page_cache import cache_facts, drop_caches, evict, warm
from storebench.probes.page_count import Residency, resident
from storebench.record.schema import CacheFacts, CacheVerdict
from storebench.settings.backend import Backend
from storebench.settings.words import BOUNDED_STATES, CacheState
from storebench.system.file_tree import FileTree


class StoreCache:
    """The page cache of one store's files, in the state that one cell requests."""

    def __init__(
        self,
        requested: CacheState,
        backend: Backend,
        store: Path,
        *,
        drops: bool,
        read_at_opening: bool = False,
        remote: bool = False,
    ) -> None:
        store_format = get_format(backend.format)
        self._requested = requested
        self._store = store
        self._traits = traits_of(backend)
        self._read_at_opening = read_at_opening or self._traits.holds_pixels
        self._reader = store_format.readers()[backend.reader].reader
        # A reader that asks a server touches no file of the store on this machine.
        self._reads_files = not (self._traits.ready_made or remote)
        self.data_files = store_format.data_files(store) if self._reads_files else []
        _require_one_file_system(store, self.data_files)
        self.drops = drops and requested == CacheState.COLD and self._reads_files

    @property
    def files(self) -> Sequence[Path]:
        """Files that are evicted and counted: the store's data, and indexes that its reader keeps beside it."""
        indexes = self._reader.index_files(self._store)
        return [*self.data_files, *indexes] if indexes else self.data_files

    def before_opening(self) -> CacheFacts | None:
        if self._read_at_opening:
            facts = self.prepare("open")
            if facts.verdict is not CacheVerdict.FAILED:
                self.drop()
            return facts
        if self._requested in BOUNDED_STATES:
            evict(self.files)  # what an open reader maps of a warm store could not be evicted afterwards
        return None

    def prepare(self, applies_to: str, *, first: bool = True) -> CacheFacts:
        """Bring the store's pages into the requested state and count them."""
        requested, how = self._requested, "none"
        if not self._reads_files:
            reason = (
                "nothing is read" if self._traits.ready_made else "nothing is read from this machine's disk"
            )
            none = Residency(pages_total=0, pages_resident=None, method="none", reason=reason)
            return dataclasses.replace(cache_facts(CacheState.ANY, none), requested=requested, reason=reason)
        files = self.files
        if requested == CacheState.WARM:
            how, counted = "fadvise+read" if first else "read", warm(files, anew=first)
        else:
            how = evict(files) if requested == CacheState.COLD else how
            counted = resident(files)
        how = f"{how}+drop_caches" if self.drops else how
        facts = cache_facts(requested, counted, paths=files, how=how, applies_to=applies_to)
        # Evicting and counting have opened every file, and so read directory entries and inodes.
        hot = "unknown" if requested == CacheState.ANY else "hot"
        return dataclasses.replace(facts, metadata="cold" if self.drops else hot)

    def drop(self) -> None:
        """Drop the machine's caches if requested, as the last action before the first access."""
        if self.drops:
            drop_caches()


def _require_one_file_system(store: Path, data_files: Sequence[Path]) -> None:
    """Raise `CellFailedError` if a symbolic link leads from the store to data on another file system."""
    mount = mount_of(store)
    links = data_files.links if isinstance(data_files, FileTree) else filter(Path.is_symlink, data_files)
    for link in links:
        other = mount_of(link)
        if other.point != mount.point:
            raise CellFailedError(
                f"a link to {other.fstype} on {other.point}, but the store is on {mount.fstype} on {mount.point}",
                where=link,
                hint="Move the whole store there, or copy the data back.",
            )
