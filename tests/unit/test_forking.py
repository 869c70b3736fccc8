"""Forked processes: pages of their own, a mark of their own, and a parent that did not fork them."""

import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from storebench.system import forking
from storebench.system.forking import Adopted, adopting, can_own_pages, file_pages, own_pages
from storebench.system.processes import MARK, end_processes, mark_again

HELD_MIB = 32
PAGES = (HELD_MIB << 20) // resource.getpagesize()

ORPHAN = """
import os, sys, time
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdout = None
    os.close(1)
    os.read(0, 1)
    {then}
os._exit(0)
"""


def faults_of_a_fork(before: Callable[[], None]) -> int:
    """Return the page faults of a forked process that writes to what it got from this one, after calling `before`."""
    held = bytearray(os.urandom(1)) * (HELD_MIB << 20)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        before()
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for page in range(0, len(held), resource.getpagesize()):
            held[page] ^= 1
        os.write(write, str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as answer:
        return int(answer.read())


@pytest.mark.skipif(not can_own_pages(), reason="this kernel is older than 5.14")
def test_a_fork_with_pages_of_its_own_copies_none_later() -> None:
    assert faults_of_a_fork(lambda: None) >= PAGES
    assert faults_of_a_fork(own_pages) < PAGES / 100


def status_mib(name: str) -> float:
    """Return a value in the status of this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"\n{name}:")[2].split()[0]) / 1024


def grown_in_a_fork(name: str, touched: list[tuple[int, int]]) -> float:
    """Return by how much a value is higher in a fork that owns its pages than it is here, in MiB."""
    read, write = os.pipe()
    here = status_mib(name)
    pid = os.fork()
    if pid == 0:
        own_pages(touched)
        os.write(write, str(status_mib(name) - here).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as answer:
        return float(answer.read())


@pytest.mark.skipif(not can_own_pages(), reason="this kernel is older than 5.14")
def test_a_fork_takes_as_much_memory_as_the_process_that_forked_it(tmp_path: Path) -> None:
    file = tmp_path / "mapped"
    file.write_bytes(os.urandom(HELD_MIB << 20))
    with file.open("rb") as opened, mmap.mmap(-1, HELD_MIB << 20, mmap.MAP_PRIVATE) as memory:
        memory[0] = 1  # the other pages are never touched
        with mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
            assert sum(mapped[:: mmap.PAGESIZE]) > 0
            assert abs(grown_in_a_fork("RssAnon", file_pages())) < HELD_MIB / 4
            assert abs(grown_in_a_fork("RssFile", file_pages())) < HELD_MIB / 4
            assert grown_in_a_fork("RssFile", []) < -HELD_MIB / 2


def test_a_kernel_that_cannot_copy_pages_at_once_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_MADV_POPULATE_WRITE", 10_000)
    assert not can_own_pages()


def test_a_fork_that_is_marked_again_is_found_by_its_own_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "storebench-replicate-first_", tmp_path / "storebench-replicate-second"
    program = f"""
import os, sys, time
from pathlib import Path
from storebench.system.processes import mark_again
pid = os.fork()
if pid == 0:
    mark_again(Path({str(second)!r}))
    print(os.environ[{MARK!r}], flush=True)
os.read(0, 1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, MARK: first.name},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == second.name
        [fork] = psutil.Process(process.pid).children()
        assert end_processes([second]) == [fork.pid]
        assert process.poll() is None
        assert end_processes([first]) == [process.pid]


def test_a_process_without_a_mark_is_not_marked_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not carry a mark"):
        mark_again(tmp_path / ("a name that nobody has" * 9))


@pytest.fixture
def orphaned() -> Iterator[Callable[[str], tuple[Adopted, Callable[[], None]]]]:
    """Return a function that adopts a fork whose parent has ended, and how to let it go on."""
    processes: list[subprocess.Popen[str]] = []

    def adopted(then: str) -> tuple[Adopted, Callable[[], None]]:
        with adopting():
            command = [sys.executable, "-c", ORPHAN.format(then=then)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            assert process.stdin is not None
            pid = int(process.stdout.readline())
            assert process.wait() == 0
        return Adopted(pid), process.stdin.close

    yield adopted
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize(("then", "code"), [("os._exit(0)", 0), ("os._exit(7)", 7), ("os.abort()", -6)])
def test_an_adopted_process_can_be_waited_for(
    then: str, code: int, orphaned: Callable[[str], tuple[Adopted, Callable[[], None]]]
) -> None:
    process, goes_on = orphaned(then)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    goes_on()
    assert process.wait(20) == code == process.poll() == process.returncode
    process.terminate()  # it has ended, which is no error


def test_an_adopted_process_can_be_ended(
    orphaned: Callable[[str], tuple[Adopted, Callable[[], None]]],
) -> None:
    process, _ = orphaned("time.sleep(60)")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    process.kill()
    assert process.wait(20) == -signal.SIGKILL
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime >= used.ru_utime


def test_only_children_are_adopted() -> None:
    with pytest.raises(ChildProcessError, match="is no child"):
        Adopted(1)


def test_orphans_go_elsewhere_afterwards(
    orphaned: Callable[[str], tuple[Adopted, Callable[[], None]]],
) -> None:
    process, goes_on = orphaned("os._exit(0)")
    goes_on()
    process.wait(20)
    command = [sys.executable, "-c", ORPHAN.format(then="os._exit(0)")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        pid = int(other.stdout.readline())
        assert other.wait() == 0
        deadline = time.monotonic() + 5
        while psutil.Process(pid).ppid() == other.pid and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ChildProcessError):
            Adopted(pid)


SETTLING = """
import hashlib, os, threading, time
from storebench.system.forking import SETTLING_S, fork_when_settled
fork_when_settled()
seconds = []
for rounds in (0, 300_000, 30_000_000):
    busy = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", rounds or 1), daemon=True)
    busy.start()
    begun = time.monotonic()
    if os.fork() == 0:
        os._exit(0)
    seconds.append(time.monotonic() - begun)
    os.wait()
    print(busy.is_alive(), seconds[-1] < SETTLING_S, flush=True)
os._exit(0)
"""


def test_a_fork_waits_for_a_thread_that_runs_but_not_for_ever() -> None:
    """The thread holds no GIL, like one of gloo's that takes a lock of the interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", SETTLING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:3] == ["False True", "False True", "True False"]
