"""Copies of stores in other folders, such as those of a network file system."""

import shutil
from collections.abc import Callable
from pathlib import Path

from storebench.errors import from_os_error
from storebench.record.manifest import MANIFEST_NAME
from storebench.stores.staging import new_folder, staged
from storebench.system.progress import Say


def ensure_copy(store: Path, folder: Path, say: Say) -> Path:
    """Return the copy of `store` below `folder`, made now unless there is one of the current store."""

    def fill(new: Path) -> None:
        for path in store.rglob("*"):  # not copytree, which goes on after an error
            copied = new / path.relative_to(store)
            copied.mkdir() if path.is_dir() else shutil.copyfile(path, copied)

    target = folder / store.parent.name / store.name
    ensure_of(store, target, fill, f"copying {store.name} to {folder}", say)
    return target


def ensure_of(
    store: Path, target: Path, fill: Callable[[Path], None], doing: str, say: Say, *last: str
) -> None:
    """Fill the folder `target` from `store`, unless it is of the current store, whose manifest it has."""
    try:
        with staged(target, say):
            if not is_copy(target, store):
                say(doing)
                with new_folder(target, *last, MANIFEST_NAME) as new:
                    fill(new)
    except OSError as error:
        raise from_os_error(error, target) from error


def is_copy(target: Path, store: Path) -> bool:
    try:
        return (target / MANIFEST_NAME).read_bytes() == (store / MANIFEST_NAME).read_bytes()
    except OSError:
        return False
