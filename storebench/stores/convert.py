"""Write a dataset into a store: encode in parallel, write in order, read back, then show it to the world.

What is at the store's place already decides what happens:

=============================  ==================  ================  =============
there                          `Replace.NEVER`     `Replace.STALE`   `Replace.YES`
=============================  ==================  ================  =============
a whole store, same samples    is returned         is returned       is rebuilt
a store, other samples         `OutputError`       is rebuilt        is rebuilt
another schema version         its error, exit 3   same              is rebuilt
a store with damaged files     is rebuilt          is rebuilt        is rebuilt
a folder without a manifest    its error, exit 5   same              is rebuilt
=============================  ==================  ================  =============
"""

import contextlib
import datetime as dt
import enum
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench._version import __version__
from storebench.codecs import get_codec
from storebench.datasets import open_dataset
from storebench.datasets.base import Dataset, DatasetSpec
from storebench.digests import DIGEST_BYTES, DigestTable, set_digest
from storebench.errors import (
    CorruptDataError,
    CorruptStoreError,
    OutputError,
    SchemaVersionError,
    from_os_error,
)
from storebench.filesystem import sync
from storebench.formats import Backend, get_format
from storebench.formats.common import save_array
from storebench.manifest import DIGESTS_NAME, MANIFEST_NAME, Manifest, StoreSpec
from storebench.progress import Advance, Progress, Say, mute, silent
from storebench.stores.encode import Encoder, encode
from storebench.stores.find import Phases, Store, measure_sizes, open_store, store_path, when_made
from storebench.stores.samples import StoreSamples
from storebench.stores.staging import blaming, publish, staged, temporary_folder, tidy
from storebench.stores.verify import verify_samples

FORCE = "Replace it with 'storebench convert --force'."


class Replace(enum.StrEnum):
    """What may be removed to make place for a store; see the table above."""

    NEVER = "never"
    STALE = "stale"
    YES = "yes"


@dataclass(frozen=True, kw_only=True)
class How:
    """How a store is built; none of it changes what is in it.

    Attributes
    ----------
    processes
        How many processes encode; None decides by what encoding costs.
    replace
        What may be removed to make place.
    verify
        Whether every sample is read back before the store is shown.
    progress
        Shows how far it is.
    say
        Is given lines that a person who waits should see.
    """

    processes: int | None = None
    replace: Replace = Replace.NEVER
    verify: bool = True
    progress: Progress = silent
    say: Say = mute


def ensure_store(
    spec: DatasetSpec,
    backend: Backend,
    stores: Path,
    *,
    data_root: Path | None = None,
    how: How | None = None,
) -> Store:
    """Return the store of `spec` that `backend` reads, building it if it is not there.

    Parameters
    ----------
    spec
        Which samples.
    backend
        Which format and codec.
    stores
        The folder of all stores.
    data_root
        Where the datasets' files are; see `open_dataset`.
    how
        How to build. By default a store of other samples is replaced: to
        people who run benchmarks a store is a cache.

    Raises
    ------
    StorebenchError
        See `convert` and `open_dataset`.
    """
    dataset = open_dataset(spec, data_root)
    return convert(dataset, spec, backend, stores, how=how or How(replace=Replace.STALE))


def convert(
    dataset: Dataset, spec: DatasetSpec, backend: Backend, stores: Path, *, how: How | None = None
) -> Store:
    """Return the store of `dataset` that `backend` reads in the folder `stores`, building it if need be.

    An interrupt, a full disk, a damaged image: nothing is left behind, and
    what was there before stays.

    Raises
    ------
    CorruptDataError
        A sample cannot be read; it is named.
    OutputError, DiskFullError
        The store cannot be written, or there is one of other samples in its place.
    SchemaVersionError, CorruptStoreError
        Something else is in its place.
    DigestMismatchError
        Reading back gave other samples than were written.
    """
    return convert_to(dataset, backend, store_path(stores, spec, backend), how=how)


def convert_to(dataset: Dataset, backend: Backend, target: Path, *, how: How | None = None) -> Store:
    """Return the store of `dataset` that `backend` reads in the folder `target`, building it if need be.

    See `convert`. Of a `StoreSamples` it is a conversion of that store: what ``build_s`` and the phases time
    is reading it, decoding, encoding, writing and syncing.
    """
    how = how or How()
    # Nothing is locked to use a store that is there: its folder may be read-only.
    found = None if how.replace is Replace.YES else _usable(target, dataset)
    if found is not None:
        tidy(target.parent, when_made, how.say)
        return found
    try:
        with staged(target, when_made, how.say):
            return _existing(target, dataset, how) or _build(dataset, backend, target, how)
    except OSError as error:
        raise from_os_error(error, target) from error


