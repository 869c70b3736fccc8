"""Read every sample of a store back and compare it with what was written."""

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.arrays import Pixels
from storebench.codecs import any_size, get_codec
from storebench.digests import DigestTable, sample_digest
from storebench.errors import CorruptDataError, CorruptStoreError, DigestMismatchError, IntegrityError
from storebench.formats import Backend, Reader, get_format, parse_backend
from storebench.formats.base import Batch, Indices
from storebench.formats.registry import traits_of
from storebench.record.manifest import CONVERT_AGAIN, NAMES_NAME, Manifest, read_names
from storebench.stores.find import check_sizes, read_digest_table
from storebench.system.progress import Advance, Progress, silent

BATCH_BYTES = 16 << 20  # decoded bytes to read and compare at a time
BATCH_SAMPLES = 1024
THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Verification:
    store: Path  # the store's folder
    manifest: Manifest  # the store's own description
    backend: str  # the reader that was used; without a reader, if the default one would hold all pixels
    count: int  # number of samples that were read back, all equal to what was written
    seconds: float  # duration in seconds


def verify_store(store: Path, reader: str | None = None, *, progress: Progress = silent) -> Verification:
    """Read every sample back, decode it and compare its digest with the one from writing."""
    manifest = Manifest.read(store)
    _backend(manifest, reader)  # a wrong reader or option is refused before any sample is read
    table = read_digest_table(store, manifest)
    check_sizes(store, manifest)
    get_format(manifest.format).check_structure(store)
    if (store / NAMES_NAME).exists():
        read_names(store, manifest)
    with progress(f"verifying {store.name}") as advance:
        return verify_samples(store, manifest, table, reader, advance)


def verify_samples(
    store: Path,
    manifest: Manifest,
    table: DigestTable,
    reader: str | None,
    advance: Advance,
) -> Verification:
    """Compare every sample of `store` with its row of `table`, uint8 [count, 16]; see `verify_store`."""
    started = time.perf_counter()
    backend = _backend(manifest, reader)
    height, width, channels = manifest.dataset.image_shape
    step = max(1, min(BATCH_SAMPLES, BATCH_BYTES // manifest.dataset.image_bytes))
    pixels = np.empty((step, height, width, channels), np.uint8)
    with _open(store, manifest, backend) as opened, ThreadPoolExecutor(THREADS) as threads:
        for first in range(0, manifest.count, step):
            indices = np.arange(first, min(first + step, manifest.count), dtype=np.int64)
            payloads = None
            if opened.payload_codec == "raw":
                opened.fetch_into(indices, pixels[: len(indices)])
            else:
                payloads = opened.fetch(indices)
            labels, codec = opened.labels[indices], opened.payload_codec
            fetched = _Fetched(indices=indices, labels=labels, payloads=payloads, codec=codec, pixels=pixels)
            find = functools.partial(_first_error, fetched, store, manifest, table)
            for error in threads.map(find, np.array_split(np.arange(len(indices)), THREADS)):
                if error is not None:
                    raise error
            advance(int(indices[-1]) + 1, manifest.count)
    return Verification(
        store=store,
        manifest=manifest,
        backend=str(backend) if backend is not None else f"{manifest.format}+{manifest.codec}",
        count=manifest.count,
        seconds=time.perf_counter() - started,
    )


def _backend(manifest: Manifest, reader: str | None) -> Backend | None:
    """Return the backend to read with; None if no reader was named and the default one would hold all pixels."""
    store_name = f"{manifest.format}+{manifest.codec}"
    if reader is not None:
        return parse_backend(f"{store_name}:{reader}")
    default = parse_backend(store_name)
    return None if traits_of(default).holds_pixels else default


def _open(store: Path, manifest: Manifest, backend: Backend | None) -> Reader:
    storage_format = get_format(manifest.format)
    if backend is None:
        reader = storage_format.auditor(store, manifest)
    else:
        reader = storage_format.reader(store, manifest, backend.reader, dict(backend.options))
    if len(reader.labels) != manifest.count:
        reader.close()
        raise CorruptStoreError(
            f"the store has {len(reader.labels)} labels for {manifest.count} samples",
            where=store,
            hint=CONVERT_AGAIN,
        )
    return reader


@dataclass(frozen=True, kw_only=True)
class _Fetched:
    """One batch as fetched from the store; without payloads, the pixels are already decoded."""

    indices: Indices
    labels: npt.NDArray[np.int64]
    payloads: list[bytes] | None
    codec: str
    pixels: Batch


def _first_error(
    fetched: _Fetched, store: Path, manifest: Manifest, table: DigestTable, rows: Indices
) -> IntegrityError | None:
    """Return the error for the first of some rows that differs from what was written."""
    codec = get_codec(fetched.codec)
    locate = functools.partial(get_format(manifest.format).locate, store, manifest)
    for row in rows:
        index, label = int(fetched.indices[row]), int(fetched.labels[row])
        pixels: Pixels = fetched.pixels[row]
        try:
            if fetched.payloads is not None and any_size(fetched.codec):
                pixels = np.frombuffer(fetched.payloads[row], np.uint8)
            elif fetched.payloads is not None:
                codec.decode_into(fetched.payloads[row], pixels)
        except CorruptDataError as error:
            what = f"sample {index} does not decode ({error.what})"
            return CorruptStoreError(what, where=locate(index), hint=CONVERT_AGAIN)
        written = table[index].tobytes()
        if sample_digest(pixels, label) != written:
            what = f"sample {index} is not as written: its content or its label, {label}, has changed"
            return DigestMismatchError(what, where=locate(index), hint=CONVERT_AGAIN)
    return None
