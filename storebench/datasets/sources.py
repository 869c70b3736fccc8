"""Helpers for reading source files: clear errors, fingerprints, and the files of tar archives."""

import array
import contextlib
import errno
import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.fileio.reading import kind_of, open_regular, read_small_file

WHOLE_CONTENT_BYTES = 64 << 20
"""Sources up to this size are fingerprinted by content, larger ones by name, size, time, and the ends of their files."""

END_BYTES, MOST_ENDS = 4096, 1 << 16
"""First and last bytes of a file that identify it, and the most files that are looked at in this way."""

MOST_FILE_BYTES = 256 << 20  # most bytes of a source file that is read whole; CIFAR-10's batches have 31 MB

Statuses = npt.NDArray[np.uint64]
"""What the system says of n files, uint64 [n, 6]: device, inode, mode, size, times of modification and change in ns.

A file of which it says nothing has mode 0, and the number of the error as its size.
"""

_MODE, _SIZE, _MTIME, CTIME = 2, 3, 4, 5
Refusal = CorruptDataError | DataNotFoundError  # why a source file cannot be used


def read_file(path: Path, *, most_bytes: int = MOST_FILE_BYTES) -> bytes:
    try:
        return read_small_file(path, most_bytes=most_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def open_source(path: Path) -> io.BufferedReader:
    try:
        return open_regular(path)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataNotFoundError:
    """Return the error for a source file that the system refuses to read."""
    hint = "Check its permissions and the disk."
    if isinstance(error, FileNotFoundError):
        hint = "Check the path; a list's paths begin at its folder."
    return DataNotFoundError(f"cannot be read ({error.strerror or error})", where=path, hint=hint)


@contextmanager
def unzipping(path: Path, hint: str) -> Iterator[None]:
    """Name a gzip file in the errors of reading it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptDataError(
            f"a damaged or truncated gzip file ({error})", where=path, hint=hint
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def check_index(index: int, count: int) -> None:
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


def paths_of(root: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the paths of files that are named relative to `root`, or absolutely."""
    return (os.path.join(root, name) for name in names)  # noqa: PTH118 - a million Path objects take seconds


def statuses(paths: Iterable[str]) -> Statuses:
    """Return the status of files, one row each, without opening them."""
    flat = array.array("Q")
    for path in paths:
        flat.extend(status_row(path))
    return np.array(flat, np.uint64).reshape(-1, 6)


def status_row(path: str) -> tuple[int, ...]:
    try:
        return row_of(os.stat(path))  # noqa: PTH116 - a million Path objects take seconds
    except OSError as error:
        return (0, 0, 0, error.errno or errno.EIO, 0, 0)


def row_of(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return tuple(
        value % 2**64 for value in (status.st_dev, status.st_ino, status.st_mode, status.st_size, *times)
    )


def names_digest(root: Path, names: Sequence[str], rows: Statuses) -> tuple[str, Mapping[int, Refusal]]:
    """Return a digest that identifies files: names, sizes, and content or times; and why some cannot be read, by index."""
    regular = (rows[:, _MODE] & np.uint64(0o170000)) == np.uint64(stat.S_IFREG)
    refused: dict[int, Refusal] = {
        index: _refusal(os.path.join(root, names[index]), rows[index].tolist())  # noqa: PTH118 - names, not paths
        for index in np.flatnonzero(~regular).tolist()
    }
    sizes = rows[:, _SIZE].tolist()
    times = rows[:, _MTIME].astype(np.int64).tolist()
    whole = int(rows[regular, _SIZE].sum()) <= WHOLE_CONTENT_BYTES
    digest = hashlib.blake2b(digest_size=16)
    looked_at = ends_looked_at(len(names))
    for index, (name, path) in enumerate(zip(names, paths_of(root, names), strict=True)):
        content = b""
        if whole and index not in refused:
            try:
                content = read_file(Path(path), most_bytes=WHOLE_CONTENT_BYTES)
            except (CorruptDataError, DataNotFoundError) as error:
                refused[index] = error
        elif index in looked_at and index not in refused:
            content = _ends(path, sizes[index])
        if index in refused:
            digest.update(fingerprint(name, "unreadable").encode())
        else:
            digest.update(fingerprint(name, sizes[index], None if whole else times[index]).encode())
            digest.update(content)
    return digest.hexdigest(), refused


def files_digest(files: Sequence[Path]) -> str:
    """Return the digest of some files by their names below a common folder; one that cannot be read is an error."""
    root = Path(os.path.commonpath([file.parent for file in files]))
    names = [os.path.relpath(file, root) for file in files]
    digest, refused = names_digest(root, names, statuses(map(str, files)))
    for error in refused.values():
        raise error
    return digest


def ends_looked_at(count: int) -> range:
    """Return the files whose first and last bytes are part of a large dataset's digest, evenly spread; all of a few."""
    return range(0, count, max(1, -(-count // MOST_ENDS)))


def _ends(path: str, size: int) -> bytes:
    """Return the first and the last bytes of a file; none of one that cannot be read, which is found out later."""
    with contextlib.suppress(OSError, CorruptDataError, DataNotFoundError), open_regular(Path(path)) as file:
        return os.pread(file.fileno(), END_BYTES, 0) + os.pread(
            file.fileno(), END_BYTES, max(0, size - END_BYTES)
        )
    return b""


def _refusal(path: str, row: Sequence[int]) -> Refusal:
    """Return the reason why a special file cannot be read."""
    mode, number = row[_MODE], errno.EISDIR if stat.S_ISDIR(row[_MODE]) else row[_SIZE]
    if mode and not stat.S_ISDIR(mode):
        what, hint = f"{kind_of(mode)}, not an image file", "Take it out of the folder."
    elif not mode and os.path.islink(path):  # noqa: PTH114 - it may be a name that Path refuses
        what, hint = f"a link that leads nowhere ({os.strerror(number)})", "Remove the link."
    else:
        return unreadable(Path(path), OSError(number, os.strerror(number)))
    return CorruptDataError(what, where=path, hint=hint)


@dataclass(frozen=True, slots=True)
class Member:
    """One file in an archive: `size` bytes at `offset` of the stream."""

    name: str
    offset: int
    size: int


def members(
    stream: BinaryIO,
    where: str,
    start: int = 0,
    end: int | None = None,
    *,
    suffixes: tuple[str, ...] = (),
) -> Iterator[Member]:
    """Yield the regular files of the tar archive in ``stream[start:end]``, in order; names with `suffixes` must be."""
    limit = stream.seek(0, os.SEEK_END) if end is None else end
    stream.seek(start)
    try:
        with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8") as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined] # a million of them would take a gigabyte
                if info.offset_data + info.size > limit:
                    raise _broken_tar(where, f"truncated: a member of {info.size:,} bytes does not fit")
                if info.isreg() and not info.issparse():
                    yield Member(info.name, info.offset_data, info.size)
                elif not info.isdir() and info.name.lower().endswith(suffixes):
                    kind = _NO_FILES.get(info.type, "of another kind")
                    raise _broken_tar(where, f"its member {info.name!r} is {kind}, not a regular file")
            at = archive.offset
    except (tarfile.TarError, ValueError) as error:
        raise _broken_tar(where, f"not a tar archive, or a truncated one ({error})") from error
    # An archive ends with empty blocks; tarfile takes damage for the end, too.
    stream.seek(at)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise _broken_tar(where, f"truncated or damaged: no valid header at byte {at:,}")


_NO_FILES = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


def _broken_tar(where: str, what: str) -> CorruptDataError:
    return CorruptDataError(what, where=where, hint="Replace it by the original archive.")
