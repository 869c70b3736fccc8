"""Fetch MNIST and CIFAR-10 from their public mirrors: checked, never half written."""

import contextlib
import hashlib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from storebench._version import __version__
from storebench.errors import CorruptDataError, DataNotFoundError, from_os_error
from storebench.system.progress import Progress, silent
from storebench.system.whole_files import made_folder, open_whole

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
FILES = {"mnist": MNIST, "cifar10": (_CIFAR10_BINARY,)}


def fetch(name: str, folder: Path, progress: Progress = silent) -> list[Path]:
    """Fetch the files of a dataset into a folder, as far as they are not there, and return their paths."""
    return [fetch_file(file, folder, progress) for file in FILES[name]]


def fetch_file(remote: RemoteFile, folder: Path, progress: Progress = silent) -> Path:
    path = folder / remote.name
    reasons: dict[str, str] = {}
    try:
        if path.is_file():
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == remote.sha256:
                    return path
        with made_folder(folder):
            for url in remote.urls:
                host = urllib.parse.urlsplit(url).netloc
                try:
                    # The addresses are those of the lists above.
                    agent = {"User-Agent": f"storebench/{__version__}"}
                    request = urllib.request.Request(url, headers=agent)  # noqa: S310
                    with (
                        urllib.request.urlopen(request, timeout=TIMEOUT_S) as response,  # noqa: S310
                        open_whole(path) as file,
                    ):
                        _copy(response, file, remote, progress)
                except _FAILURES as error:
                    reasons[host] = str(getattr(error, "reason", error))
                except CorruptDataError as error:
                    reasons[host] = error.what
                else:
                    return path
            why = "; ".join(f"{host}: {reason}" for host, reason in reasons.items())
            raise DataNotFoundError(
                f"{remote.name} cannot be fetched ({why})",
                hint=f"Run this again with a network, or put {remote.name} into {folder} by hand.",
            )
    except OSError as error:
        raise from_os_error(error, path) from error


def _copy(response: BinaryIO, out: BinaryIO, remote: RemoteFile, progress: Progress) -> None:
    """Write the response, and refuse what is not the published file."""
    digest, done = hashlib.sha256(), 0
    # The connection may end in any way.
    with progress(f"fetch {remote.name}") as advance, contextlib.suppress(*_FAILURES):
        while block := response.read(1 << 18):
            out.write(block)
            digest.update(block)
            done += len(block)
            advance(done, remote.size)
    if done != remote.size:
        raise CorruptDataError(f"{done:,} of {remote.size:,} bytes")
    if digest.hexdigest() != remote.sha256:
        raise CorruptDataError("its SHA-256 is not the published one")
