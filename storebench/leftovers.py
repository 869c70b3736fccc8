"""Remove what earlier commands left behind because they were killed: folders, processes, shared memory, control groups.

What a living process uses stays, and so does what other users own: see `storebench.system.scratch` and
`storebench.probes.cgroup`. Two processes may do this at the same time.
"""

import contextlib
from pathlib import Path

from storebench.probes.cgroup import sweep_groups
from storebench.probes.remembered import user_cache_folder
from storebench.system.scratch import sweep as sweep_folders
from storebench.system.scratch import sweep_segments


def sweep(stores: Path | None = None) -> None:
    """Remove everything that killed processes of this user left, and end what they had started.

    Parameters
    ----------
    stores
        The folder of all stores, in which work is hidden, too; None looks at what has a fixed place only.
    """
    sweep_folders()
    with contextlib.suppress(RuntimeError):  # a user without a home
        sweep_folders(user_cache_folder())
    if stores is not None:
        for place in (stores, *stores.glob("*/")):
            sweep_folders(place)
    sweep_segments()
    sweep_groups()
