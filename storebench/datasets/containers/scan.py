"""Scan a container, in a process of its own and once: the result is kept beside the stores."""

import functools

from storebench.datasets import images
from storebench.datasets.containers.base import Container
from storebench.datasets.listing import Listings
from storebench.datasets.sources import files_digest, fingerprint, unreadable
from storebench.errors import CorruptDataError
from storebench.system.isolated import run_isolated

VERSION = 10  # increased whenever a scan would find something else
LIMIT_S, MEMORY_BYTES = 24 * 3600.0, 8 << 30


def scanned(container: Container, listings: Listings | None) -> Container:
    """Return the container with its samples, as it was kept or is found now."""
    container.digest = files_digest(container.files)
    identity = (container.kind, container.asked, container.digest, *container.files)
    name = f"container-{fingerprint(VERSION, *identity)}"
    kept: Container | None = None if listings is None else listings.get(name)
    if kept is not None:
        return kept
    result = run_isolated(  # libraries may crash on a damaged file
        functools.partial(_scanned, container),
        doing=f"reading {container.kind}",
        where=container.files[0],
        limit_s=LIMIT_S,
        memory_bytes=MEMORY_BYTES,
    )
    if listings is not None:
        listings.keep(name, result)
    return result


def _scanned(container: Container) -> Container:
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
        container.shape, container.are_files = (height, width, channels), False
        return container

    def start(index: int, most: int) -> bytes:
        image = container.read(index)
        return image[:most] if isinstance(image, bytes) else b""

    container.sizes = images.sizes_of(images.probed_headers(start, count))
    container.shape = images.common_small_shape(start, count) or images.square(None)
    return container
