"""A backend: the name by which it was asked for, and the parts that the name stands for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Format, codec, reader and the reader's options: one way to store and read images.

    `storebench.formats.registry.parse_backend` reads one from its name.

    Attributes
    ----------
    name
        The shortest name that means it ("lmdb:get?readahead=off").
    format
        The container ("lmdb").
    codec
        How one image becomes bytes ("raw").
    reader
        The way in to the format ("get").
    options
        The reader's options, as sorted pairs.
    """

    name: str
    format: str
    codec: str
    reader: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.name
