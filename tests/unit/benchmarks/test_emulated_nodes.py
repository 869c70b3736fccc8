"""Emulated nodes: real runs between network namespaces, limits that hold and are monitored, and no leftovers."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.control_groups import hierarchy
from benchmarks.nodes import caches
from benchmarks.nodes.__main__ import limits_of, parsed
from benchmarks.nodes.cluster import LIMITS_NAME, RUN, Cluster, Epoch, emulated
from benchmarks.nodes.limits import MB, Limits, Observed, Probed
from benchmarks.nodes.model import Hardware, Work, exchange_s, rate_of, skew_of
from benchmarks.nodes.node import Node
from benchmarks.nodes.report import print_epochs
from benchmarks.nodes.skew import predicted_skew
from benchmarks.nodes.tools import GROUP_PREFIX, why_not
from benchmarks.nodes.watch import observed
from benchmarks.scaling_io import Way
from storebench.errors import UsageError
from storebench.probes.cgroup import find_controller
from storebench.report.checks.records import validate_records
from storebench.runs.records import RECORDS_NAME
from storebench.settings.words import Sync
from tests.support.harness_tools import wait_for

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "benchmarks.nodes")
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
def epochs(
    cluster: Cluster, scenario: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Epoch]]:
    """Run both cells while node 1 holds the pages of one store; return the run's folder and the epoch of each backend."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "python", copying)
        return folder, caches.held_on_one(cluster, scenario, folder)


@pytest.mark.root
@pytest.mark.full
def test_two_nodes_train_together_over_their_link(epochs: tuple[Path, dict[str, Epoch]]) -> None:
    epoch = epochs[1][caches.EVICTED]
    record, seen = epoch.record, epoch.observed
    assert not record.failed, record.failure
    assert record.job is not None
    assert [rank.node for rank in record.job.per_rank] == [0, 1]
    assert record.coverage is not None
    assert record.coverage.complete
    assert seen is not None
    exchanged = (record.job.gradient_bytes or 0) * record.steps
    for carried in (*seen.sent_bytes, *seen.received_bytes):
        assert carried > 0.6 * exchanged > 0, "gradients cross the link in both directions"


@pytest.mark.root
def test_the_disk_of_each_node_delivers_the_samples_of_its_rank(
    epochs: tuple[Path, dict[str, Epoch]],
) -> None:
    epoch = epochs[1][caches.EVICTED]
    assert epoch.observed is not None
    assert epoch.record.job is not None
    for rank, delivered in zip(epoch.record.job.per_rank, epoch.observed.read_bytes, strict=True):
        assert rank.device_read_bytes == pytest.approx(delivered, rel=0.15)


@pytest.mark.root
def test_residency_is_counted_on_each_node(epochs: tuple[Path, dict[str, Epoch]]) -> None:
    record = epochs[1][caches.EVICTED].record
    assert record.job is not None
    for rank in record.job.per_rank:
        assert rank.resident_frac_before is not None
        assert rank.resident_frac_after is not None
        assert rank.resident_frac_before <= 0.01
    first, second = record.job.per_rank
    warm = dataclasses.replace(second, resident_frac_before=0.9)
    forged = dataclasses.replace(record, job=dataclasses.replace(record.job, per_rank=(first, warm)))
    place = epochs[0] / RUN / RECORDS_NAME
    found = validate_records([(record, place)])
    assert {finding.cell_id for finding in found} <= {
        epochs[1][caches.HELD].record.cell.cell_id
    }  # left out here
    assert "job.per_rank[1].resident_frac_before" in {
        finding.figure for finding in validate_records([(forged, place)])
    }


@pytest.mark.root
def test_a_cold_cell_fails_if_only_one_node_evicts(epochs: tuple[Path, dict[str, Epoch]]) -> None:
    held = epochs[1][caches.HELD].record
    assert held.failed
    assert "the cache was not cold: node 1: 100.0% of the store was resident" in (held.failure or "")
    assert caches.wrong(epochs[1]) == []


@pytest.mark.root
def test_what_was_measured_of_the_limits_is_kept_beside_the_run(
    epochs: tuple[Path, dict[str, Epoch]],
) -> None:
    kept = json.loads((epochs[0] / LIMITS_NAME).read_text())
    assert kept["what"] == "2 emulated nodes on one machine"
    assert kept["limits"]["device_bytes_per_s"] == [60 * MB, 30 * MB]
    assert len(kept["epochs"]) == 2


