"""Start a command to which something happens, and tell how it ended.

``faults.c``, a library that is preloaded into the command and into everything that it starts, lets an operation on a
file fail. This module compiles it, starts the command in a session of its own, waits until all of its processes have
gone, and after a power cut takes away what no fsync covered.
"""

import contextlib
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.quick_cli import Command, CommandServer

SOURCE = Path(__file__).with_name("faults.c")

KINDS = ("kill", "torn", "power", "full", "eio", "int", "hup", "read")
"""What may happen at an operation; "read" is EIO from a call that reads, all others happen at calls that write."""

DEADLY = ("kill", "torn", "power")
SIGNALS = ("int", "hup")

ORPHAN_S = 15.0
"""A process that outlives its command by more than this is an orphan."""

HUNG_S = 180.0
_TOKEN = "FAULTS_TOKEN"
_CONTROL_BYTES = 4096
_CONTROL = struct.Struct("<6q")  # struct control in faults.c


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens, and at which operation (from 1); power may also fail at one more, which is after the end.

    At 0 it is the caller who lets it happen.
    """

    kind: str
    at: int = 0

    @property
    def reads(self) -> bool:
        """Whether its operation is one that reads."""
        return self.kind == "read"

    def __str__(self) -> str:
        return f"{self.kind} at operation {self.at}"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One operation on a file: its number in the command, the process, the function and the path."""

    number: int
    pid: int
    name: str
    path: Path


