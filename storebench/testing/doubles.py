"""Readers that misbehave on purpose: slow by a set amount, failing at a set sample, or serving wrong pixels.

They stand in for the reader of any format, so that people who build on storebench can see what their own code
does with such a store::

    from storebench.testing.doubles import doubled, failing, slow, wrong_pixels

    FaultyPack = doubled(
        PackFormat,
        "faulty-pack",
        slow=slow(seconds=0.02),
        failing=failing(at=40),
        wrong=wrong_pixels(7),
    )

`FaultyPack` is a format of its own: with an entry point in the group ``storebench.formats`` it is a backend of
the command line (``storebench run faulty-pack:wrong``). A double of one reader class is made by calling it:
``slow(seconds=0.02)(PackReader)``. Doubles of different kinds can be combined.
"""

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from storebench.codecs import get_codec
from storebench.formats.base import Batch, Fetched, Format, Indices, Reader, ReaderInfo

# Takes a reader class and returns a subclass of it that misbehaves.
Double = Callable[[type[Reader]], type[Reader]]


def _double(
    reader: type[Reader],
    does: str,
    *,
    before: Callable[[Reader, Indices], None] = lambda *_: None,
    wrong: frozenset[int] = frozenset(),
) -> type[Reader]:
    """Return a subclass that calls `before` ahead of each fetch, and serves a wrong pixel of the samples `wrong`."""

    class Faulty(reader):  # type: ignore[misc, valid-type]  # a class that is known at run time
        doubling: frozenset[type] = frozenset()  # in a call of these, the reader may call itself

        def _fetch(self, indices: Indices) -> list[bytes]:
            if Faulty in self.doubling:
                return list(super()._fetch(indices))
            before(self, indices)
            with _inside(self, Faulty):
                payloads = super()._fetch(indices)
            pairs = zip(indices.tolist(), payloads, strict=True)
            return [_spoiled(self, payload) if index in wrong else payload for index, payload in pairs]

        def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
            if Faulty in self.doubling:
                return Fetched(*super()._fetch_into(indices, out))
            before(self, indices)
            with _inside(self, Faulty):
                fetched = Fetched(*super()._fetch_into(indices, out))
            for row, index in enumerate(indices.tolist()):
                if index in wrong:
                    _change_one_bit(out[row])
            return fetched

    Faulty.__name__, Faulty.__module__ = f"Double{reader.__name__}", reader.__module__
    Faulty.__doc__ = f"{does}."
    return Faulty


@contextlib.contextmanager
def _inside(reader: Any, double: type) -> Iterator[None]:
    reader.doubling |= {double}
    try:
        yield
    finally:
        reader.doubling -= {double}


def _spoiled(reader: Reader, payload: bytes) -> bytes:
    codec, pixels = get_codec(reader.payload_codec), np.empty(reader.image_shape, np.uint8)
    codec.decode_into(payload, pixels)
    _change_one_bit(pixels)
    return bytes(codec.encode(pixels))


def _change_one_bit(image: Batch) -> None:
    """Flip the highest bit, which survives a lossy codec, of the first channel in the middle of uint8 [H, W, C]."""
    image[image.shape[0] // 2, image.shape[1] // 2, 0] ^= 0x80


def slow(*, seconds: float) -> Double:
    """Make a double that waits before each call of `fetch` and `fetch_into`; its answers are right.

    Parameters
    ----------
    seconds
        Seconds that each call waits. The wait releases the GIL, as a slow device would.
    """
    does = f"Wait {seconds:g} s before each batch"
    return lambda reader: _double(reader, does, before=lambda *_: time.sleep(seconds))


def failing(*, at: int, error: Callable[[], Exception] | None = None) -> Double:
    """Make a double that raises when one sample is asked for; all others are served.

    Parameters
    ----------
    at
        Index of the sample.
    error
        Makes what is raised; None for an ``OSError(EIO)`` that names the store, as a broken disk would cause.
    """

    def fail(reader: Reader, indices: Indices) -> None:
        if at in indices:
            raise error() if error else OSError(errno.EIO, os.strerror(errno.EIO), str(reader.store))

    return lambda reader: _double(reader, f"Fail at sample {at}", before=fail)


def wrong_pixels(*at: int) -> Double:
    """Make a double that changes one bit of one pixel of some samples; all others are served unchanged.

    If the reader serves encoded payloads, the changed image is encoded again.

    Parameters
    ----------
    *at
        Indices of the samples.
    """
    does = f"Serve a wrong pixel of {', '.join(map(str, sorted(at)))}"
    return lambda reader: _double(reader, does, wrong=frozenset(at))


def doubled(original: type[Format], name: str, **doubles: Double) -> type[Format]:
    """Return a format that stores what `original` stores, with some more readers that misbehave.

    Parameters
    ----------
    original
        Any format's class. Its own readers keep their names, so stores are verified by readers that are right.
    name
        Name of the new format; its entry point must have the same name.
    **doubles
        Reader name -> `slow`, `failing` or `wrong_pixels` with their settings. Each doubles the default reader.

    Raises
    ------
    ValueError
        The original has a reader of that name.
    """
    originals = original().readers()
    if taken := sorted(set(doubles) & set(originals)):
        raise ValueError(f"{original.info.name} has a reader called {taken[0]!r} already")
    default = originals[original.info.default_reader]
    made = {name: double(default.reader) for name, double in doubles.items()}
    faulty = {
        name: dataclasses.replace(default, reader=reader, summary=str(reader.__doc__))
        for name, reader in made.items()
    }

    class Doubled(original):  # type: ignore[misc, valid-type]  # a class that is known at run time
        """A format with readers that misbehave on purpose."""

        info = dataclasses.replace(
            original.info, name=name, summary=f"{original.info.name}, with readers that misbehave on purpose"
        )

        def readers(self) -> Mapping[str, ReaderInfo]:
            return {**super().readers(), **faulty}

    return Doubled
