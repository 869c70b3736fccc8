"""The image of a store: the same files in a separate file system, for a device with its own read-ahead."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storebench.probes.loop_mount import BLOCK_BYTES, fill_image, make_image
from storebench.record.manifest import MANIFEST_NAME
from storebench.stores.copies import ensure_of, is_copy
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
    image: Path  # file that holds the file system
    point: Path  # folder on which to mount it; the store then appears there


def ensure_image(store: Path, say: Say = mute) -> StoreImage:
    """Return the image of `store`, copied now unless there is one of the current store."""
    target = store.parent / DEVICES_DIR / store.name
    if is_copy(target, store):
        sweep(target.parent)
    else:
        doing = f"copying {store.name} into an image for its own device"
        ensure_of(store, target, partial(_fill, store), doing, say, IMAGE_NAME)
    return StoreImage(image=target / IMAGE_NAME, point=target / POINT_NAME)


def _fill(store: Path, folder: Path) -> None:
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