@pytest.mark.root
def test_links_and_disks_have_their_limits(cluster: Cluster) -> None:
    found = cluster.probe()
    # The kernel grants what a late reader has missed, and beside other work every reader is late.
    for rate in found.sent_bytes_per_s:
        assert 0.25 * 20 * MB < rate < 1.25 * 20 * MB
    for rate, limit in zip(found.device_bytes_per_s, LIMITS.device_bytes_per_s, strict=True):
        assert 0.25 * limit < rate < 1.25 * limit


@pytest.mark.root
def test_every_line_says_that_the_nodes_are_emulated(
    epochs: tuple[Path, dict[str, Epoch]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_epochs(epochs[1].values())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("emulated nodes: ") for line in lines)


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


def ready(process: "subprocess.Popen[str]") -> None:
    """Wait until nodes are set up."""
    assert process.stdout is not None
    lines: list[str] = []
    while "ready" not in "".join(lines[-1:]):
        line = process.stdout.readline()
        assert line.startswith("emulated nodes: "), [*lines, line, process.communicate()]
        lines.append(line)


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
@pytest.mark.full
def test_an_interrupted_run_leaves_nothing(root: None, scenario: Path, temporary: Path) -> None:
    before = links()
    with started(temporary, "run", str(scenario), "--out", str(temporary / "run")) as process:
        wait_for(lambda: any("storebench.worker" in words for words in working(temporary)))
        assert loops(temporary)
        assert groups(process.pid)
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130, out + error
    assert error.splitlines() == ["emulated nodes: interrupted; everything was removed"]
    assert working(temporary) == loops(temporary) == groups(process.pid) == []
    assert links() == before
    assert [path.name for path in temporary.iterdir()] == ["run"]


@pytest.mark.full
@pytest.mark.root
def test_the_next_start_removes_what_a_kill_left(root: None, temporary: Path) -> None:
    with started(temporary, "up") as killed:
        ready(killed)
        [folder] = temporary.glob("storebench-nodes-*")
        killed.kill()
    wait_for(lambda: not working(temporary) and not loops(temporary), 10)
    assert groups(killed.pid), "nobody could remove them"
    with started(temporary, "up") as process:
        ready(process)
        assert groups(killed.pid) == []
        assert not folder.exists()
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130, out + error
    assert working(temporary) == loops(temporary) == groups(process.pid) == []
    assert list(temporary.iterdir()) == []


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Make a folder for temporary files with a short path."""
    with tempfile.TemporaryDirectory(prefix="sb-") as folder:
        yield Path(folder)


def test_without_root_one_line_says_so() -> None:
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*nobody, *COMMAND, "caches"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["emulated nodes: they cannot be set up here: it needs root"]
    assert done.stdout == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="without root, that is what is said")
def test_missing_programs_are_named_with_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nsenter", "setpriv", "unshare"):
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not(tmp_path) == "it needs ip, tc (Debian: apt-get install iproute2)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "5"), "--nodes: 5 nodes cannot be emulated. 2 to 4 can."),
        (
            ("--device-mb-per-s", "1", "2", "3"),
            "--device-mb-per-s: 3 limits for 2 disks. Name one, or one per node.",
        ),
        (("--link-mb-per-s", "nan"), "limits of links and disks are at least 0.5 MB/s"),
        (("--device-mb-per-s", "0"), "limits of links and disks are at least 0.5 MB/s"),
        (("--memory", "64 MiB"), "--memory: a node needs at least 256 MiB"),
    ],
)
def test_impossible_limits_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        limits_of(parsed(["run", "ranks.toml", *words]))
    assert str(caught.value) == message


def test_one_limit_of_a_disk_is_that_of_all_nodes() -> None:
    options = ["run", "ranks.toml", "--nodes", "3", "--device-mb-per-s", "25", "--memory", "1 GiB"]
    found = limits_of(parsed(options))
    assert found == Limits(link_bytes_per_s=40 * MB, device_bytes_per_s=(25 * MB,) * 3, memory_bytes=1 << 30)


def seen(
    *, sent: tuple[float, ...] = (0, 0), read: tuple[float, ...] = (0, 0), busy: float = 0.1
) -> Observed:
    """Return what was observed of two nodes for 4 s whose counters grow evenly, bytes per second."""
    seconds = np.arange(-1.0, 6.0, 0.1)
    per_second = [0, sent[0], read[0], 0, sent[1], read[1], 200 * busy, 200]
    return observed(seconds * 1e9, np.outer(seconds, per_second), 0, 4e9)


def test_bytes_between_two_moments_are_counted_per_node() -> None:
    found = seen(sent=(10 * MB, 5 * MB), read=(1 * MB, 2 * MB), busy=0.5)
    assert found.sent_bytes == pytest.approx((40 * MB, 20 * MB), rel=0.06)
    assert found.read_bytes == pytest.approx((4 * MB, 8 * MB), rel=0.06)
    assert found.sent_peak == pytest.approx((10 * MB, 5 * MB))
    assert sum(found.received_bytes) == 0
    assert found.busy_frac == pytest.approx(0.5)
    assert found.marks(LIMITS) == []


def test_a_short_excess_is_found_that_the_mean_hides() -> None:
    times = np.arange(0.0, 10.1, 0.1)
    counts = np.zeros((len(times), 8))
    counts[:, 4] = 25 * MB * np.clip(times - 4, 0, 2)  # node 1 sends for two of ten seconds
    counts[:, 7] = 200 * times
    found = observed(times * 1e9, counts, 0, 10e9)
    assert found.sent_bytes == pytest.approx((0, 50 * MB))
    assert found.marks(LIMITS) == ["the link from node 1 carried 25.0 MB/s, and its limit allows 21.0"]


@pytest.mark.parametrize(
    ("found", "mark"),
    [
        (seen(read=(0, 40 * MB)), "the disk of node 1 carried 40.0 MB/s, and its limit allows 34.5"),
        (seen(busy=0.81), "the cores were 81% busy (80% is tolerated)"),
    ],
)
def test_a_replicate_is_marked_if_a_limit_did_not_hold(found: Observed, mark: str) -> None:
    assert found.marks(LIMITS) == [mark]


def test_a_limit_that_a_probe_does_not_reach_is_marked() -> None:
    found = Probed(sent_bytes_per_s=(19 * MB, 12 * MB), device_bytes_per_s=(59 * MB, 33 * MB))
    assert found.marks(LIMITS) == [
        "the link from node 1 reaches 12.0 MB/s, and its limit is 20.0",
        "the disk of node 1 reaches 33.0 MB/s, and its limit is 30.0",
    ]
    endless = dataclasses.replace(LIMITS, device_bytes_per_s=(float("inf"),) * 2)
    assert len(found.marks(endless)) == 1


WAY = Way(rate=1000.0, cpu_s=1e-4, amplification=1.0, load_s=0.0)
HARDWARE = Hardware(
    device_bytes_per_s=(4e7, 2e7), link_bytes_per_s=1e7, cores=1.0, sample_bytes=2e5
)  # 200 and 100 samples per second
WORK = Work(ranks_per_node=1, batch_size=20, steps=10)


@pytest.mark.parametrize(
    ("way", "work", "seconds"),
    [
        (WAY, WORK, 2.0),  # the slower disk: 0.2 s per step
        (dataclasses.replace(WAY, amplification=2.0), WORK, 4.0),
        (dataclasses.replace(WAY, rate=50.0), WORK, 4.0),  # the reader itself
        (dataclasses.replace(WAY, cpu_s=0.05), WORK, 10.0),  # one core per node
        (WAY, dataclasses.replace(WORK, ranks_per_node=2), 4.0),  # two ranks share a disk
        (WAY, dataclasses.replace(WORK, compute_s=0.1), 3.0),
        (WAY, dataclasses.replace(WORK, compute_s=0.1, ahead=True), 2.1),  # hidden, but for the last step
        (
            WAY,
            dataclasses.replace(WORK, compute_s=0.5, ahead=True),
            5.2,
        ),  # loading is hidden, but for the first
        (WAY, dataclasses.replace(WORK, compute_s=0.1, gradient_bytes=3_000_000, sync=Sync.AFTER), 6.0),
        (WAY, dataclasses.replace(WORK, compute_s=0.1, gradient_bytes=3_000_000, sync=Sync.OVERLAPPED), 5.0),
    ],
)
def test_the_slowest_part_of_a_job_decides(way: Way, work: Work, seconds: float) -> None:
    samples = 2 * work.ranks_per_node * work.batch_size * work.steps
    assert rate_of(way, HARDWARE, work) == pytest.approx(samples / seconds)


def test_a_ring_carries_almost_twice_the_gradients() -> None:
    work = dataclasses.replace(WORK, ranks_per_node=2, gradient_bytes=1_000_000, sync=Sync.AFTER)
    assert exchange_s(HARDWARE, work) == pytest.approx(0.15)
    assert exchange_s(dataclasses.replace(HARDWARE, device_bytes_per_s=(4e7,)), work) == 0


def test_a_slower_disk_makes_the_skew_of_its_limit() -> None:
    assert skew_of(WAY, HARDWARE, WORK) == pytest.approx(1 / 1.5)
    assert predicted_skew([6e7, 6e7], [4e7, 2e7]) == pytest.approx(1 / 1.5)
    assert predicted_skew([6e7, 3e7], [4e7, 2e7]) == 0
