"""The available formats, and the parser of backend names."""

import functools
import importlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.codecs import Decoding, decoding_of, get_codec
from storebench.codecs.decoders import DECODERS, DEFAULT_DECODER, has_library
from storebench.codecs.registry import DECODER, SCALE, codec_named, has_decoders
from storebench.errors import PLYVEL, MissingDependencyError, UnknownNameError, UsageError, install_line
from storebench.formats.base import Format, FormatInfo, Reader, Traits
from storebench.formats.functions import module_format
from storebench.formats.options import as_text
from storebench.record.manifest import Manifest
from storebench.settings.backend import STREAM, Backend

ENTRY_POINT_GROUP = "storebench.formats"

# The storage ways of Lim, Young and Patton (2016), in the paper's order.
PAPER_BACKENDS = ("png", "hdf5", "memory:python", "memory:native", "leveldb", "lmdb")

ALIASES = {"png": "files+png", "jpeg": "files+jpeg", "original": "files+original"}


@dataclass(frozen=True, kw_only=True)
class FormatEntry:
    """The place of a format's class, and the command that installs the library it needs."""

    target: str  # "module:Class"
    install: str | None = None
    libraries: tuple[str, ...] = ()  # modules that the format needs, if it imports them only when it is used

    def load(self) -> object:
        """Import the module and return its attribute, None if it has none; raise `ModuleNotFoundError`."""
        for library in self.libraries:
            if not has_library(library):
                raise ModuleNotFoundError(name=library)
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute, None)


BUILTIN: dict[str, FormatEntry] = {
    "files": FormatEntry(target="storebench.formats.files.format:FilesFormat"),
    "hdf5": FormatEntry(target="storebench.formats.hdf5.format:Hdf5Format", install=install_line("h5py")),
    "memory": FormatEntry(target="storebench.formats.memory.format:MemoryFormat"),
    "leveldb": FormatEntry(
        target="storebench.formats.leveldb.format:LevelDbFormat", install=install_line(PLYVEL)
    ),
    "lmdb": FormatEntry(target="storebench.formats.lmdb.format:LmdbFormat", install=install_line("lmdb")),
}


def _peer(target: str, *libraries: str) -> FormatEntry:
    return FormatEntry(
        target=f"storebench.formats.peers.{target}", install=install_line(*libraries), libraries=libraries
    )


# Formats of other projects; nothing imports their libraries before they are used.
PEERS: dict[str, FormatEntry] = {
    "npy": _peer("npy:NpyFormat", "numpy"),
    "sqlite": _peer("sqlite:SqliteFormat", "sqlite3"),
    "safetensors": _peer("safetensors:SafetensorsFormat", "safetensors"),
    "arrow": _peer("arrow:ArrowFormat", "pyarrow"),
    "parquet": _peer("parquet:ParquetFormat", "pyarrow"),
    "hf": _peer("hf:HfFormat", "datasets"),
    "webdataset": _peer("webdataset:WebDatasetFormat", "webdataset"),
    "tfrecord": _peer("tfrecord:TfRecordFormat", "google_crc32c"),
    "array_record": _peer("array_record:ArrayRecordFormat", "array_record"),
    "litdata": _peer("litdata:LitDataFormat", "litdata"),
    "lance": _peer("lance:LanceFormat", "lance"),
    "rocksdb": _peer("rocksdb:RocksDbFormat", "rocksdict"),
    "zarr": _peer("zarr:ZarrFormat", "zarr", "tensorstore"),
}

BUILTIN |= PEERS

# Backends that store nothing, so that nobody can choose them as a format.
REFERENCES: dict[str, FormatEntry] = {
    "null": FormatEntry(target="storebench.formats.memory.format:NullFormat"),
    "container": _peer("container:ContainerFormat", "pyarrow"),
}


def store_name_of(backend: Backend) -> str:
    """Return the name of the folder of the store that `backend` reads ("lmdb+raw")."""
    borrowed = get_format(backend.format).info.borrows if is_installed(backend.format) else ""
    return borrowed or f"{backend.format}+{backend.codec}"


def traits_of(backend: Backend) -> Traits:
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


def is_installed(name: str) -> bool:
    """Whether a format can be used here; nothing of a peer's library is imported."""
    try:
        get_format(name)
    except (MissingDependencyError, UnknownNameError):
        return False
    return True


