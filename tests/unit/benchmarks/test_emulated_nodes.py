"""Emulated nodes: real runs between network namespaces, limits that hold and are monitored, and no leftovers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.control_groups import joining
from benchmarks.nodes import caches
from benchmarks.nodes.__main__ import limits_of, parsed
from benchmarks.nodes.cluster import LIMITS_NAME, Cluster, emulated
from benchmarks.nodes.limits import MB, Limits
from benchmarks.nodes.node import Node, node_groups
from benchmarks.nodes.tools import why_not
from storebench.errors import UsageError
from storebench.record.schema import Record

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
@pytest.mark.full
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
def test_a_limited_cell_on_a_node_stays_below_the_nodes_own_limits(root: None) -> None:
    with node_groups(9, 256 << 20) as group:
        command = [*joining(*group.entered), sys.executable, "-c", FIND]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.split() == [str(group.memory.folder), str(256 << 20)]
    assert not group.memory.folder.exists()


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