@dataclass(frozen=True)
class Place:
    """A folder of its own for one command: ``work`` is what it works in, and where its operations are counted."""

    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def temporary(self) -> Path:
        """TMPDIR of the command."""
        return self.work / "tmp"

    @classmethod
    def new(cls, parent: Path) -> "Place":
        place = cls(Path(tempfile.mkdtemp(dir=parent.resolve(), prefix="place-")))
        place.temporary.mkdir(parents=True)
        return place

    def remove(self) -> None:
        shutil.rmtree(self.folder)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a command ended."""

    code: int | None
    stdout: str
    stderr: str
    calls: tuple[Call, ...] = ()
    reads: tuple[Call, ...] = ()
    in_main: bool = False
    """Whether the fault happened to the command itself, and not to a process that it started."""
    orphans: tuple[str, ...] = ()
    segments: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Library:
    """The compiled ``faults.c``."""

    path: Path

    @classmethod
    def build(cls, folder: Path) -> "Library":
        """Compile it into `folder`; needs a C compiler and glibc."""
        path = folder / "faults.so"
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(path), str(SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{SOURCE.name} does not compile:\n{done.stderr}")
        return cls(path)

    def environment(self, place: Place, fault: Fault | None) -> dict[str, str]:
        """Return the variables that count the operations of a command, and let one fail."""
        kind = "count" if fault is None else fault.kind
        found = {
            "LD_PRELOAD": str(self.path),
            "FAULTS_ROOT": str(place.work),
            "FAULTS_CONTROL": str(place.folder / "control"),
            "FAULTS_LOG": str(place.folder / "calls"),
            "FAULTS_KIND": "eio" if kind == "read" else kind,
            "FAULTS_AT": str(0 if fault is None else fault.at),
        }
        if fault is not None and fault.reads:
            found["FAULTS_READS"] = "1"
        return found


class Running:
    """A command that was started, and everything that it starts in turn."""

    def __init__(
        self, process: Command | subprocess.Popen[bytes], place: Place, token: str, control: mmap.mmap
    ) -> None:
        self.process, self._place, self._token, self._control = process, place, token, control

    @property
    def main(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def family(self) -> list[psutil.Process]:
        """Return the other processes of the command that are there: those that have its variable."""
        return [process for process in _family(self._token) if process.pid != self.process.pid]

    def wait(self) -> int | None:
        """Wait for the end; after a power cut end all of its processes, and a hanging one after a while."""
        deadline = time.monotonic() + HUNG_S
        while True:
            try:
                return self.process.wait(0.02)
            except subprocess.TimeoutExpired:
                down = _CONTROL.unpack_from(self._control)[3]
                hung = time.monotonic() > deadline
                if not down and not hung:
                    continue
            self.process.kill()
            _kill(self._token)
            self.process.wait()
            return -signal.SIGKILL if down else None

    def end(self, fault: Fault | None = None) -> Ending:
        """Wait for the end of all of its processes, and return how the command ended to which `fault` happened."""
        code, orphans = self.wait(), _end_orphans(self._token)
        _, main, fired, down, *_ = _CONTROL.unpack_from(self._control)
        log = _read_log(self._place.folder / "calls")
        if fault is not None and fault.kind == "power" and fault.at > len(log.calls):
            fired = down = main  # after the command's last operation
        if down:
            _lose_unsynced(self._place.work, log.events)
        return Ending(
            code=code,
            stdout=(self._place.folder / "stdout").read_text(errors="replace"),
            stderr=(self._place.folder / "stderr").read_text(errors="replace"),
            calls=log.calls,
            reads=log.reads,
            in_main=fault is not None and (fault.at == 0 or (fired != 0 and fired == main)),
            orphans=orphans,
            segments=log.segments,
        )


@contextlib.contextmanager
def started(
    command: Sequence[str],
    place: Place,
    library: Library | None = None,
    fault: Fault | None = None,
    *,
    server: CommandServer | None,
    group: Path | None = None,
) -> Iterator[Running]:
    """Start `command` in ``place.work``: in a copy of the process of `server`, or an interpreter of its own."""
    token = uuid.uuid4().hex
    env = _environment(place, token)
    (place.folder / "control").write_bytes(bytes(_CONTROL_BYTES))
    (place.folder / "calls").write_bytes(b"")
    if library is not None:
        env |= library.environment(place, fault)
    with (
        (place.folder / "stdout").open("wb") as out,
        (place.folder / "stderr").open("wb") as err,
        (place.folder / "control").open("r+b") as file,
        mmap.mmap(file.fileno(), _CONTROL_BYTES) as control,
    ):
        process: Command | subprocess.Popen[bytes]
        if server is None:
            words = [sys.executable, "-m", "storebench", *command]
            process = subprocess.Popen(
                words, cwd=place.work, env=env, stdout=out, stderr=err, start_new_session=True
            )
        else:
            streams, limits = (out.fileno(), err.fileno()), {"group": str(group)} if group else None
            process = server.start(*command, cwd=place.work, env=env, streams=streams, limits=limits)
        try:
            yield Running(process, place, token, control)
        finally:
            _kill(token)
            process.wait()


def run(
    command: Sequence[str],
    place: Place,
    library: Library | None = None,
    fault: Fault | None = None,
    *,
    server: CommandServer,
) -> Ending:
    """Run `command` in ``place.work`` and return how it ended, once all its processes have gone."""
    with started(command, place, library, fault, server=server) as running:
        return running.end(fault)


def _environment(place: Place, token: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("STOREBENCH_", "FAULTS_"))
    }
    cache = place.folder.parent / "cache"
    return kept | {
        _TOKEN: token,
        "TMPDIR": str(place.temporary),
        "XDG_CACHE_HOME": str(cache),
        "MPLCONFIGDIR": str(cache / "matplotlib"),
        "OMP_NUM_THREADS": "1",
    }


def _family(token: str) -> list[psutil.Process]:
    """Return the processes of a command that are there: those that have its variable."""
    family = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended, or is another user's
            if process.environ().get(_TOKEN) == token:
                family.append(process)
    return family


def _kill(token: str) -> None:
    """Kill the processes of a command, and those that they start meanwhile."""
    while family := _family(token):
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)


def _end_orphans(token: str) -> tuple[str, ...]:
    """Wait for the processes that a command has left to end by themselves; end the others and return their names."""
    deadline = time.monotonic() + ORPHAN_S
    while left := _family(token):
        if time.monotonic() > deadline:
            names = tuple(str(process) for process in left)
            _kill(token)
            return names
        time.sleep(0.05)
    return ()


@dataclass(frozen=True)
class _Event:
    """A change of how much of a file has reached the disk."""

    what: str
    file: tuple[int, int] = field(default=(0, 0))
    size: int = 0


@dataclass(kw_only=True)
class _Log:
    """What the library wrote down."""

    calls: tuple[Call, ...] = ()
    reads: tuple[Call, ...] = ()
    events: list[_Event] = field(default_factory=list)
    segments: tuple[Path, ...] = ()


def _read_log(path: Path) -> _Log:
    calls: dict[str, list[Call]] = {"call": [], "read": []}
    events: list[_Event] = []
    segments: dict[Path, None] = {}
    for line in path.read_text(errors="surrogateescape").splitlines():
        what, _, rest = line.partition(" ")
        if what in calls:
            number, pid, name, where = rest.split(" ", 3)
            calls[what].append(Call(number=int(number), pid=int(pid), name=name, path=Path(where)))
        elif what == "event":
            name, device, inode, size = rest.split(" ")
            events.append(_Event(name, (int(device), int(inode)), int(size)))
        elif what == "shm":
            segments[Path(rest)] = None
    ordered = {what: tuple(sorted(found, key=lambda call: call.number)) for what, found in calls.items()}
    return _Log(calls=ordered["call"], reads=ordered["read"], events=events, segments=tuple(segments))


def _lose_unsynced(work: Path, events: Sequence[_Event]) -> None:
    """Cut every file to what an fsync has covered, as a machine may find them that lost its power.

    Names are kept as they are, and so are bytes that were overwritten in place: the disk is taken to have written
    folders in order, and old or new bytes of a file's synced part.
    """
    synced: dict[tuple[int, int], int] = {}
    for event in events:
        if event.what == "made":
            synced[event.file] = 0
        elif event.what == "written":
            synced.setdefault(event.file, event.size)
        elif event.what == "synced":
            synced[event.file] = event.size
        else:  # syncfs: all that was written until now
            synced.clear()
    for path in work.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        seen = path.stat()
        size = synced.get((seen.st_dev, seen.st_ino))
        if size is not None and seen.st_size > size:
            os.truncate(path, size)
