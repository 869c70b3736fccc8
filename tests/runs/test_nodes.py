"""Runs on several nodes: several commands on this machine, each with the variables that Slurm sets on its node."""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storebench.errors import CellFailedError, UsageError
from storebench.ranks.membership import Membership
from storebench.ranks.nodes import Board, NodeAddress, place_of
from storebench.record.lines import RECORDS_NAME, read_records
from storebench.record.schema import Record
from tests.support.findings import validate
from tests.support.harness_tools import Bench, wait_for
from tests.support.rank_cells import NAMED_S

SCENARIO = """
name = "two"
test_limit = 0
[[matrix]]
dataset = "mnist"
synthetic = true
limit = 32
batch_size = 8
model = "tiny"
threads = 1
ranks = {ranks}
backends = ["{backend}"]
"""


def slurm(node: int, nodes: int = 2) -> dict[str, str]:
    """Return the variables that srun sets for the one task of a node."""
    return {
        "SLURM_PROCID": str(node),
        "SLURM_STEP_NUM_TASKS": str(nodes),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_TASKS_PER_NODE": f"1(x{nodes})",
        "SLURM_JOB_NUM_NODES": str(nodes),
    }


@pytest.fixture
def port() -> int:
    """Return the first of three ports that nobody uses."""
    for first in range(20_000 + os.getpid() % 2_000 * 3, 29_000, 3):
        with contextlib.ExitStack() as stack:
            try:
                for number in range(first, first + 3):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            return first
    raise AssertionError("no port is free")


def words_of(folder: Path, port: int, node: int) -> tuple[str | Path, ...]:
    words = ("bench", folder / "two.toml", "--nodes", "2", "--rendezvous", f"127.0.0.1:{port}")
    return (*words, "--out", folder / f"run{node or ''}", "--stores", folder / f"stores{node}")


def on(node: int, bench: Bench, **more: str) -> Bench:
    """Return the command line of a node."""
    return dataclasses.replace(bench, env={**bench.env, **slurm(node), "GLOO_SOCKET_IFNAME": "lo", **more})


