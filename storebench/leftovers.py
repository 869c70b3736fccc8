"""Remove what killed commands left behind: folders, processes, shared memory, control groups."""

from pathlib import Path

from storebench.probes.cgroup import sweep_groups
from storebench.system.scratch import sweep as sweep_folders
from storebench.system.scratch import sweep_segments, user_cache_folder


def sweep(stores: Path | None = None) -> None:
    """Remove everything that killed processes of this user left, and end the processes that they had started."""
    sweep_folders()
    cache = user_cache_folder()
    if cache is not None:
        sweep_folders(cache)
    if stores is not None:
        for place in (stores, *stores.glob("*/")):
            sweep_folders(place)
    sweep_segments()
    sweep_groups()
