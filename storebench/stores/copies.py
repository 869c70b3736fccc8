"""Copies of stores: in other folders, such as those of a network file system, and in images of file systems."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storebench.errors import from_os_error
from storebench.probes.loop_mount import BLOCK_BYTES, fill_image, make_image
from storebench.record.manifest import MANIFEST_NAME
from storebench.stores.staging import new_folder, staged
from storebench.system.progress import Say, mute
from storebench.system.scratch import sweep

DEVICES_DIR = ".devices"
IMAGE_NAME = "store.img"
POINT_NAME = "store"

_INODE_BYTES = 256
_SLACK_BYTES = 32 << 20
_SLACK_FRAC = 0.03


@dataclass(frozen=True, kw_only=True)
class StoreImage:
    """The same files in a separate file system, for a device with its own read-ahead."""

    image: Path  # file that holds the file system
    point: Path  # folder on which to mount it; the store then appears there


def ensure_copy(store: Path, folder: Path, say: Say) -> Path:
    """Return the copy of `store` below `folder`, made now unless there is one of the current store."""
    target = folder / store.parent.name / store.name
    _ensure(store, target, _fill_folder, f"copying {store.name} to {folder}", say)
    return target


def ensure_image(store: Path, say: Say = mute) -> StoreImage:
    """Return the image of `store`, copied now unless there is one of the current store."""
    target = store.parent / DEVICES_DIR / store.name
    doing = f"copying {store.name} into an image for its own device"
    _ensure(store, target, _fill_image, doing, say, IMAGE_NAME)
    return StoreImage(image=target / IMAGE_NAME, point=target / POINT_NAME)


def _ensure(
    store: Path, target: Path, fill: Callable[[Path, Path], None], doing: str, say: Say, *last: str
) -> None:
    """Fill the folder `target` from `store`, unless it is of the current store, whose manifest it has."""
    if _is_copy(target, store):
        sweep(target.parent)
        return
    try:
        with staged(target, say):
            if not _is_copy(target, store):
                say(doing)
                with new_folder(target, *last, MANIFEST_NAME) as new:
                    fill(store, new)
    except OSError as error:
        raise from_os_error(error, target) from error


def _is_copy(target: Path, store: Path) -> bool:
    try:
        return (target / MANIFEST_NAME).read_bytes() == (store / MANIFEST_NAME).read_bytes()
    except OSError:
        return False


def _fill_folder(store: Path, folder: Path) -> None:
    for path in store.rglob("*"):  # not copytree, which goes on after an error
        copied = folder / path.relative_to(store)
        copied.mkdir() if path.is_dir() else shutil.copyfile(path, copied)


def _fill_image(store: Path, folder: Path) -> None:
    manifest = (store / MANIFEST_NAME).read_bytes()
    image, point = folder / IMAGE_NAME, folder / POINT_NAME
    point.mkdir()
    paths = list(store.rglob("*"))
    content = sum(_blocks(path.stat().st_size) + _INODE_BYTES for path in paths)
    make_image(image, _blocks(int(content * (1 + _SLACK_FRAC)) + _SLACK_BYTES), files=len(paths))
    fill_image(image, point, store)
    (folder / MANIFEST_NAME).write_bytes(manifest)


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
