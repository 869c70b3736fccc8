"""End servers, proxies, mounts and clients in every phase of a run, cut connections, and fill the server's disk.

Each trial is a run on a real server of its own. Whatever ends: one line, the right exit code, nothing counted that was not
delivered, and no process, mount, folder or key is left.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from storebench.errors import EXIT_INTEGRITY, EXIT_INTERRUPTED
from storebench.filesystem import mounts_in
from storebench.record.lines import RECORDS_NAME, read_records
from storebench.record.schema import Status
from storebench.system.scratch import sweep
from tests.faults.invariants import KILLED, NOISE, run_problems
from tests.support.quick_cli import SERVER, Command
from tests.support.servers import missing

SEED = 2016
AT_ONCE = 2
LONGEST_S = 50.0
FULL_BYTES = 9 << 20  # the probe of 8 MiB fits, and the store after it does not
IMAGES = 250
RUN = ("--dataset", "mnist", "--synthetic", "--limit", str(IMAGES), "--compute", "none")

PHASES = {
    "start": ("starting a server", 0.5),
    "copy there": ("copying", 0.1),
    "open": ("", 0.3),
    "read": ("", 1.0),
    "copy back": ("", 0.5),
}
"""Phase -> what the run says when it begins, "" for that of a replicate, and the seconds within which a fault happens."""

CLIENT = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
VICTIMS = {
    "sshd": "[listener]",
    "ssh": "-s -- ",
    "sshfs": "sshfs",
    "weed": " server -dir",
    "filer": " server -dir",
    "mount": " mount -filer",
    "ganesha": "ganesha.nfsd",
    "proxy": "first_byte",
}
"""What may be killed beside the client -> a part of its command line."""

MOUNTS = ("up", "sshd", "ssh", "sshfs", "filer", "mount")
"""Victims with which a mount ends."""

SSH, WEED = "ssh:here?round-trip-ms=2", "weed:here"
S3, NFS = "s3:here?first-byte-ms=30", "nfs:here?round-trip-ms=2"
MOUNTED = "the mount of another process"

TABLE = {
    (SSH, "start"): ("kill", "term"),
    (SSH, "copy there"): ("kill", "full"),
    (SSH, "open"): ("kill", "int", "sshd", "ssh", "sshfs", "proxy"),
    (SSH, "read"): ("kill", "term", "sshd", "ssh", "sshfs", "proxy"),
    (f"copy:{SSH}", "copy back"): ("kill", "sshd", "ssh", "sshfs", "proxy"),
    (MOUNTED, "copy there"): ("kill", "up", "sshd", "sshfs", "proxy", "full"),
    (MOUNTED, "read"): ("up", "proxy"),
    (WEED, "open"): ("term", "filer", "mount"),
    (WEED, "read"): ("kill",),
    (S3, "copy there"): ("weed",),
    (S3, "read"): ("kill", "weed", "proxy"),
    (f"copy:{S3}", "copy back"): ("proxy",),
    (NFS, "open"): ("ganesha",),
    (NFS, "read"): ("kill", "proxy"),
}
"""Place and phase -> victims."""

TRIALS = [(place, phase, victim) for (place, phase), victims in TABLE.items() for victim in victims]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A command, with its standard error and its standard output."""

    command: Command
    errors: int
    output: int

    def heard(self, words: str = "") -> str:
        """Wait until it has said these words on standard error, or has ended; return what it said."""
        said = b""
        while not (words and words.encode() in said) and (piece := os.read(self.errors, 1 << 16)):
            said += piece
        return said.decode(errors="replace")

    def reach(self, steps: Path) -> str:
        """Wait until a replicate has begun, or the command has ended."""
        while not any(steps.glob(".unfinished-*")):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.command.wait(0.02)
                break
        return ""


@contextlib.contextmanager
def started(folder: Path, *words: str) -> Iterator[Running]:
    """Start ``storebench WORDS`` in a session of its own, with its temporary files in `folder`."""
    (errors, child_errors), (output, child_output) = os.pipe(), os.pipe()
    env = {**os.environ, "TMPDIR": str(folder / "tmp")}
    command = SERVER.start(*words, cwd=folder, env=env, streams=(child_output, child_errors), session=True)
    os.close(child_errors)
    os.close(child_output)
    try:
        yield Running(command=command, errors=errors, output=output)
    finally:
        command.kill()
        command.wait()
        os.close(errors)
        os.close(output)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    size = f"size={FULL_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def trial(folder: Path, stores: Path, place: str, phase: str, victim: str) -> list[str]:
    """Let `victim` end in a phase of a run that reads at `place`; return what does not hold afterwards."""
    delay_s = random.Random(f"{SEED} {place} {phase} {victim}").uniform(0, PHASES[phase][1])
    reader, there = "png:objects" if place in (S3, NFS) else "png", Trial(folder / "tmp")
    there.temporary.mkdir(parents=True)
    problems = []
    with contextlib.ExitStack() as stack:
        if victim == "full":
            stack.enter_context(small_disk(there.temporary))
        if place == MOUNTED:
            up = stack.enter_context(started(folder, "place", "up", "ssh", "--round-trip-ms", "2"))
            printed = os.read(up.output, 1 << 12).decode()
            assert printed, up.heard()
            place = printed.split()[1]
            there.sessions["up"] = up.command.pid
        words = ("run", reader, *RUN, "--stores", str(stores), "--place", place, "--out", "run")
        run = stack.enter_context(started(folder, *words))
        there.sessions["run"] = run.command.pid
        said = run.heard(PHASES[phase][0]) if PHASES[phase][0] else run.reach(folder / "run" / "steps")
        time.sleep(delay_s)
        there.know()
        if victim in CLIENT:
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.command.pid, CLIENT[victim])
        elif victim == "up":
            os.kill(there.sessions["up"], signal.SIGKILL)
        killed = victim not in VICTIMS or there.kill(VICTIMS[victim])
        said += run.heard()
        try:
            code: int | None = run.command.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            code = None
        if not killed and code != 0:  # on a busy machine, the run may have ended before
            problems.append(f"there was no {victim} to kill")
        problems += ending_problems(code, said, victim) + delivered_problems(folder / "run")
        if place.startswith("/") and victim != "up":
            os.kill(there.sessions["up"], signal.SIGTERM)
            up.command.wait(LONGEST_S)
        problems += there.left(swept=victim in ("kill", "up"))
    return problems


