"""A backend: the name by which it was asked for, and the parts that the name stands for."""

from dataclasses import dataclass

# The format that reads no storage: it serves a few batches from memory, so its rate is that of compute alone.
NULL_FORMAT = "null"

# The readers of this name choose the order of an epoch themselves.
STREAM = "stream"

# Names of options and their values, sorted by name.
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Format, codec, reader and the reader's options: one way to store and read images."""

    name: str
    format: str
    codec: str
    reader: str
    options: Pairs = ()
    codec_options: Pairs = ()

    @property
    def is_null(self) -> bool:
        """Whether it reads no storage, so that its rate is that of compute alone."""
        return self.format == NULL_FORMAT

    @property
    def native_order(self) -> bool:
        """Whether it serves an epoch in its reader's own order, so that its batches are not those of other backends."""
        return self.reader == STREAM

    def __str__(self) -> str:
        return self.name
