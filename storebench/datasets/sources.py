"""Helpers for reading source files: reading with a clear error, index checks, fingerprints."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from storebench.errors import DataNotFoundError
from storebench.fileio.reading import read_small_file

WHOLE_CONTENT_BYTES = 64 << 20
"""Sources up to this size are fingerprinted by content, larger ones by name, size and time."""

MOST_FILE_BYTES = 256 << 20
"""Most bytes of a source file that is read whole; CIFAR-10's batches have 31 MB."""


def read_file(path: Path, *, most_bytes: int = MOST_FILE_BYTES) -> bytes:
    """Return the bytes of a source file.

    Raises
    ------
    DataNotFoundError
        The file cannot be read.
    CorruptDataError
        It is not a regular file, or is larger than `most_bytes`.
    """
    try:
        return read_small_file(path, most_bytes=most_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataNotFoundError:
    """Return the error for a source file that the system refuses to read."""
    return DataNotFoundError(
        f"cannot be read ({error.strerror or error})", where=path, hint="Check its permissions and the disk."
    )


def check_index(index: int, count: int) -> None:
    """Raise `IndexError` unless `index` is in ``range(count)``."""
    if not 0 <= index < count:
        raise IndexError(f"sample {index} of {count}")


def fingerprint(*parts: object) -> str:
    """Return a hexadecimal digest of the texts of `parts`, separated from each other."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        # A name whose bytes are not UTF-8 counts as those bytes.
        text = str(part).encode("utf-8", "surrogateescape")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)  # noqa: PTH116 - a million Path objects take seconds
    except OSError as error:
        raise unreadable(Path(path), error) from error


def files_digest(root: Path, files: Sequence[Path]) -> str:
    """Return a digest that identifies source files: their names below `root`, sizes, and content or times.

    Up to 64 MiB in all, the content is digested. Beyond that, reading everything
    would take longer than many benchmarks, so the modification time is used: a
    touched copy of a large source counts as a different one.
    """
    names = [(path.relative_to(root) if path.is_relative_to(root) else path).as_posix() for path in files]
    return names_digest(root, names)


def names_digest(root: Path, names: Sequence[str]) -> str:
    """Return the digest of `files_digest` for files that are named relative to `root`, or absolutely."""
    paths = [os.path.join(root, name) for name in names]  # noqa: PTH118 - see above
    stats = list(map(_status, paths))
    whole = sum(stat.st_size for stat in stats) <= WHOLE_CONTENT_BYTES
    digest = hashlib.blake2b(digest_size=16)
    for name, path, stat in zip(names, paths, stats, strict=True):
        digest.update(fingerprint(name, stat.st_size, None if whole else stat.st_mtime_ns).encode())
        if whole:
            digest.update(read_file(Path(path), most_bytes=WHOLE_CONTENT_BYTES))
    return digest.hexdigest()