@dataclass
class Trial:
    """The folder for temporary files of one trial, and the sessions of its commands."""

    temporary: Path
    sessions: dict[str, int] = field(default_factory=dict)
    known: set[psutil.Process] = field(default_factory=set)
    begun: float = field(default_factory=lambda: time.time() - 1)

    def processes(self) -> Iterator[tuple[psutil.Process, str]]:
        """Yield the processes of the trial with their command lines; zombies have none."""
        for process in self.known:
            with contextlib.suppress(psutil.Error):
                if words := " ".join(process.cmdline()):
                    yield process, words
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.create_time() < self.begun:
                    continue
                words = " ".join(process.cmdline())
                own = str(self.temporary) in words or process.environ().get("TMPDIR") == str(self.temporary)
                if words and (own or os.getsid(process.pid) in self.sessions.values()):
                    yield process, words

    def know(self) -> None:
        """Remember what there is: the sessions of an SSH server outlive it, and have names of their own."""
        for process in [process for process, _ in self.processes()]:
            with contextlib.suppress(psutil.Error):
                self.known |= {process, *process.children(recursive=True)}

    def kill(self, part: str) -> bool:
        """Kill the processes with a part of their command line, and what they started; return whether there was one."""
        killed = [process for process, words in self.processes() if part in words]
        for process in killed:
            with contextlib.suppress(psutil.Error):
                for one in (process, *process.children(recursive=True)):
                    one.kill()
        return bool(killed)

    def left(self, *, swept: bool) -> list[str]:
        """Return the processes, mounts and files that are left, once processes have had time to end."""
        deadline = time.monotonic() + 5
        while True:
            if swept:
                sweep(self.temporary)  # as the next command does
            found = [words for _, words in self.processes()] + mounts_in(self.temporary)
            found = found or [str(path) for path in self.temporary.rglob("*")]
            if not found or time.monotonic() > deadline:
                return [f"left behind: {one}" for one in found]
            time.sleep(0.1)


def ending_problems(code: int | None, said: str, victim: str) -> list[str]:
    lines = said.splitlines()
    found = [f"standard error has {line!r}" for line in lines if NOISE.search(line)]
    if victim == "kill":
        return found if code in (KILLED, 0) else [*found, f"exit code {code}"]  # 0: it was faster
    if code == 0 and victim != "full":
        return found  # it had all that it needed
    reasons = [line for line in lines if line.startswith("storebench: ")]
    if len(reasons) != 1 or reasons[0] != lines[-1]:
        found.append(f"{len(reasons)} lines say why it ended: {lines[-3:]}")
    if code != (EXIT_INTERRUPTED if victim in CLIENT else EXIT_INTEGRITY):
        found.append(f"exit code {code}: {lines[-1:]}")
    if victim in MOUNTS and not lines[-1].endswith("the mount has ended, or its server does not answer"):
        found.append(f"no word of the mount: {lines[-1]}")
    if victim == "full" and "full" not in lines[-1]:
        found.append(f"no word of the full disk: {lines[-1]}")
    return found


def delivered_problems(run: Path) -> list[str]:
    """Return what was counted that was not delivered."""
    if not (run / RECORDS_NAME).exists():
        return []
    wrong = [
        f"{record.status}: {record.samples} samples"
        for record in read_records(run)
        if record.samples != (IMAGES if record.status is Status.OK else 0)
    ]
    return wrong + run_problems(run)


@pytest.mark.skipif(
    bool(why := "; ".join(filter(None, map(missing, ("s3", "nfs", "ssh", "weed"))))), reason=why or "-"
)
def test_nothing_is_left_whatever_ends_and_when(tmp_path: Path) -> None:
    assert len(TRIALS) >= 40
    with started(tmp_path, "convert", "png", *RUN[:5], "--out", "stores") as made:
        (tmp_path / "tmp").mkdir()
        assert made.command.wait() == 0, made.heard()

    def tried(number: int) -> str:
        begun = time.monotonic()
        found = trial(tmp_path / str(number), tmp_path / "stores", *TRIALS[number])
        print(f"{time.monotonic() - begun:5.1f} s", TRIALS[number], file=sys.stderr)
        return "".join(f"\n{TRIALS[number]}: {problem}" for problem in found)

    some = range(0, len(TRIALS), 1 if "FAULTS_ALL" in os.environ else 5)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = "".join(pool.map(tried, some))
    assert not problems