def _usable(target: Path, dataset: Dataset) -> Store | None:
    """Return the store at `target` if it is whole and this dataset's."""
    with contextlib.suppress(CorruptStoreError, SchemaVersionError):
        store = open_store(target)
        if store.manifest.dataset.fingerprint == dataset.info.fingerprint:
            return store
    return None


def _existing(target: Path, dataset: Dataset, how: How) -> Store | None:
    """Return the store at `target` if it is this dataset's; None if a new one may take its place.

    Whoever waited for the lock may find here what the other process has built.
    """
    if how.replace is Replace.YES or not target.exists():
        return None
    try:
        manifest = Manifest.read(target)
    except (SchemaVersionError, CorruptStoreError) as error:
        raise type(error)(error.what, where=error.where, hint=FORCE) from error
    if manifest.dataset.fingerprint != dataset.info.fingerprint:
        if how.replace is Replace.NEVER:
            raise OutputError("the store there holds other samples", where=target, hint=FORCE)
        how.say(f"{target}: holds other samples than are asked for now; building it anew")
        return None
    try:
        return open_store(target)
    except CorruptStoreError as error:
        how.say(f"{error.where}: {error.what}; building the store anew")
        return None


def _build(dataset: Dataset, backend: Backend, target: Path, how: How) -> Store:
    if not len(dataset):
        raise CorruptDataError("the dataset has no samples", where=dataset.info.name)
    with temporary_folder(target) as folder, blaming(target, folder):
        with how.progress(f"converting {target.name}") as advance:
            written = _write(dataset, backend, folder, how.processes, advance)
        save_array(folder / DIGESTS_NAME, written.digests)
        manifest = _manifest(dataset, backend, folder, written)
        if how.verify:
            with how.progress(f"verifying {target.name}") as advance:
                verify_samples(folder, manifest, written.digests, None, advance)
        manifest.write(folder)
        for name in (DIGESTS_NAME, MANIFEST_NAME):
            sync(folder / name)
        publish(folder, target)
    return Store(path=target, manifest=manifest, built=True, phases=written.phases)


@dataclass(frozen=True, kw_only=True)
class _Written:
    digests: DigestTable
    payload_bytes: int
    build_s: float
    phases: Phases


def _write(
    dataset: Dataset, backend: Backend, folder: Path, processes: int | None, advance: Advance
) -> _Written:
    codec = get_codec(backend.codec)
    # A lossless conversion keeps its source's digests: making them is no part of its work.
    known = dataset.digests if isinstance(dataset, StoreSamples) and codec.lossless else None
    encoder = Encoder(dataset=dataset, codec=codec, digest=known is None)
    spec = StoreSpec(dataset=dataset.info, format=backend.format, codec=backend.codec)
    digests = np.empty((len(dataset), DIGEST_BYTES), np.uint8) if known is None else known
    payload_bytes = done = 0
    make_s = write_s = 0.0
    workers = set()
    started = time.perf_counter()
    with (
        contextlib.closing(encode(encoder, processes)) as chunks,
        get_format(backend.format).writer(folder, spec) as writer,
    ):
        for chunk in chunks:
            writing = time.perf_counter()
            for payload, label in zip(chunk.payloads, chunk.labels, strict=True):
                writer.append(payload, label)
                payload_bytes += len(payload)
            write_s += time.perf_counter() - writing
            make_s += chunk.spent_s
            workers.add(chunk.process)
            if known is None:
                rows = np.frombuffer(chunk.digests, np.uint8).reshape(-1, DIGEST_BYTES)
                digests[done : done + len(rows)] = rows
            done += len(chunk.labels)
            advance(done, len(dataset))
        closing = time.perf_counter()
    ended = time.perf_counter()
    return _Written(
        digests=digests,
        payload_bytes=payload_bytes,
        build_s=ended - started,
        phases=Phases(make_s=make_s, write_s=write_s, sync_s=ended - closing, processes=len(workers)),
    )


def _manifest(dataset: Dataset, backend: Backend, folder: Path, written: _Written) -> Manifest:
    sizes = measure_sizes(folder, get_format(backend.format))
    return Manifest(
        dataset=dataset.info,
        format=backend.format,
        codec=backend.codec,
        count=len(dataset),
        payload_bytes=written.payload_bytes,
        file_bytes=sizes.file_bytes,
        bytes_on_disk=sizes.bytes_on_disk,
        samples_digest=set_digest(written.digests),
        lossless=get_codec(backend.codec).lossless,
        build_s=written.build_s,
        created_utc=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        storebench_version=__version__,
    )
