"""The size of a dataset's images: what the files have, what they are resized to, and what is said of a large change."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from storebench.arrays import ImageShape, ImageSize
from storebench.datasets.headers import Header, read_header
from storebench.datasets.images import MOST_FILE_BYTES, SIDE
from storebench.errors import CorruptDataError, DataNotFoundError

HEADER_BYTES = 256 << 10
"""Bytes of a file that are read for its size. If they do not hold it, all of the file is read."""

PROBED = 64
"""Most files whose size is looked at to describe a dataset."""

LARGE_CHANGE = 4.0
"""A resize by more than this factor in pixels is said."""

ReadStart = Callable[[int, int], bytes]
"""Return the first bytes of the file of a sample, given its index and their number."""


def square(side: int | None) -> ImageShape:
    """Return the shape of square RGB images; None for the default side."""
    return (side or SIDE, side or SIDE, 3)


def common_small_shape(read: ReadStart, count: int) -> ImageShape | None:
    """Return the shape of all images if they have one size below the default on both sides; else None."""
    sizes = ((header.width, header.height) for header in _headers(read, range(count)))
    first = next(sizes, None)
    if first is None or max(first) >= SIDE or any(size != first for size in sizes):
        return None
    width, height = first
    return (height, width, 3)


def probed_headers(read: ReadStart, count: int) -> tuple[Header, ...]:
    """Return the headers of at most 64 files, evenly spread; damaged ones are left out."""
    probed = min(count, PROBED)
    return tuple(_headers(read, (at * count // probed for at in range(probed))))


def sizes_of(headers: Iterable[Header]) -> tuple[ImageSize, ...]:
    """Return width and height of files."""
    return tuple((header.width, header.height) for header in headers)


def change_note(sizes: Sequence[ImageSize], shape: ImageShape) -> str:
    """Return one clause if images are resized by more than a factor of 4 in pixels, by their median; "" otherwise."""
    if not sizes:
        return ""
    width, height = median(size[0] for size in sizes), median(size[1] for size in sizes)
    factor = shape[0] * shape[1] / (width * height)
    if 1 / LARGE_CHANGE <= factor <= LARGE_CHANGE:
        return ""
    times = f"{_figure(factor)} times" if factor > 1 else f"1/{_figure(1 / factor)} of"
    return f"images of {width:g} x {height:g} (median) become {shape[1]} x {shape[0]}, {times} the pixels"


def _figure(factor: float) -> str:
    """Return a factor above 4 with three digits, or as a whole number."""
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}"


def served_note(own: tuple[int, int], side: int | None) -> str:
    """Return the clause of `change_note` for image files that are resized when they are read; "" if nothing is known."""
    if side is None or not 0 < max(own) < SIDE:
        return ""
    return change_note(((own[1], own[0]),), square(side))


def resize_clause(note: str) -> str:
    """Return the clause of `change_note` in a provenance's note; "" if it has none."""
    return next(
        (clause for clause in note.split("; ") if clause.startswith("images of ") and " become " in clause),
        "",
    )


def _headers(read: ReadStart, indices: Iterable[int]) -> Iterator[Header]:
    """Yield the headers of files, but not of damaged ones."""
    for index in indices:
        with contextlib.suppress(CorruptDataError, DataNotFoundError, OSError):
            yield _header(read, index)


def _header(read: ReadStart, index: int) -> Header:
    start = read(index, HEADER_BYTES)
    try:
        return read_header(start)
    except CorruptDataError:
        # The directory of a TIFF may be at its end, and a JPEG may have long segments before its size.
        if len(start) < HEADER_BYTES:
            raise
        return read_header(read(index, MOST_FILE_BYTES))
