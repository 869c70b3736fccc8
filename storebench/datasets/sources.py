"""Helpers for reading source files: clear errors, fingerprints, and the files of tar archives."""

import array
import errno
import gzip
import hashlib
import io
import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.system.reading import open_regular, read_small_file

# Sources up to this size are fingerprinted by content, larger ones by name, size and time.
WHOLE_CONTENT_BYTES = 64 << 20

MOST_FILE_BYTES = 256 << 20  # most bytes of a source file that is read whole; CIFAR-10's batches have 31 MB

Statuses = npt.NDArray[np.uint64]
"""What the system says of n files, uint64 [n, 6]: device, inode, mode, size, times of modification and change in ns.

A file of which it says nothing has mode 0, and the number of the error as its size.
"""

_MODE, SIZE, _MTIME = 2, 3, 4
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


def unreadable(path: Path, error: OSError) -> Refusal:
    """Return the error for a source file that the system refuses to read."""
    reason = error.strerror or str(error)
    if os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114 - Path raises for a long name
        what = f"a link that leads nowhere ({reason})"
        return CorruptDataError(what, where=path, hint="Remove the link.")
    hint = "Check its permissions and the disk."
    if isinstance(error, FileNotFoundError):
        hint = "Check the path; a list's paths begin at its folder."
    return DataNotFoundError(f"cannot be read ({reason})", where=path, hint=hint)


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


def names_digest(root: Path, names: Sequence[str], rows: Statuses) -> str:
    """Return a digest that identifies files: their names and sizes, and content or, of more than 64 MiB, times."""
    regular = (rows[:, _MODE] & np.uint64(0o170000)) == np.uint64(stat.S_IFREG)
    whole = int(rows[regular, SIZE].sum()) <= WHOLE_CONTENT_BYTES
    digest = hashlib.blake2b(digest_size=16)
    facts = rows[:, (SIZE, _MTIME)].astype(np.int64).tolist()
    for name, path, readable, (size, time) in zip(names, paths_of(root, names), regular, facts, strict=True):
        content = b""
        try:
            if whole and readable:
                content = read_file(Path(path), most_bytes=WHOLE_CONTENT_BYTES)
            identity = (size, None if whole else time) if readable else ("unreadable",)
        except (CorruptDataError, DataNotFoundError):
            identity = ("unreadable",)
        digest.update(fingerprint(name, *identity).encode() + content)
    return digest.hexdigest()


def files_digest(files: Sequence[Path]) -> str:
    """Return the digest of some files by their names below a common folder."""
    root = Path(os.path.commonpath([file.parent for file in files]))
    names = [os.path.relpath(file, root) for file in files]
    return names_digest(root, names, statuses(map(str, files)))


@dataclass(frozen=True, slots=True)
class Member:
    """One file in an archive: `size` bytes at `offset` of the stream."""

    name: str
    offset: int
    size: int
    plain: bool = True  # no link, and before the first end marker, as every program reads it


def members(
    stream: BinaryIO,
    where: str,
    start: int = 0,
    end: int | None = None,
    *,
    suffixes: tuple[str, ...] = (),
    others: list[str] | None = None,
) -> Iterator[Member]:
    """Yield the files of the tar archives in ``stream[start:end]``, in order, and links to them.

    Other members with one of `suffixes` are refused; the names of the rest are appended to `others`.
    """
    limit = stream.seek(0, os.SEEK_END) if end is None else end
    contents: dict[str, Member] = {}
    for info, is_first in _headers(stream, where, start, limit):
        if info.isreg() and not info.issparse():
            yield Member(info.name, info.offset_data, info.size, is_first)
        elif not info.isdir():
            is_link = info.islnk() or info.issym()
            if is_link and not contents:  # without links, a million names would take memory for nothing
                contents = _contents(stream, where, start, limit)
            if content := contents.get(posixpath.normpath(info.name)):
                yield Member(info.name, content.offset, content.size, plain=False)
            elif info.name.lower().endswith(suffixes):
                which = (
                    f"a link to {info.linkname}, which is no file in it" if is_link else "not a regular file"
                )
                what, hint = (
                    f"its member {info.name!r} is {which}",
                    "Pack the files themselves: tar -h, no -S.",
                )
                raise CorruptDataError(what, where=where, hint=hint)
            elif others is not None:
                others.append(info.name)


def _contents(stream: BinaryIO, where: str, start: int, limit: int) -> dict[str, Member]:
    """Return the content of each file, and of each link to one, by the name."""
    contents: dict[str, Member] = {}
    count = -1
    # Again until no link is new: a link may name one behind it.
    while count < (count := len(contents)):
        for info, _ in _headers(stream, where, start, limit):
            name = posixpath.normpath(info.name)
            folder = posixpath.dirname(name) if info.issym() else ""
            target = contents.get(posixpath.normpath(posixpath.join(folder, info.linkname)))
            if info.isreg() and not info.issparse():
                contents[name] = Member(name, info.offset_data, info.size)
            elif target is not None:
                contents[name] = target
    return contents


def _headers(stream: BinaryIO, where: str, start: int, limit: int) -> Iterator[tuple[tarfile.TarInfo, bool]]:
    """Yield the headers of an archive and of those that follow it, and whether they are of the first one."""
    at = start
    while at < limit or at == start:
        stream.seek(begin := at)
        try:
            with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8") as archive:
                while (info := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined] # a million of them would take a gigabyte
                    if not info.issparse() and info.offset_data + info.size > limit:
                        raise _broken_tar(where, f"truncated: a member of {info.size:,} bytes does not fit")
                    yield info, begin == start
                end = at = archive.offset
        except (tarfile.TarError, ValueError) as error:
            raise _broken_tar(where, f"not a tar archive, or a truncated one ({error})") from error
        # An archive ends with empty blocks; tarfile takes damage for the end, too.
        stream.seek(at)
        while at < limit and not stream.read(tarfile.BLOCKSIZE).strip(b"\0"):
            at += tarfile.BLOCKSIZE
        if at == end:
            follows = begin == at > start
            what = "other content than a tar archive" if follows else "truncated or damaged: no valid header"
            raise _broken_tar(where, f"{what} at byte {at:,}")


def _broken_tar(where: str, what: str) -> CorruptDataError:
    return CorruptDataError(what, where=where, hint="Replace it by the original archive.")
