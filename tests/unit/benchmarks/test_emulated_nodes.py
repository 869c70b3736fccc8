"""Emulated nodes: real runs between network namespaces, limits that hold and are monitored, and no leftovers."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.control_groups import hierarchy, joining
from benchmarks.nodes import caches
from benchmarks.nodes.__main__ import limits_of, parsed
from benchmarks.nodes.cluster import LIMITS_NAME, Cluster, emulated
from benchmarks.nodes.limits import MB, Limits
from benchmarks.nodes.node import Node, node_groups
from benchmarks.nodes.tools import GROUP_PREFIX, why_not
from storebench.errors import UsageError
from storebench.probes.cgroup import find_controller
from storebench.record.schema import Record
from tests.support.harness_tools import wait_for

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "benchmarks.nodes")
FIND = """
from storebench.probes.cgroup import find_controller, memory_group, memory_limit_bytes
with memory_group(32 << 20) as group:
    print(group.folder.parent, memory_limit_bytes())
"""
LIMITS = Limits(link_bytes_per_s=20 * MB, device_bytes_per_s=(60 * MB, 30 * MB))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip if nodes cannot be emulated, with the reason."""
    reason = why_not(tmp_path_factory.getbasetemp())
    if reason:
        pytest.skip(f"emulated nodes cannot be set up here: {reason}")


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "caches.toml"
    path.write_text(caches.SCENARIO, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cluster(root: None, scenario: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Set up two nodes with the stores of the scenario."""
    with emulated(LIMITS, [scenario], tmp_path_factory.mktemp("disks")) as cluster:
        yield cluster


def copying(node: Node, *arguments: str) -> list[str]:
    """Return the command of an interpreter on a node; cells and ranks of storebench are copies of it."""
    if arguments[:2] == ("-m", "storebench"):
        arguments = ("-m", "tests.support.quick_cli", "here", *arguments[2:])
    return node.command(sys.executable, "-P", *arguments)


@pytest.fixture(scope="module")
def records(
    cluster: Cluster, scenario: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Record]]:
    """Run both cells while node 1 holds the pages of one store; return the run's folder and each backend's record."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "python", copying)
        return folder, caches.held_on_one(cluster, scenario, folder)


@pytest.mark.root
def test_nodes_train_together_and_a_cold_cell_fails_if_one_is_not_cold(
    records: tuple[Path, dict[str, Record]],
) -> None:
    folder, found = records
    assert caches.wrong(found) == []
    record, held = found[caches.EVICTED], found[caches.HELD]
    assert record.coverage is not None
    assert record.coverage.complete
    assert record.job is not None
    assert [rank.node for rank in record.job.per_rank] == [0, 1]
    assert all((rank.resident_frac_before or 0) <= 0.01 for rank in record.job.per_rank)
    assert "the cache was not cold: node 1: 100.0% of the store was resident" in (held.failure or "")
    kept = json.loads((folder / LIMITS_NAME).read_text())
    assert kept["limits"]["device_bytes_per_s"] == [60 * MB, 30 * MB]


@pytest.mark.root
@pytest.mark.full
def test_links_and_disks_have_their_limits(cluster: Cluster) -> None:
    found = cluster.probe()
    # The kernel grants what a late reader has missed, and beside other work every reader is late.
    for rate in found.sent_bytes_per_s:
        assert 0.25 * 20 * MB < rate < 1.25 * 20 * MB
    for rate, limit in zip(found.device_bytes_per_s, LIMITS.device_bytes_per_s, strict=True):
        assert 0.25 * limit < rate < 1.25 * limit


@contextlib.contextmanager
def started(temporary: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a command in a new session, as a terminal does; kill it at the end if it still runs."""
    with subprocess.Popen(
        [*COMMAND, *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def working(temporary: Path) -> list[str]:
    """Return the commands of processes that were started with this folder for temporary files."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={temporary}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def loops(temporary: Path) -> list[str]:
    """Return the files below a folder that loop devices use."""
    files = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            files.append(path.read_text())
    return [name for name in files if str(temporary) in name]


def groups(pid: int) -> list[str]:
    """Return the control groups that a process has made."""
    found = hierarchy("blkio", "io")
    assert found is not None
    reads = found[0].glob(f"{GROUP_PREFIX}{pid}-*")
    return [path.name for path in (*reads, *find_controller().parent.glob(f"storebench-{pid}-*"))]


def links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


@pytest.mark.root
def test_a_limited_cell_on_a_node_stays_below_the_nodes_own_limits(root: None) -> None:
    with node_groups(9, 256 << 20) as group:
        command = [*joining(*group.entered), sys.executable, "-c", FIND]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.split() == [str(group.memory.folder), str(256 << 20)]
    assert not group.memory.folder.exists()


@pytest.mark.root
@pytest.mark.full
def test_a_start_removes_what_a_kill_left_and_an_interrupt_leaves_nothing(
    root: None, scenario: Path, temporary: Path
) -> None:
    before = links()
    words = ("run", str(scenario), "--out", str(temporary / "run"))
    with started(temporary, *words) as killed:
        wait_for(lambda: any("storebench.worker" in words for words in working(temporary)))
        [folder] = temporary.glob("storebench-nodes-*")
        killed.kill()
    wait_for(lambda: not working(temporary) and not loops(temporary), 10)
    assert groups(killed.pid), "nobody could remove them"
    shutil.rmtree(temporary / "run")
    with started(temporary, *words) as process:
        wait_for(lambda: any("storebench.worker" in words for words in working(temporary)))
        assert groups(killed.pid) == []
        assert not folder.exists()
        assert loops(temporary)
        assert groups(process.pid)
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130, out + error
    assert error.splitlines() == ["emulated nodes: interrupted; everything was removed"]
    assert working(temporary) == loops(temporary) == groups(process.pid) == []
    assert links() == before
    assert [path.name for path in temporary.iterdir()] == ["run"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Make a folder for temporary files with a short path."""
    with tempfile.TemporaryDirectory(prefix="sb-") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "5"), "--nodes: 5 nodes cannot be emulated. 2 to 4 can."),
        (
            ("--device-mb-per-s", "1", "2", "3"),
            "--device-mb-per-s: 3 limits for 2 disks. Name one, or one per node.",
        ),
        (("--link-mb-per-s", "nan"), "limits of links and disks are at least 0.5 MB/s"),
        (("--memory", "64 MiB"), "--memory: a node needs at least 256 MiB"),
    ],
)
def test_impossible_limits_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        limits_of(parsed(["run", "ranks.toml", *words]))
    assert str(caught.value) == message
