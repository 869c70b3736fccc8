"""Write a dataset into a store: encode in parallel, write in order, read back, then publish it."""

import contextlib
import datetime as dt
import enum
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storebench._version import __version__
from storebench.codecs import any_size, get_codec
from storebench.datasets import open_dataset
from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec
from storebench.datasets.files import Originals
from storebench.datasets.listing import listings_in
from storebench.datasets.names import line_of
from storebench.datasets.unreadable import counted
from storebench.digests import DIGEST_BYTES, DigestTable, set_digest
from storebench.errors import (
    CorruptDataError,
    CorruptStoreError,
    DataNotFoundError,
    OutputError,
    SchemaVersionError,
    from_os_error,
)
from storebench.formats import Backend, get_format
from storebench.formats.common import save_array
from storebench.record.manifest import DIGESTS_NAME, MANIFEST_NAME, NAMES_NAME, Manifest, StoreSpec
from storebench.stores.encode import Encoder, encode
from storebench.stores.find import Store, measure_sizes, open_store, store_path
from storebench.stores.staging import new_folder, staged
from storebench.stores.verify import verify_samples
from storebench.system.progress import Advance, Progress, Say, mute, silent
from storebench.system.scratch import sweep

FORCE = "Replace it with 'storebench convert --force'."


class Replace(enum.StrEnum):
    """The stores that may be removed to make room for another: none, those of other samples, or any."""

    NEVER = "never"
    STALE = "stale"
    YES = "yes"


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Settings of a build, none of which affects the store's content."""

    processes: int | None = None
    replace: Replace = Replace.NEVER  # stores that may be removed to make room
    verify: bool = True  # whether every sample is read back before the store is published
    progress: Progress = silent  # shows the progress
    say: Say = mute  # receives messages for a waiting user


def ensure_store(
    spec: DatasetSpec,
    backend: Backend,
    stores: Path,
    *,
    options: BuildOptions | None = None,
) -> Store:
    """Return the store of `spec` that `backend` reads, and build it if it does not exist."""
    options = options or BuildOptions(replace=Replace.STALE)
    dataset = open_dataset(spec, listings=listings_in(stores), progress=options.progress)
    return convert(dataset, spec, backend, stores, options=options)


def convert(
    dataset: Dataset,
    spec: DatasetSpec,
    backend: Backend,
    stores: Path,
    *,
    options: BuildOptions | None = None,
) -> Store:
    store = convert_to(dataset, backend, store_path(stores, spec, backend), options=options)
    listings_in(stores).flush()
    return store


def convert_to(
    dataset: Dataset, backend: Backend, target: Path, *, options: BuildOptions | None = None
) -> Store:
    """Return the store of `dataset` that `backend` reads in the folder `target`, and build it if needed."""
    options = options or BuildOptions()
    source = dataset
    dataset = Originals(source) if any_size(backend.codec) else source
    existing = None
    # Using an existing store takes no lock, because its folder may be read-only.
    with contextlib.suppress(CorruptStoreError, SchemaVersionError, OutputError):
        existing = _existing(target, dataset, replace(options, say=mute))
    if existing is not None:
        sweep(target.parent)
        return existing
    try:
        with staged(target, options.say):
            return _existing(target, dataset, options) or _build(dataset, backend, target, options)
    except OSError as error:
        raise from_os_error(error, target) from error
    except (CorruptDataError, DataNotFoundError) as error:
        raise counted(error, source, options.progress) from None


def _existing(target: Path, dataset: Dataset, options: BuildOptions) -> Store | None:
    """Return the store at `target` if it is this dataset's; None if a new one may replace it."""
    if options.replace is Replace.YES or not target.exists():
        return None
    try:
        manifest = Manifest.read(target)
    except (SchemaVersionError, CorruptStoreError) as error:
        raise type(error)(error.what, where=error.where, hint=FORCE) from error
    if manifest.dataset.fingerprint != dataset.info.fingerprint:
        change = _change(manifest.dataset, dataset.info)
        if options.replace is Replace.NEVER:
            raise OutputError(f"the existing store has other samples ({change})", where=target, hint=FORCE)
        options.say(f"{target}: the store has other samples than requested ({change}); rebuilding it")
        return None
    try:
        return open_store(target)
    except CorruptStoreError as error:
        options.say(f"{error.where}: {error.what}; rebuilding the store")
        return None


