"""The contract of a place: files by key, and why it did not deliver one."""

import errno
import os
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple, Self

from storebench.errors import CellFailedError, from_os_error


class PlaceFailedError(CellFailedError):
    """A place does not answer, refuses, or serves something else than was stored."""


class MissingFileError(PlaceFailedError):
    """A place has no file of this name."""


_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
"""What a mount answers that works."""


class Mount(NamedTuple):
    """A folder that is a place, and the device that it was on at first."""

    place: str
    folder: Path
    device: int

    @classmethod
    def at(cls, place: str, folder: Path) -> Self:
        return cls(place, folder, folder.stat().st_dev)

    def lost(self) -> PlaceFailedError | None:
        """Return the error for a mount that has ended since; None if it has not."""
        probe = self.folder / f".{uuid.uuid4().hex}"
        try:
            stands = self.folder.stat().st_dev == self.device
            probe.mkdir()  # a mount may answer whatever only reads from its cache
            probe.rmdir()
        except OSError as error:
            stands = error.errno in _REFUSED
        if stands:
            return None
        return PlaceFailedError("the mount has ended, or its server does not answer", where=self.place)


class Client(ABC):
    """A client of one place, for all threads of a process; every method may raise `PlaceFailedError`.

    A key is a path with slashes below the place's own root.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a whole file, or `length` bytes of it from `start`; fewer only at its end."""


class Storage(Client):
    """A place that this machine can store files at, and list."""

    @abstractmethod
    def put(self, key: str, content: bytes | Path) -> None:
        """Store a file, in the stead of another one of its name."""

    @abstractmethod
    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of every file whose key begins with `prefix` and a slash."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete a file, if there is one."""


class Folder(Storage):
    """A folder of this machine, such as one that a server exports, or a mount; reading leaves no page in memory."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._folder = Path(url.removeprefix("file://"))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._folder / key
        try:
            with path.open("rb") as file:
                file.seek(start)
                content = file.read(length)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                return content
        except FileNotFoundError:
            raise MissingFileError("there is no such file", where=path) from None
        except OSError as error:
            raise PlaceFailedError(f"the mount did not deliver it ({error.strerror})", where=path) from None

    def put(self, key: str, content: bytes | Path) -> None:
        path = self._folder / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read_bytes() if isinstance(content, Path) else content)
        except OSError as error:
            raise from_os_error(error, path) from None

    def sizes(self, prefix: str) -> dict[str, int]:
        files = (path for path in (self._folder / prefix).rglob("*") if path.is_file())
        return {str(path.relative_to(self._folder)): path.stat().st_size for path in files}

    def delete(self, key: str) -> None:
        (self._folder / key).unlink(missing_ok=True)
