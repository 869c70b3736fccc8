"""Scan a container, in a process of its own and once: the result is kept beside the stores."""

import functools
from dataclasses import dataclass

from storebench.arrays import ImageShape, ImageSize
from storebench.datasets import images
from storebench.datasets.base import Image
from storebench.datasets.containers.base import Container
from storebench.datasets.listing import Listings
from storebench.datasets.sources import files_digest, fingerprint, unreadable
from storebench.errors import CorruptDataError
from storebench.system.isolated import run_isolated

VERSION = 4  # increased whenever a scan would find something else
LIMIT_S, MEMORY_BYTES = 24 * 3600.0, 8 << 30


@dataclass(frozen=True)
class Scanned:
    """A container whose samples are known, with the sizes of some images and of all, and what identifies its files."""

    container: Container
    sizes: tuple[ImageSize, ...]
    shape: ImageShape
    are_files: bool  # whether samples are image files, and not pixels
    digest: str

    def image(self, index: int) -> bytes | Image:
        image = self.container.read(index)
        shape = None if isinstance(image, bytes) else image.shape
        if shape == (None if self.are_files else self.shape):
            return image
        what = f"pixels of shape {shape}" if shape else "an image file"
        raise CorruptDataError(
            f"{what}, unlike the first sample",
            where=self.container.locate(index),
            hint="Resize the images to one size, or store all as image files.",
        )


def scanned(container: Container, listings: Listings | None) -> Scanned:
    digest = files_digest(container.files)
    name = f"container-{fingerprint(VERSION, container.kind, container.asked, digest, *container.files)}"
    known: Scanned | None = None if listings is None else listings.get(name)
    if known is not None:
        return known
    found = run_isolated(  # libraries may crash on a damaged file
        functools.partial(_found, container, digest),
        doing=f"reading {container.kind}",
        where=container.files[0],
        limit_s=LIMIT_S,
        memory_bytes=MEMORY_BYTES,
    )
    if listings is not None and files_digest(container.files) == digest:  # it has not changed meanwhile
        listings.keep(name, found)
    return found


def _found(container: Container, digest: str) -> Scanned:
    try:
        container.scan()
    except OSError as error:
        raise unreadable(container.files[0], error) from error
    count = len(container.classes.labels)
    if not count:
        raise CorruptDataError("holds no samples", where=container.files[0], hint="Name another file.")
    first = container.read(0)
    if not isinstance(first, bytes):
        height, width, channels = first.shape
        return Scanned(container, (), (height, width, channels), are_files=False, digest=digest)

    def start(index: int, most: int) -> bytes:
        image = container.read(index)
        return image[:most] if isinstance(image, bytes) else b""

    sizes = images.sizes_of(images.probed_headers(start, count))
    shape = images.common_small_shape(start, count) or images.square(None)
    return Scanned(container, sizes, shape, are_files=True, digest=digest)
