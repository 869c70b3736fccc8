"""A network file system by libnfs, which speaks NFS in this process: no mount, no root, no page cache on this side."""

import ctypes
import errno
import functools
import os
import secrets
import threading
import uuid
from typing import Any
from urllib.parse import urlsplit

from storebench.errors import MissingDependencyError
from storebench.places.base import Client, MissingFileError, PlaceFailedError

_LIBRARY = "libnfs.so.13"
_VERSION = 4
_PIECE = 1 << 20  # the most that NFS-Ganesha serves by one request
_TIMEOUT_MS = 10_000
_RECONNECTS = 3

_pointer = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "nfs_init_context": (_pointer, ()),
    "nfs_destroy_context": (None, (_pointer,)),
    "nfs_get_error": (ctypes.c_char_p, (_pointer,)),
    "nfs_parse_url_dir": (_pointer, (_pointer, ctypes.c_char_p)),
    "nfs_destroy_url": (None, (_pointer,)),
    "nfs_set_timeout": (None, (_pointer, ctypes.c_int)),
    "nfs_set_autoreconnect": (None, (_pointer, ctypes.c_int)),
    "nfs4_set_client_name": (None, (_pointer, ctypes.c_char_p)),
    "nfs4_set_verifier": (None, (_pointer, ctypes.c_char_p)),
    "nfs_mount": (ctypes.c_int, (_pointer, ctypes.c_char_p, ctypes.c_char_p)),
    "nfs_open": (ctypes.c_int, (_pointer, ctypes.c_char_p, ctypes.c_int, _pointer)),
    "nfs_fstat64": (ctypes.c_int, (_pointer, _pointer, _pointer)),
    "nfs_close": (ctypes.c_int, (_pointer, _pointer)),
    "nfs_pread": (ctypes.c_int, (_pointer, _pointer, ctypes.c_uint64, ctypes.c_uint64, _pointer)),
}


class _Url(ctypes.Structure):
    _fields_ = (("server", ctypes.c_char_p), ("path", ctypes.c_char_p), ("file", ctypes.c_char_p))


class _Status(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("dev", "ino", "mode", "nlink", "uid", "gid", "rdev", "size")),
        ("rest", ctypes.c_uint64 * 9),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise MissingDependencyError(
            f"NFS needs {_LIBRARY}", hint="Install it, such as Debian's libnfs13."
        ) from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class NfsFolder(Client):
    """A folder that a server exports; each thread has a connection of its own, as libnfs demands."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._library = _library()
        self._threads = threading.local()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        handle, path = _pointer(), os.fsencode(f"/{key}")
        self._check(self._library.nfs_open(self._context(), path, os.O_RDONLY, ctypes.byref(handle)), key)
        try:
            if length is None:
                status = _Status()
                self._check(self._library.nfs_fstat64(self._context(), handle, ctypes.byref(status)), key)
                length = int(status.size)
            return self._read(handle, key, start, length)
        finally:
            self._library.nfs_close(self._context(), handle)

    def _read(self, handle: ctypes.c_void_p, key: str, start: int, length: int) -> bytes:
        content = ctypes.create_string_buffer(length)
        done = 0
        while done < length:
            got = self._check(
                self._library.nfs_pread(
                    self._context(),
                    handle,
                    start + done,
                    min(_PIECE, length - done),
                    ctypes.byref(content, done),
                ),
                key,
            )
            if not got:
                break
            done += got
        return content.raw[:done]

    def _context(self) -> int:
        """Return this thread's connection, mounted when it is first needed."""
        context: int | None = getattr(self._threads, "context", None)
        if context is None:
            library, parts = self._library, urlsplit(self.url)
            context = library.nfs_init_context()
            port = f"&nfsport={parts.port}" if parts.port else ""
            address = f"nfs://{parts.hostname}{parts.path}?version={_VERSION}{port}"
            url = library.nfs_parse_url_dir(context, address.encode())
            if not url:
                raise PlaceFailedError("libnfs cannot read the address", where=self.url)
            # Its own names are those of a process and a second: connections of two threads would replace each other.
            library.nfs4_set_client_name(context, f"storebench {uuid.uuid4().hex}".encode())
            library.nfs4_set_verifier(context, secrets.token_hex(4).encode())
            library.nfs_set_timeout(context, _TIMEOUT_MS)
            library.nfs_set_autoreconnect(context, _RECONNECTS)
            read = _Url.from_address(url)
            failed = library.nfs_mount(context, read.server, read.path)
            library.nfs_destroy_url(url)
            if failed:
                reason = (library.nfs_get_error(context) or b"").decode(errors="replace")
                library.nfs_destroy_context(context)
                raise PlaceFailedError(
                    f"there is no connection, or no such export ({reason.strip()})", where=self.url
                )
            self._threads.context = context
        assert context is not None
        return context

    def _check(self, result: int, key: str) -> int:
        """Return the result of a call, or raise for a negative error number."""
        if result in (-errno.ENOENT, -errno.ESTALE):
            raise MissingFileError("there is no such file", where=f"{self.url}/{key}")
        if result < 0:
            what = f"the server did not deliver it ({os.strerror(-result)})"
            raise PlaceFailedError(what, where=f"{self.url}/{key}")
        return result