def _change(stored: DatasetInfo, wanted: DatasetInfo) -> str:
    """Return words for the first difference between the samples of a store and those that are wanted."""
    old, new = (
        {
            "unreadable files left out": info.provenance.skipped_files,
            "samples": info.count,
            "images": "x".join(map(str, info.image_shape)),
            "classes": info.num_classes,
            "origin": info.provenance.origin.value,
        }
        for info in (stored, wanted)
    )
    changes = (f"{name}: {old[name]}, now {new[name]}" for name in old if old[name] != new[name])
    return next(changes, "the files or their conversion have changed since it was built")


def _build(dataset: Dataset, backend: Backend, target: Path, options: BuildOptions) -> Store:
    for note in filter(None, (dataset.layout_note, dataset.skip_note, dataset.resize_note)):
        options.say(f"{target.name}: {note}")
    if not len(dataset):
        raise CorruptDataError("the dataset has no samples", where=dataset.info.name)
    with new_folder(target, NAMES_NAME, DIGESTS_NAME, MANIFEST_NAME) as folder:
        with options.progress(f"converting {target.name}") as advance:
            digests, manifest = _write(dataset, backend, folder, options, advance)
        save_array(folder / DIGESTS_NAME, digests)
        if options.verify:
            with options.progress(f"verifying {target.name}") as advance:
                verify_samples(folder, manifest, digests, None, advance)
        manifest.write(folder)
    return Store(path=target, manifest=manifest, built=True)


def _write(
    dataset: Dataset, backend: Backend, folder: Path, options: BuildOptions, advance: Advance
) -> tuple[DigestTable, Manifest]:
    """Write the data files; return the digests of the samples, uint8 [n, 16], and the description."""
    codec = get_codec(backend.codec)
    encoder = Encoder(dataset=dataset, codec=codec)
    spec = StoreSpec(dataset=dataset.info, format=backend.format, codec=backend.codec)
    storage_format = get_format(backend.format)
    digests = np.empty((len(dataset), DIGEST_BYTES), np.uint8)
    payload_bytes = done = 0
    squared_error = 0.0
    started = time.perf_counter()
    with (
        contextlib.closing(encode(encoder, options.processes)) as chunks,
        storage_format.writer_for(dataset, folder, spec) as writer,
        (folder / NAMES_NAME).open("wb") as names,
    ):
        for chunk in chunks:
            for payload, label in zip(chunk.payloads, chunk.labels, strict=True):
                writer.append(payload, label)
                payload_bytes += len(payload)
            rows = np.frombuffer(chunk.digests, np.uint8).reshape(-1, DIGEST_BYTES)
            digests[done : done + len(rows)] = rows
            squared_error += chunk.squared_error
            part = range(done, done + len(chunk.labels))
            names.writelines(line_of(dataset.name(index)) for index in part)
            done = part.stop
            advance(done, len(dataset))
    build_s = time.perf_counter() - started
    file_bytes, bytes_on_disk = measure_sizes(folder, storage_format)
    psnr_db = None  # where no pixel differs
    if squared_error:
        psnr_db = 10 * math.log10(255**2 * done * dataset.info.image_bytes / squared_error)
    manifest = Manifest(
        dataset=dataset.info,
        format=backend.format,
        codec=backend.codec,
        count=len(dataset),
        payload_bytes=payload_bytes,
        file_bytes=file_bytes,
        bytes_on_disk=bytes_on_disk,
        samples_digest=set_digest(digests),
        lossless=codec.lossless,
        psnr_db=psnr_db,
        build_s=build_s,
        created_utc=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        storebench_version=__version__,
    )
    return digests, manifest
