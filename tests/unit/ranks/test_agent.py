"""The process that starts the ranks of a node: torchrun by its own interface, in a copy of this process."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from storebench.ranks import agent
from storebench.ranks.launch import (
    JobEnding,
    RankWatch,
    Team,
    agent_command,
    collect_output,
)
from tests.support.copies import RANKS, import_now

RANK = """
import json, os, signal, sys, time
from pathlib import Path
from storebench.ranks.launch import write_failure
from storebench.ranks.membership import membership
from storebench.ranks.heartbeat import RankProgress

folder, fault = Path(sys.argv[1]), sys.argv[2]
me = membership()
progress = RankProgress.create(folder, me.rank)
for phase in ("the rendezvous", "the preparation", "epoch 0"):
    progress.begin(phase)
facts = {"threads": os.environ.get("OMP_NUM_THREADS"), "port": os.environ["MASTER_PORT"], "pid": os.getpid()}
(folder / f"facts-{me.rank}.json").write_text(json.dumps(facts))
while len(list(folder.glob("facts-*.json"))) < me.ranks:  # as at the barrier before an epoch
    time.sleep(0.01)
progress.begin("epoch 0")
print("hello from", me.rank, flush=True)
if me.rank == 1 and fault == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if me.rank == 1 and fault == "terminated":
    os.kill(os.getpid(), signal.SIGTERM)
if me.rank == 1 and fault == "raises":
    write_failure(folder, me.rank, "a bug")
    os._exit(5)
if me.rank == 1 and fault == "exits":
    os._exit(3)
if fault != "none":
    progress.batch()
    time.sleep(60)
"""


class Started:
    """An agent in a copy of this process, with the interface of `subprocess.Popen` that the launcher uses."""

    def __init__(self, process: ForkProcess) -> None:
        self.process = process

    def wait(self, timeout: float) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("agent", timeout)
        return self.process.exitcode


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what agents import, which are copies of this process."""
    import_now(RANKS[:1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ranks"


def family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


@contextlib.contextmanager
def started(folder: Path, fault: str) -> Iterator[Started]:
    """Start a job of small ranks; end what is left of it."""
    program = folder.parent / "rank $$.py"
    program.write_text(RANK)
    command = agent_command(Team(ranks=2), folder, [str(program), str(folder), fault])
    process = multiprocessing.get_context("fork").Process(target=run_agent, args=(command[4:], folder))
    with warnings.catch_warnings():
        # From Python 3.12 on: this process may have threads, which the agent does not need.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    seen: list[psutil.Process] = []
    try:
        yield Started(process)
    finally:
        seen = family(process.pid or 0)
        process.terminate()
        process.join(10)
        process.kill()
        for left in seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


def run_agent(arguments: list[str], folder: Path) -> None:
    os.environ.pop("OMP_NUM_THREADS", None)
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with (folder.parent / "log").open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        os._exit(agent.main(arguments))


def run(folder: Path, fault: str) -> JobEnding:
    folder.mkdir()
    watch = RankWatch(folder, Team(ranks=2), 30)
    with started(folder, fault) as process:
        return watch.wait(process, 60)  # type: ignore[arg-type]


def facts_of(folder: Path, rank: int) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / f"facts-{rank}.json").read_text())
    return facts


def test_ranks_run_with_as_many_threads_as_a_plain_process_and_their_output_goes_to_the_log(
    folder: Path,
) -> None:
    assert run(folder, "none") == JobEnding(code=0)
    facts = [facts_of(folder, rank) for rank in range(2)]
    assert [fact["threads"] for fact in facts] == [None, None]
    with socket.socket() as free:
        free.bind(("127.0.0.1", int(facts[0]["port"])))  # nobody listens there any more
    log = folder.parent / "log"
    assert log.read_text() == "", "the agent itself has nothing to say"
    collect_output(folder, log)
    assert log.read_text() == (
        "--- local rank 0, stdout ---\nhello from 0\n--- local rank 1, stdout ---\nhello from 1\n"
    )


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("killed", "rank 1 on node 0: it was killed by SIGKILL"),
        ("raises", "rank 1 on node 0: a bug"),
        pytest.param("exits", "rank 1 on node 0: it ended with exit code 3", marks=pytest.mark.full),
        pytest.param("terminated", "rank 1 on node 0: it was killed by SIGTERM", marks=pytest.mark.full),
    ],
)
def test_the_rank_that_fails_is_named_and_the_others_end(fault: str, failure: str, folder: Path) -> None:
    ending = run(folder, fault)
    assert (ending.code, ending.failure) == (1, failure)
    for rank in range(2):
        assert not psutil.pid_exists(facts_of(folder, rank)["pid"])


def test_ranks_end_with_an_agent_that_is_told_to_end(folder: Path) -> None:
    folder.mkdir()
    with started(folder, "sleeps") as process:
        deadline = time.monotonic() + 20
        while len(list(folder.glob("facts-*.json"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks = family(process.process.pid or 0)
        assert len(ranks) >= 2
        assert process.process.pid is not None
        os.kill(process.process.pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(ranks, timeout=20)
        assert not alive
