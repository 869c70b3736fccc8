"""Helpers of several formats: labels and arrays in files, syncing a folder, errors of damage and of failed writes."""

import errno
import io
import itertools
import os
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.codecs import Codec, Payload
from storebench.datasets.base import Image
from storebench.errors import CorruptDataError, CorruptStoreError, OutputError, StorebenchError, from_os_error
from storebench.filesystem import sync, sync_file_system
from storebench.record.manifest import CONVERT_AGAIN
from storebench.system.reading import open_regular

MOST_SYNCS = 500  # files of a store that are synced one by one

# Errors that numpy raises for a damaged file, or one that is not a .npy file.
NPY_ERRORS = (
    *(OSError, ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError),
    *(OverflowError, MemoryError, RecursionError, KeyError),
)


def damaged(what: str, where: Path) -> CorruptStoreError:
    """Return the error for a store that is incomplete or does not match its manifest."""
    return CorruptStoreError(what, where=where, hint=CONVERT_AGAIN)


def wrong_length(sample: int, size: int, expected: int, where: Path) -> CorruptStoreError:
    """Return the error for a payload of the wrong length in bytes."""
    return damaged(f"sample {sample} has {size} bytes, not {expected}", where)


def load_array(path: Path) -> npt.NDArray[np.generic]:
    """Read a .npy file of the store into private memory."""
    try:
        with open_regular(path) as file:
            array: npt.NDArray[np.generic] = np.load(file, allow_pickle=False)
    except CorruptDataError as error:
        raise damaged(error.what, path) from None
    except FileNotFoundError:
        raise damaged("the file is missing", path) from None
    except NPY_ERRORS as error:
        raise damaged(f"the file cannot be read ({error})", path) from error
    return array


def decode_sample(codec: Codec, payload: Payload, image: Image, sample: int, path: Path | str) -> None:
    """Decode the payload of a sample that `path` holds; raise `CorruptStoreError` if it does not decode."""
    try:
        codec.decode_into(payload, image)
    except CorruptDataError as error:
        raise damaged(f"sample {sample}: {error.what}", Path(path)) from error


def save_array(path: Path, array: npt.NDArray[np.generic]) -> None:
    """Write `array` as a .npy file. Unlike `numpy.save`, report why the disk refuses it."""
    content = io.BytesIO()
    np.save(content, array)
    path.write_bytes(content.getbuffer())


def load_integers(path: Path) -> npt.NDArray[np.int64]:
    """Read a .npy file of the store as int64 of any shape; raise `CorruptStoreError` if it holds another type."""
    array = load_array(path)
    if not np.can_cast(array.dtype, np.int64, "safe"):
        raise damaged(f"{array.dtype} where int64 was expected", path)
    return array.astype(np.int64, copy=False)


def load_labels(path: Path, count: int) -> npt.NDArray[np.int64]:
    """Read labels that `numpy.save` wrote; raise `CorruptStoreError` if they are not int64 [count]."""
    labels = load_integers(path)
    if labels.shape != (count,):
        raise damaged(f"labels {labels.dtype}{labels.shape} where int64({count},) was expected", path)
    return labels


def sync_folder(folder: Path) -> None:
    """Sync every file and folder under `folder` to disk."""
    paths = [folder, *itertools.islice(folder.rglob("*"), MOST_SYNCS)]
    if len(paths) > MOST_SYNCS:  # one call per file system is faster
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync_file_system(handle, folder)
        finally:
            os.close(handle)
    else:
        for path in paths:
            sync(path)


def write_error(error: Exception, where: Path) -> StorebenchError:
    """Return the one line for a library's failed write, which often has its errno in words only."""
    words = str(error).replace("database or disk is full", os.strerror(errno.ENOSPC))  # SQLite's words
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO):
        if os.strerror(number) in words:
            return from_os_error(OSError(number, os.strerror(number)), where)
    return OutputError(f"writing failed ({error})", where=where)


@contextmanager
def write_errors(where: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Turn a library's errors of these `kinds` into ours while writing to `where`."""
    try:
        yield
    except kinds as error:
        raise write_error(error, where) from error
