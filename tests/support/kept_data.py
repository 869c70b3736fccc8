"""The real files of MNIST and CIFAR-10, read once per process: unzipping and digesting them takes most of a second.

Hundreds of commands, cells and ranks of the suite are copies of two kinds of processes, the suite's own and its
server of commands. Both keep what they have read below the data folder, and their copies find it there. A file that
changes is read again, as is any other folder, and a fresh interpreter reads the files itself.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.datasets import cifar10, mnist
from storebench.datasets.base import Arrays
from storebench.datasets.catalog import DATA_ENV
from storebench.datasets.cifar10 import LayoutSource
from storebench.errors import StorebenchError
from storebench.settings.words import Split

Load = Callable[..., Arrays]
Setter = Callable[[Any, str, object], None]


@dataclass(frozen=True, kw_only=True)
class KeptArrays(Arrays):
    """Arrays that stay as they are, so that their digest is computed once."""

    @functools.cached_property
    def _digest(self) -> str:
        return super().digest()

    def digest(self) -> str:
        return self._digest


def _state(path: Path) -> tuple[object, ...]:
    """Return a value that differs after any change to a file, or to any file of a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    facts = [(file, file.stat()) for file in files]
    return tuple(
        (file, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for file, stat in facts
    )


def _kept(load: Load, root: Path) -> Load:
    known: dict[object, Arrays] = {}

    @functools.wraps(load)
    def loaded(place: Path | LayoutSource, split: Split) -> Arrays:
        path = place.path if isinstance(place, LayoutSource) else place
        if not path.is_relative_to(root):
            return load(place, split)
        key = (place, split, _state(path))
        if key not in known:
            known[key] = KeptArrays(**vars(load(place, split)))
        return known[key]

    return loaded


def keep_real_data(set_attribute: Setter = setattr) -> None:
    """Let this process and its copies keep what they read from the data folder that the environment names."""
    root = os.environ.get(DATA_ENV)
    if root:
        for module in (mnist, cifar10):
            set_attribute(module, "_load", _kept(vars(module)["_load"], Path(root)))


def read_real_data() -> None:
    """Read both datasets now, as far as they are there: for a process that is copied before it reads anything."""
    root = os.environ.get(DATA_ENV)
    for module in (mnist, cifar10) if root else ():
        place = module.find(Path(str(root)))
        for split in Split if place else ():
            try:
                vars(module)["_load"](place, split).digest()
            except StorebenchError:  # the command that needs it says so
                continue
