"""What goes wrong while a store is written: one clear line, the right exit code, and nothing left behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
CompletedText = subprocess.CompletedProcess[str]
Cli = Callable[..., CompletedText]

CIFAR = ("--dataset", "cifar10", "--synthetic")
MNIST = ("--dataset", "mnist", "--synthetic")
STORE_ID = "{name}-train-size{size}-synthetic"


def refused(done: CompletedText, exit_code: int, *words: str) -> None:
    """Check that a command refused in one line that holds these words."""
    assert done.returncode == exit_code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("converting ", "verifying "))]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("storebench: ")
    assert not [word for word in words if word not in lines[0]], lines[0]
    assert "unfinished" not in lines[0]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "storebench", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(true: Callable[[], object], timeout_s: float = 180) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def in_the_making(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".storebench-unfinished-*") if path.is_dir()]


def is_writing(folder: Path) -> bool:
    files = (path for work in in_the_making(folder) for path in work.rglob("*") if path.is_file())
    with contextlib.suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in files) > 0
    return False


@contextlib.contextmanager
def mounted_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"mounting a small tmpfs is not allowed here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("backend", ["png", "hdf5", "lmdb", "leveldb"])
def test_a_full_disk_leaves_nothing_behind(backend: str, cli: Cli, tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path / "small", "1m") as small:
        done = cli("convert", backend, *CIFAR, "--size", "400", "--out", str(small))
        refused(done, 5, "disk is full", str(small))
        assert not list(small.iterdir())


@pytest.mark.root
@pytest.mark.parametrize("size", ["8k", "24k"], ids=["copying", "opening"])
def test_a_full_temporary_folder_is_named(size: str, cli: Cli, tmp_path: Path) -> None:
    made = cli("convert", "leveldb", *CIFAR, "--limit", "20", "--json")
    store = json.loads(made.stdout)[0]["path"]
    with mounted_tmpfs(tmp_path / "small", size) as small:
        done = cli("verify", store, env={"TMPDIR": str(small)})
        refused(done, 5, f"{small}: the disk is full (tmpfs on {small})")
        assert not list(small.iterdir())


def test_a_read_only_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    arguments = ("convert", "hdf5", *CIFAR, "--limit", "10", "--out")
    if os.geteuid() != 0:
        folder = tmp_path / "locked"
        folder.mkdir(mode=0o555)
        refused(cli(*arguments, str(folder)), 2, "no permission", "--out")
        return
    with mounted_tmpfs(tmp_path / "locked", "6m") as folder:
        assert cli("convert", "png", *arguments[2:], str(folder)).returncode == 0
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        refused(cli(*arguments, str(folder)), 2, "read-only", "--out")


SIZE = 3000
"""Samples whose conversion takes a second or two, in more parts than encoders, so that it can be interrupted."""

SLOW = ("convert", "png", *MNIST, "--size", str(SIZE), "--processes", "2")

LONG_SIZE = 6_000
"""Samples whose conversion is stopped in the middle by the test, so that it is long enough on a fast machine too."""

LONG = ("convert", "png", *MNIST, "--size", str(LONG_SIZE), "--processes", "2")


def test_kill_9_leaves_no_store_and_the_next_convert_cleans_up(cli: Cli, tmp_path: Path) -> None:
    killed = start(tmp_path, *LONG)
    wait_until(lambda: is_writing(tmp_path))
    encoders = encoders_of(killed)
    assert encoders
    killed.kill()
    killed.communicate()
    folder = tmp_path / "stores" / STORE_ID.format(name="mnist", size=LONG_SIZE)
    assert in_the_making(folder)
    assert not (folder / "files+png").exists()
    wait_until(lambda: not any(child.is_running() for child in encoders), timeout_s=20)

    done = cli(
        "convert", "hdf5", *MNIST, "--size", str(LONG_SIZE)
    )  # another format of the dataset cleans up, too
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["hdf5+raw"]


def encoders_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in str(child.cmdline())]


def test_two_converts_of_one_store_build_it_once(tmp_path: Path) -> None:
    first = start(tmp_path, *SLOW)
    wait_until(lambda: is_writing(tmp_path))
    first.send_signal(signal.SIGSTOP)  # until the second has come
    second = start(tmp_path, *SLOW)
    assert second.stderr is not None
    assert "waiting for it to finish" in second.stderr.readline()
    first.send_signal(signal.SIGCONT)
    first_out, _ = first.communicate(timeout=60)
    second_out, _ = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "built in" in first_out
    assert "there already" in second_out
    folder = tmp_path / "stores" / STORE_ID.format(name="mnist", size=SIZE)
    assert [path.name for path in folder.iterdir()] == ["files+png"]


MUCH = """
import contextlib, sys, time
from pathlib import Path
from tests.support.small_datasets import SPEC, ProcessIds
from storebench.stores.convert import BuildOptions, convert
from storebench.formats import parse_backend

@contextlib.contextmanager
def disk_that_stalls(title):
    yield lambda done, total: time.sleep(2 if done < 30 and total > 1000 else 0)

if __name__ == "__main__":
    dataset = ProcessIds(count=int(sys.argv[2]), shape=(256, 256, 3))
    options = BuildOptions(processes=2, progress=disk_that_stalls)
    convert(dataset, SPEC, parse_backend(sys.argv[1]), Path("stores"), options=options)
"""


@pytest.mark.full
def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    script = tmp_path / "much.py"
    script.write_text(MUCH)
    few, many = (peak_memory(script, "lmdb", count) for count in (250, 1250))
    assert few < 700 << 20
    assert many - few < 110 << 20  # of 188 MiB more pixels


def peak_memory(script: Path, backend: str, count: int) -> int:
    """Return the most bytes that a process and its children had at one moment, without those of mapped files."""
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script), backend, str(count)],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": search},
    )
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(process.pid)
            peak = max(peak, sum(private(one) for one in (main, *main.children(recursive=True))))
        time.sleep(0.05)
    assert process.returncode == 0
    shutil.rmtree(script.parent / "stores")
    return peak


def private(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)
