"""Fetch MNIST and CIFAR-10 from their public mirrors: checked, resumable, never half written."""

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from storebench._version import __version__
from storebench.errors import CorruptDataError, DataNotFoundError, DiskFullError, from_os_error
from storebench.filesystem import sync
from storebench.progress import Advance, Progress, silent

TIMEOUT_S = 10.0  # timeout for connecting, and for the next bytes

_FAILURES = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One published file; every one of `urls` serves the same bytes."""

    name: str
    urls: tuple[str, ...]
    size: int
    sha256: str


_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MNIST_FILES = {
    "train-images-idx3": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}

MNIST = tuple(
    RemoteFile(
        name=f"{name}-ubyte.gz",
        urls=tuple(f"{mirror}{name}-ubyte.gz" for mirror in _MNIST_MIRRORS),
        size=size,
        sha256=sha256,
    )
    for name, (size, sha256) in _MNIST_FILES.items()
)

_CIFAR10_BINARY = RemoteFile(
    name="cifar-10-binary.tar.gz",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    size=170_052_171,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_CIFAR10_PYTHON = RemoteFile(
    name="cifar-10-python.tar.gz",
    urls=(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/cifar-10-python.tar.gz",
    ),
    size=170_498_071,
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)

ALTERNATIVES = {"mnist": (MNIST,), "cifar10": ((_CIFAR10_BINARY,), (_CIFAR10_PYTHON,))}
"""For each dataset, alternative sets of files, each of which is the complete dataset; the preferred one first."""


class _OtherFile(Exception):  # noqa: N818 - never leaves this module
    """A mirror serves another file than the published one."""


@dataclass
class Fetcher:
    """Fetch files, and show the progress of each in bytes."""

    progress: Progress = silent
    timeout_s: float = TIMEOUT_S

    def fetch(self, name: str, folder: Path) -> list[Path]:
        alternatives = ALTERNATIVES[name]
        for files in alternatives[:-1]:
            try:
                return [self.fetch_file(file, folder) for file in files]
            except (DataNotFoundError, CorruptDataError):
                continue
        return [self.fetch_file(file, folder) for file in alternatives[-1]]

    def fetch_file(self, remote: RemoteFile, folder: Path) -> Path:
        """Fetch one file into `folder`, unless it exists, and return its path."""
        path = folder / remote.name
        part = path.with_name(path.name + ".part")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or mismatch(path, remote) is not None:
                self._download(remote, part)
                part.replace(path)
                sync(folder)
        except OSError as error:
            disk_error = from_os_error(error, path)
            if isinstance(disk_error, DiskFullError):
                part.unlink(missing_ok=True)  # to resume from it would only keep the disk full
            raise disk_error from error
        return path

    def _download(self, remote: RemoteFile, part: Path) -> None:
        reasons = []
        for url in remote.urls:
            host = urllib.parse.urlsplit(url).netloc
            for _ in range(3):
                try:
                    self._continue(remote, url, part)
                except (*_FAILURES, _OtherFile) as error:
                    reasons.append(f"{host}: {getattr(error, 'reason', error)}")
                    break
                wrong = mismatch(part, remote)
                if wrong is None:
                    return
                reasons.append(f"{host}: {wrong}")
                if part.stat().st_size >= remote.size:
                    part.unlink()
        raise _failure(remote, part, reasons)

    def _continue(self, remote: RemoteFile, url: str, part: Path) -> None:
        """Append the missing bytes to `part`, as many as this mirror delivers."""
        have = part.stat().st_size if part.exists() else 0
        if have >= remote.size:
            return
        headers = {"User-Agent": f"storebench/{__version__}"}
        headers |= {"Range": f"bytes={have}-"} if have else {}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own list of URLs
        with urllib.request.urlopen(request, timeout=self.timeout_s) as response:  # noqa: S310
            resumed = response.status == http.client.PARTIAL_CONTENT
            expected = f"bytes {have}-{remote.size - 1}/{remote.size}"
            if resumed and response.headers.get("Content-Range", "") != expected:
                raise _OtherFile("not the published file")
            with (
                part.open("ab" if resumed else "wb") as out,
                self.progress(f"fetch {remote.name}") as advance,
            ):
                _copy(response, out, remote.size, advance)
                out.flush()
                os.fsync(out.fileno())


def _copy(response: BinaryIO, out: BinaryIO, size: int, advance: Advance) -> None:
    """Write the response up to `size` bytes in all; stop early if the connection does."""
    done = out.tell()
    while done < size:
        try:
            block = response.read(min(1 << 18, size - done))
        except _FAILURES:
            return
        if not block:
            return
        out.write(block)
        done += len(block)
        advance(done, size)


def mismatch(path: Path, remote: RemoteFile) -> str | None:
    """Return a file's difference from the published one in words, or None if there is none."""
    size = path.stat().st_size
    if size != remote.size:
        return f"{size:,} of {remote.size:,} bytes"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == remote.sha256 else "its SHA-256 is not the published one"


def _failure(remote: RemoteFile, part: Path, reasons: list[str]) -> DataNotFoundError | CorruptDataError:
    why = "; ".join(dict.fromkeys(reasons))
    if any("published" in reason for reason in reasons):
        return CorruptDataError(
            f"the mirrors serve another file ({why})",
            where=remote.name,
            hint="Try again later, or get it from elsewhere by hand.",
        )
    return DataNotFoundError(
        f"{remote.name} cannot be fetched ({why})",
        hint=f"Run this again with a network, or put {remote.name} into {part.parent} by hand.",
    )