def fresh(bench: Bench, folder: Path, port: int, node: int, *, resume: bool = False) -> subprocess.Popen[str]:
    """Start the command of one node in a fresh interpreter."""
    return subprocess.Popen(
        bench.command(*words_of(folder, port, node), *(["--resume"] if resume else [])),
        cwd=folder,
        env=dict(on(node, bench).env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Return exit code and error output of each command."""
    errors = [process.communicate(timeout=200)[1] for process in processes]
    return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]


def run(
    bench: Bench,
    folder: Path,
    port: int,
    *,
    backend: str = "lmdb",
    ranks: str = "2",
    fault: str = "",
    stall_s: float = 600,
) -> list[tuple[int, str]]:
    scenario = f"stall_s = {stall_s}{SCENARIO.format(ranks=ranks, backend=backend)}"
    (folder / "two.toml").write_text(scenario)

    def run_on(node: int) -> tuple[int, str]:
        done = on(node, bench, PLANTED_RANK_FAULT=fault).cli(*words_of(folder, port, node))
        return done.returncode, done.stderr

    with ThreadPoolExecutor(2) as nodes:
        return [*nodes.map(run_on, range(2))]


def test_an_interrupted_first_node_says_how_all_nodes_continue(
    bench: Bench, tmp_path: Path, port: int
) -> None:
    (tmp_path / "two.toml").write_text(SCENARIO.format(ranks="2", backend="lmdb"))
    with fresh(bench, tmp_path, port, 0) as waiting:
        wait_for((tmp_path / "run" / "run.json").is_file, 60)
        waiting.send_signal(signal.SIGINT)
        _, error = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, error
    nodes = f"--nodes 2 --rendezvous 127.0.0.1:{port}"
    again = f"storebench bench {tmp_path}/two.toml {nodes} --resume --out {tmp_path}/run"
    assert f"'{again}' continues this run" in error


@pytest.mark.full
def test_all_nodes_continue_a_run_that_was_killed(bench: Bench, tmp_path: Path, port: int) -> None:
    text = SCENARIO.format(ranks="2", backend="lmdb")
    (tmp_path / "two.toml").write_text(text.replace("test_limit", "replicates = 3\ntest_limit"))
    with fresh(bench, tmp_path, port, 0) as first, fresh(bench, tmp_path, port, 1) as second:
        wait_for(lambda: len(records_of(tmp_path / "run")) == 1, 90)
        first.kill()
        killed_at = time.monotonic()
        _, error = second.communicate(timeout=90)
        assert "the first node has ended the run" in error
        assert time.monotonic() - killed_at < NAMED_S
    left = records_of(tmp_path / "run")
    assert len(left) < 3
    codes = ended([fresh(bench, tmp_path, port, node, resume=True) for node in range(2)])
    assert [code for code, _ in codes] == [0, 0], codes
    whole = read_records(tmp_path / "run")
    assert sorted(record.replicate for record in whole) == [0, 1, 2]
    assert [record.started_utc for record in whole[: len(left)]] == [record.started_utc for record in left]
    assert validate([tmp_path / "run"]) == []


def records_of(run: Path) -> list[Record]:
    """Return the records of a run so far; none before there is a file."""
    return read_records(run) if (run / RECORDS_NAME).is_file() else []


@pytest.mark.full
def test_two_nodes_make_one_run(bench: Bench, tmp_path: Path, port: int) -> None:
    [(first, error), (second, also)] = run(bench, tmp_path, port, ranks="[1, 2]")
    assert (first, second) == (0, 0), error + also
    records = {record.cell.ranks: record for record in read_records(tmp_path / "run")}
    assert sorted(records) == [1, 2]
    coverage = records[2].coverage
    assert coverage is not None
    assert coverage.complete
    assert not (tmp_path / "run1" / RECORDS_NAME).exists(), "the first node keeps the records"


def test_a_rank_that_is_killed_on_another_node_is_named(bench: Bench, tmp_path: Path, port: int) -> None:
    [(first, error), (second, _)] = run(bench, tmp_path, port, backend="planted:faulty-rank", fault="1:kill")
    assert (first, second) == (5, 5), error
    [record] = read_records(tmp_path / "run")
    assert (record.failure or "").startswith("rank 1 on node 1: it was killed by SIGKILL")


@pytest.mark.full
def test_a_rank_that_hangs_on_another_node_is_named(bench: Bench, tmp_path: Path, port: int) -> None:
    """The other node's rank waits for it in a step, so it makes no progress either."""
    [(first, error), (second, _)] = run(
        bench, tmp_path, port, backend="planted:faulty-rank", fault="1:stop", stall_s=4
    )
    assert (first, second) == (5, 5), error
    [record] = read_records(tmp_path / "run")
    assert (record.failure or "").startswith("rank 1 on node 1 made no progress for 4 s during epoch 0")


def test_nodes_tell_each_other_values(port: int) -> None:
    first, second = (NodeAddress(node=node, nodes=2, host="127.0.0.1", port=port) for node in range(2))
    with Board(first) as leader, Board(second) as follower:
        assert follower.get("job/0", 0.2) is None
        leader.set("job/0", {"job": "é"})
        assert follower.get("job/0") == {"job": "é"}
        with pytest.raises(CellFailedError, match=f"port {port} cannot be used"):
            Board(first)


def test_a_node_without_its_first_is_told_so(port: int) -> None:
    place = NodeAddress(node=1, nodes=2, host="127.0.0.1", port=port)
    with pytest.raises(CellFailedError, match=f"the first node cannot be reached at 127.0.0.1:{port}"):
        Board(place, reach_s=1)


@pytest.mark.parametrize(
    ("nodes", "rendezvous", "node", "member", "words"),
    [
        (2, None, 0, Membership(), "--nodes needs --rendezvous"),
        (2, "here", 0, Membership(), "not HOST:PORT: 'here'"),
        (2, "here:65534", 0, Membership(), "not HOST:PORT"),
        (2, "here:1", 2, Membership(), "there is no node 2 among 2"),
        (2, "here:1", None, Membership(), "has started 1 processes for 2 nodes"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(
    nodes: int, rendezvous: str | None, node: int | None, member: Membership, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        place_of(nodes, rendezvous, node, member)
    assert words in str(caught.value)


def test_the_place_of_a_node_comes_from_its_launcher() -> None:
    member = Membership(rank=1, ranks=2, node=1)
    place = place_of(2, "[::1]:29400", None, member)
    assert place == NodeAddress(node=1, nodes=2, host="::1", port=29400)
    assert [place.rendezvous(job) for job in range(3)] == ["[::1]:29401", "[::1]:29402", "[::1]:29401"]
