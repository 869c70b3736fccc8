"""Storage formats: containers for encoded images, all behind one contract."""

from storebench.formats.base import Fetched, Format, FormatInfo, Reader, ReaderInfo, Traits, Writer
from storebench.formats.registry import (
    PAPER_BACKENDS,
    format_names,
    get_format,
    open_reader,
    parse_backend,
    store_name_of,
    traits_of,
)
from storebench.settings.backend import Backend

__all__ = [
    "PAPER_BACKENDS",
    "Backend",
    "Fetched",
    "Format",
    "FormatInfo",
    "Reader",
    "ReaderInfo",
    "Traits",
    "Writer",
    "format_names",
    "get_format",
    "open_reader",
    "parse_backend",
    "store_name_of",
    "traits_of",
]
