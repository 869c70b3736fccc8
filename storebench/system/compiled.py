"""Compile C source with this machine's compiler, once per source and user, and load the library."""

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import stat
import subprocess
from pathlib import Path

from storebench.errors import StorebenchError
from storebench.system.scratch import scratch_folder

_FLAGS = ("-O3", "-shared", "-fPIC", "-x", "c", "-")
_TIMEOUT_S = 60
_MODE = 0o755


def load_compiled(source: str, folder: Path | None) -> ctypes.CDLL | None:
    """Return the library that C source compiles to, from `folder` if it was compiled before."""
    compiler = _compiler()
    name = _name(source, compiler)
    known = None if folder is None else _load(folder / name)
    return known or _compile(source, compiler, folder, name)


def _compiler() -> list[str]:
    try:
        return shlex.split(os.environ.get("CC") or "cc")
    except ValueError:  # a quotation that does not end
        return ["cc"]


def _name(source: str, compiler: list[str]) -> str:
    """Return a file name that changes with everything that decides the library's content."""
    parts = "\0".join([source, *compiler, *_FLAGS, platform.machine()])
    return f"kernel-{hashlib.blake2b(parts.encode(), digest_size=10).hexdigest()}.so"


def _load(path: Path) -> ctypes.CDLL | None:
    """Load a library that only this user can have written."""
    try:
        about = path.stat()
        private = about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return ctypes.CDLL(str(path)) if private else None
    except OSError:
        return None


def _compile(source: str, compiler: list[str], folder: Path | None, name: str) -> ctypes.CDLL | None:
    """Compile and load; keep the library in `folder` if that can be written and executed, or compile it for now."""
    for parent in dict.fromkeys((folder, None)):
        with contextlib.suppress(OSError, StorebenchError, subprocess.SubprocessError):
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            with scratch_folder("kept", parent) as scratch:
                built = scratch / name
                command = [*compiler, *_FLAGS, "-o", str(built)]
                subprocess.run(
                    command, input=source.encode(), capture_output=True, timeout=_TIMEOUT_S, check=True
                )
                built.chmod(_MODE)
                library = ctypes.CDLL(str(built))
                if parent is not None:
                    built.replace(parent / name)
                return library
    return None