@functools.cache
def get_format(name: str) -> Format:
    entry = BUILTIN.get(name) or REFERENCES.get(name) or entry_points().get(name)
    if entry is None and "." not in name:
        raise UnknownNameError.of("format", name, [*format_names(), *REFERENCES, *ALIASES])
    try:
        format_class = entry.load() if entry else module_format(name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the format {name!r} needs the library {error.name!r}, which is not installed",
            hint=f"Run: {entry.install}." if entry and entry.install else None,
        ) from error
    if not (isinstance(format_class, type) and issubclass(format_class, Format)):
        raise UsageError(
            f"{entry.target if entry else name} is no format",
            where=name,
            hint="The entry point of its package must name a subclass of storebench.formats.base.Format.",
        )
    return format_class()


def parse_backend(text: str) -> Backend:
    """Parse a backend's name; its options are checked and written in their canonical spelling."""
    body, _, tail = text.strip().partition("?")
    body, *parts = body.split(":")
    body = ALIASES.get(body, body)
    name, _, codec = body.partition("+")
    if not name:
        raise UsageError(
            f"no backend is called {text!r}", hint="Write FORMAT[+CODEC][:READER], such as lmdb+jpeg."
        )
    if name in ALIASES:
        raise UsageError(f"{name!r} is short for {ALIASES[name]}", hint=f"Write files+{codec}.")
    format_ = get_format(name)
    readers = format_.readers()
    codec = codec or format_.info.default_codec
    qualities = [part for part in parts if part.isdecimal()]
    others = [part for part in parts if part not in qualities]
    decoder, reader = _decoder_and_reader(text, others, format_, codec)
    codec = codec_named(":".join([codec, *qualities]))
    split = [pair.partition("=") for pair in tail.split(",") if pair]
    if any(not key or not value for key, _, value in split):
        raise UsageError(
            f"cannot read the options of {text!r}", hint="Write them as ?OPTION=VALUE,OPTION=VALUE."
        )
    table, pairs = readers[reader].reader.options_type, [(key, value) for key, _, value in split]
    scales = [(key, value) for key, value in pairs if key == SCALE and key not in table.rows()]
    decoding = decoding_of(codec, (*([(DECODER, decoder)] if decoder else []), *scales))
    get_codec(str(decoding))  # its error says how to install a missing library
    options = table.spelled([pair for pair in pairs if pair not in scales], f"{name}:{reader}")
    return Backend(
        name=_shortest_name(name, format_.info, decoding, reader, options),
        format=name,
        codec=codec,
        reader=reader,
        options=options,
        codec_options=decoding.options,
    )


def _decoder_and_reader(text: str, parts: Sequence[str], format_: Format, codec: str) -> tuple[str, str]:
    """Return the decoder ("" for the default) and the reader that the parts after the codec name."""
    readers = format_.readers()
    parts = [part for part in parts if part]
    decoders = [part for part in parts if part in DECODERS and part not in readers]
    others = [part for part in parts if part not in decoders]
    if unknown := [part for part in others if part not in readers]:
        choices = [*readers, *(DECODERS if has_decoders(codec) else ())]
        raise UnknownNameError.of(f"reader of {format_.info.name}", unknown[0], choices)
    if len(decoders) > 1 or len(others) > 1:
        raise UsageError(
            f"cannot read {text!r}",
            hint="Write FORMAT+CODEC:QUALITY:DECODER:READER, such as lmdb+jpeg:80:simplejpeg:direct.",
        )
    return (decoders[0] if decoders else ""), others[0] if others else format_.info.default_reader


def _shortest_name(
    container: str, info: FormatInfo, decoding: Decoding, reader: str, options: Sequence[tuple[str, str]]
) -> str:
    codec = decoding.codec
    full = f"{container}+{codec}"
    name = {backend: alias for alias, backend in ALIASES.items()}.get(
        full, container if codec == info.default_codec else full
    )
    if decoding.decoder != DEFAULT_DECODER:
        name += f":{decoding.decoder}"
    # The backends in memory are always written out: which of the two is the point. So is an order of its own.
    if reader != info.default_reader or container == "memory" or reader == STREAM:
        name += f":{reader}"
    pairs = [*options, *((key, value) for key, value in decoding.options if key != DECODER)]
    return name + ("?" + ",".join(f"{key}={value}" for key, value in pairs) if pairs else "")


def open_reader(store: Path | str, reader: str | None = None, **options: bool | int | str) -> Reader:
    """Open a store in this process, to use a reader on its own.

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

    Examples
    --------
    >>> import storebench
    >>> with storebench.open_reader("stores/mnist-train/lmdb+raw", "direct") as reader:
    ...     pixels, labels = reader[[3, 1, 2]]
    >>> pixels.shape
    (3, 28, 28, 1)
    """
    folder = Path(store)
    manifest = Manifest.read(folder)
    texts = {name: as_text(value) for name, value in options.items()}
    return get_format(manifest.format).reader(folder, manifest, reader, texts)
