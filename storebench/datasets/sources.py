"""What every reader of source files needs: reading with a clear error, index checks, fingerprints."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from storebench.errors import DataNotFoundError
from storebench.fileio.reading import read_small_file

WHOLE_CONTENT_BYTES = 64 << 20
"""Sources up to this size are told apart by their content, larger ones by name, size and time."""

MOST_FILE_BYTES = 256 << 20
"""What a source file that is read whole may have: CIFAR-10's batches have 31 MB."""


def read_file(path: Path, *, most_bytes: int = MOST_FILE_BYTES) -> bytes:
    """Return the bytes of a source file.

    Raises
    ------
    DataNotFoundError
        It cannot be read.
    CorruptDataError
        It is no regular file, or larger than `most_bytes`.
    """
    try:
        return read_small_file(path, most_bytes=most_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataNotFoundError:
    """Return the error for a source file that the system does not let us read."""
    return DataNotFoundError(
        f"cannot be read ({error.strerror or error})", where=path, hint="Check its permissions and the disk."
    )


def check_index(index: int, count: int) -> None:
    """Raise `IndexError` unless `index` is in ``range(count)``."""
    if not 0 <= index < count:
        raise IndexError(f"sample {index} of {count}")


def fingerprint(*parts: object) -> str:
    """Return the hexadecimal digest of the texts of `parts`, each kept apart from the next."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        # A name of bytes that are no UTF-8 counts as those bytes.
        text = str(part).encode("utf-8", "surrogateescape")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise unreadable(path, error) from error


def files_digest(root: Path, files: Sequence[Path]) -> str:
    """Return a digest of source files: their names below `root`, their sizes and what tells them apart.

    Up to 64 MiB in all that is their content. Beyond, reading everything would
    take longer than many a benchmark: the time of the last change has to do,
    so a touched copy of a large source counts as another one.
    """
    stats = [_status(path) for path in files]
    whole = sum(stat.st_size for stat in stats) <= WHOLE_CONTENT_BYTES
    digest = hashlib.blake2b(digest_size=16)
    for path, stat in zip(files, stats, strict=True):
        name = path.relative_to(root).as_posix()
        digest.update(fingerprint(name, stat.st_size, None if whole else stat.st_mtime_ns).encode())
        if whole:
            digest.update(read_file(path, most_bytes=WHOLE_CONTENT_BYTES))
    return digest.hexdigest()
