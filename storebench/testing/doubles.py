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
from typing import ClassVar

import numpy as np

from storebench.codecs import get_codec
from storebench.formats.base import Batch, Fetched, Format, Indices, Reader, ReaderInfo

Double = Callable[[type[Reader]], type[Reader]]
"""Takes a reader class and returns a subclass of it that misbehaves."""

_BIT = 0x80
"""The bit of a wrong pixel that is changed: large enough to survive a lossy codec."""


class _Double(Reader):
    """The base of all doubles: a fault before or after each call, except for calls that the reader makes itself."""

    _inside = False

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self._inside:
            return super()._fetch(indices)
        self.before(indices)
        with self._call():
            payloads = super()._fetch(indices)
        return self.spoiled(indices, payloads)

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if self._inside:
            return super()._fetch_into(indices, out)  # type: ignore[safe-super]  # the doubled class is next in the order of resolution
        self.before(indices)
        with self._call():
            done = super()._fetch_into(indices, out)  # type: ignore[safe-super]
        self.spoil(indices, out)
        return done

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def before(self, indices: Indices) -> None:
        """Do the work before the samples are read."""

    def spoiled(self, indices: Indices, payloads: list[bytes]) -> list[bytes]:  # noqa: ARG002
        """Return the payloads to serve instead of `payloads`."""
        return payloads

    def spoil(self, indices: Indices, out: Batch) -> None:
        """Change the pixels that were read."""


class _Slow(_Double):
    seconds: ClassVar[float]

    def before(self, indices: Indices) -> None:
        time.sleep(self.seconds)
        super().before(indices)


class _Failing(_Double):
    at: ClassVar[int]
    error: ClassVar[Callable[[], Exception] | None]

    def before(self, indices: Indices) -> None:
        if self.at in indices:
            make = type(self).error
            raise make() if make else OSError(errno.EIO, os.strerror(errno.EIO), str(self.store))
        super().before(indices)


class _WrongPixels(_Double):
    samples: ClassVar[frozenset[int]]

    def spoiled(self, indices: Indices, payloads: list[bytes]) -> list[bytes]:
        return [
            self._wrong(payload) if index in self.samples else payload
            for index, payload in zip(indices.tolist(), super().spoiled(indices, payloads), strict=True)
        ]

    def _wrong(self, payload: bytes) -> bytes:
        codec = get_codec(self.payload_codec)
        pixels = np.empty(self.image_shape, np.uint8)
        codec.decode_into(payload, pixels)
        _change_one_bit(pixels)
        return bytes(codec.encode(pixels))

    def spoil(self, indices: Indices, out: Batch) -> None:
        super().spoil(indices, out)
        for row, index in enumerate(indices.tolist()):
            if index in self.samples:
                _change_one_bit(out[row])


def _change_one_bit(image: Batch) -> None:
    """Flip the highest bit of the first channel in the middle of an image, uint8 [H, W, C]."""
    image[image.shape[0] // 2, image.shape[1] // 2, 0] ^= _BIT


def slow(*, seconds: float) -> Double:
    """Make a double that waits before each call of `fetch` and `fetch_into`; its answers are right.

    Parameters
    ----------
    seconds
        Seconds that each call waits. The wait releases the GIL, as a slow device would.
    """
    return lambda reader: _double(_Slow, reader, f"wait {seconds:g} s before each batch", seconds=seconds)


def failing(*, at: int, error: Callable[[], Exception] | None = None) -> Double:
    """Make a double that raises when one sample is asked for; all others are served.

    Parameters
    ----------
    at
        Index of the sample.
    error
        Makes what is raised; None for an ``OSError(EIO)`` that names the store, as a broken disk would cause.
    """
    return lambda reader: _double(_Failing, reader, f"fail at sample {at}", at=at, error=error)


def wrong_pixels(*at: int) -> Double:
    """Make a double that changes one bit of one pixel of some samples; all others are served unchanged.

    If the reader serves encoded payloads, the changed image is encoded again.

    Parameters
    ----------
    *at
        Indices of the samples.
    """
    samples = frozenset(at)
    named = ", ".join(map(str, sorted(samples)))
    return lambda reader: _double(_WrongPixels, reader, f"serve a wrong pixel of {named}", samples=samples)


def _double(kind: type, reader: type[Reader], does: str, **settings: object) -> type[Reader]:
    """Return a subclass of `reader` with the fault of `kind`."""
    namespace = {**settings, "__doc__": f"{does.capitalize()}.", "__module__": reader.__module__}
    return type(f"{kind.__name__.strip('_')}{reader.__name__}", (kind, reader), namespace)


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
    own = original().readers()
    if taken := sorted(set(doubles) & set(own)):
        raise ValueError(f"{original.info.name} has a reader called {taken[0]!r} already")
    default = own[original.info.default_reader]
    more = {
        key: dataclasses.replace(default, reader=(made := double(default.reader)), summary=str(made.__doc__))
        for key, double in doubles.items()
    }
    summary = f"{original.info.name}, with readers that misbehave on purpose"

    def readers(self: Format) -> Mapping[str, ReaderInfo]:
        return {**original.readers(self), **more}

    namespace = {
        "info": dataclasses.replace(original.info, name=name, summary=summary),
        "readers": readers,
        "__doc__": f"{summary}.",
        "__module__": original.__module__,
    }
    return type(f"Doubled{original.__name__}", (original,), namespace)
