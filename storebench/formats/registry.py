"""Which formats there are, and how a backend's name is read.

A backend is ``FORMAT[+CODEC][:READER][?OPTION=VALUE,...]``: ``lmdb``,
``lmdb+jpeg``, ``memory:native``, ``lmdb:get?readahead=off``. ``png`` is short
for ``files+png``. Built-in formats are listed here by "module:Class" and
imported when they are first used; others come through the entry-point group
``storebench.formats``, whose entries name a `Format` subclass.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.codecs import CODECS
from storebench.errors import MissingDependencyError, UnknownNameError, UsageError
from storebench.formats.base import Format, FormatInfo, Reader, Traits
from storebench.formats.options import as_text
from storebench.manifest import Manifest
from storebench.settings.backend import Backend

ENTRY_POINT_GROUP = "storebench.formats"

PAPER_BACKENDS = ("png", "hdf5", "memory:python", "memory:native", "leveldb", "lmdb")
"""The storage ways of Lim, Young and Patton (2016), in the paper's order."""

ALIASES = {"png": "files+png", "jpeg": "files+jpeg"}


@dataclass(frozen=True, kw_only=True)
class FormatEntry:
    """Where a format's class is, and what installs the library it needs.

    Attributes
    ----------
    target
        "module:Class".
    install
        The command that installs the library; None where none is needed, or the author does not say.
    note
        What the command needs on some machines, as a clause; "" for nothing.
    """

    target: str
    install: str | None = None
    note: str = ""

    @property
    def hint(self) -> str | None:
        """What to do where the library is missing, as a sentence; None where nobody says."""
        if self.install is None:
            return None
        return f"Run: {self.install} ({self.note})." if self.note else f"Run: {self.install}."


BUILTIN: dict[str, FormatEntry] = {
    "files": FormatEntry(target="storebench.formats.files.format:FilesFormat"),
    "hdf5": FormatEntry(
        target="storebench.formats.hdf5.format:Hdf5Format", install="pip install 'storebench[hdf5]'"
    ),
    "memory": FormatEntry(target="storebench.formats.memory.format:MemoryFormat"),
    "leveldb": FormatEntry(
        target="storebench.formats.leveldb.format:LevelDbFormat",
        install="pip install 'storebench[leveldb]'",
        note="plyvel has no wheel for Python 3.13 and later: there, install LevelDB's headers first, "
        "such as Debian's libleveldb-dev",
    ),
    "lmdb": FormatEntry(
        target="storebench.formats.lmdb.format:LmdbFormat", install="pip install 'storebench[lmdb]'"
    ),
}

REFERENCES: dict[str, FormatEntry] = {
    "null": FormatEntry(target="storebench.formats.null:NullFormat"),
}
"""Backends to measure against that store nothing; they are no formats that one could choose."""


def store_name_of(backend: Backend) -> str:
    """Return the name of the folder of the store that `backend` reads ("lmdb+raw")."""
    return get_format(backend.format).info.borrows or f"{backend.format}+{backend.codec}"


def traits_of(backend: Backend) -> Traits:
    """Return what `backend` can and cannot do."""
    return get_format(backend.format).traits(backend.reader)


def entry_points() -> dict[str, FormatEntry]:
    """Return the formats that other installed packages add."""
    return {point.name: FormatEntry(target=point.value) for point in plugin_points()}


def plugin_points() -> list[importlib.metadata.EntryPoint]:
    """Return the entry points by which other installed packages add formats; `dist` of each is its package."""
    return list(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def format_names() -> list[str]:
    """Return the names of all storage formats, built-in ones first."""
    return [*BUILTIN, *(name for name in sorted(entry_points()) if name not in BUILTIN)]


@functools.cache
def get_format(name: str) -> Format:
    """Return the format called `name`.

    Raises
    ------
    UnknownNameError
        No format has that name.
    MissingDependencyError
        The library that it needs is not installed.
    """
    entry = BUILTIN.get(name) or REFERENCES.get(name) or entry_points().get(name)
    if entry is None:
        raise UnknownNameError.of("format", name, [*format_names(), *REFERENCES, *ALIASES])
    module, _, attribute = entry.target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)()
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the format {name!r} needs the library {error.name!r}, which is not installed",
            hint=entry.hint,
        ) from error
    assert isinstance(found, Format)
    return found


def parse_backend(text: str) -> Backend:
    """Read a backend's name, with the options checked and in their one spelling.

    Raises
    ------
    UnknownNameError
        Its format, codec, reader or option is unknown; the nearest name is offered.
    UsageError
        It is not of the form FORMAT[+CODEC][:READER][?OPTION=VALUE,...], or an option does not accept its value.
    """
    body, _, tail = text.strip().partition("?")
    body, _, reader = body.partition(":")
    body = ALIASES.get(body, body)
    name, _, codec = body.partition("+")
    if not name:
        raise UsageError(
            f"no backend is called {text!r}", hint="Write FORMAT[+CODEC][:READER], such as lmdb+jpeg."
        )
    found = get_format(name)
    readers = found.readers()
    reader = reader or found.info.default_reader
    if reader not in readers:
        raise UnknownNameError.of(f"reader of {name}", reader, readers)
    codec = codec or found.info.default_codec
    if codec not in CODECS:
        raise UnknownNameError.of("codec", codec, CODECS)
    options = readers[reader].reader.options_type.spelled(_pairs(text, tail), f"{name}:{reader}")
    called = _shortest_name(name, found.info, codec, reader, options)
    return Backend(name=called, format=name, codec=codec, reader=reader, options=options)


def _shortest_name(
    container: str, info: FormatInfo, codec: str, reader: str, options: Sequence[tuple[str, str]]
) -> str:
    name = container if codec == info.default_codec else f"{container}+{codec}"
    name = {"files": "png", "files+jpeg": "jpeg"}.get(name, name)
    # The backends in memory are always written out: which of the two is the point.
    if reader != info.default_reader or container == "memory":
        name += f":{reader}"
    return name + ("?" + ",".join(f"{key}={value}" for key, value in options) if options else "")


def _pairs(text: str, tail: str) -> list[tuple[str, str]]:
    pairs = [pair.partition("=") for pair in tail.split(",") if pair]
    if any(not key or not value for key, _, value in pairs):
        raise UsageError(
            f"cannot read the options of {text!r}", hint="Write them as ?OPTION=VALUE,OPTION=VALUE."
        )
    return [(key, value) for key, _, value in pairs]


def open_reader(store: Path | str, reader: str | None = None, **options: bool | int | str) -> Reader:
    """Open a store in this process: the way in for people who use a reader on its own.

    Parameters
    ----------
    store
        A store's folder (it holds ``manifest.json``).
    reader
        The reader's name; None for the format's default.
    **options
        The reader's options: text as a backend spells it, or True, False and numbers.

    Raises
    ------
    UsageError
        The format has no such reader, the reader no such option, or the option does not accept the value.
    """
    folder = Path(store)
    manifest = Manifest.read(folder)
    texts = {name: as_text(value) for name, value in options.items()}
    return get_format(manifest.format).reader(folder, manifest, reader, texts)
