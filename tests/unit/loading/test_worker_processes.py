"""Worker processes that die, whose parent dies, and the memory that they share with the loop."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from storebench.errors import CellFailedError
from storebench.formats.base import Indices
from storebench.loading.batch import LoadJob
from storebench.loading.loader import get_loader
from storebench.system.scratch import SEGMENTS
from storebench.testing.stores import COUNT
from tests.support.loading_tools import MakeJob, MakePlan
from tests.support.planted_plugin import BAD, FADING

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import json, sys, time
import numpy as np
from pathlib import Path
from storebench.formats.registry import parse_backend
from storebench.loading.batch import EpochPlan, LoadJob
from storebench.loading.loader import get_loader

loader = get_loader("ring")(LoadJob(store=Path(sys.argv[1]), backend=parse_backend("leveldb")), workers=4)
print(json.dumps([one.pid for one in loader.open()]), flush=True)
with loader:
    while True:
        for batch in loader.epoch(EpochPlan(epoch=0, batches=[np.arange(9)] * 99)):
            time.sleep(0.001)
"""


def mapped_rings(pid: int | str = "self") -> list[str]:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in maps if "memfd:storebench-ring" in line]


def mapped_bytes(places: Iterable[str]) -> int:
    ends = (place.split("-") for place in places)
    return sum(int(end, 16) - int(start, 16) for start, end in ends)


def rings_of(*pids: int) -> list[list[str]]:
    return [mapped_rings(pid) for pid in pids]


@contextlib.contextmanager
def running(store: Path, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run a loop with four workers in a process of its own, and tell their ids."""
    loop = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert loop.stdout is not None
    line = loop.stdout.readline()
    assert line, loop.communicate()[1]
    workers = json.loads(line)
    time.sleep(0.1)
    try:
        yield loop, workers
    finally:
        loop.kill()
        loop.communicate()


def wait_until_gone(pids: list[int]) -> None:
    _gone, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], timeout=20)
    assert not alive, f"still running: {alive}"


@pytest.mark.usefixtures("nothing_left")
def test_memory_of_batches_whose_size_is_known_is_there_before_the_epoch(
    make_job: MakeJob, make_plan: MakePlan
) -> None:
    """Mapping it takes longer than many a batch, and belongs to the opening."""
    job = dataclasses.replace(make_job(), batch_size=10)
    with get_loader("ring")(job, workers=2) as loader:
        pids = [one.pid for one in loader.open()]
        opened = rings_of(os.getpid(), *pids)
        opened_bytes = mapped_bytes(opened[1])
        # The second worker is forked when the first one's memory is there.
        assert [mapped_bytes(rings) // opened_bytes for rings in opened] == [2, 1, 2]
        for batch_size in (10, 7):
            list(loader.epoch(make_plan(batch_size=batch_size)))
            assert rings_of(os.getpid(), *pids) == opened


@pytest.mark.usefixtures("odd")
class TestAWorkerThatDies:
    @pytest.mark.parametrize("name", ["processes", "ring"])
    def test_is_told_in_one_line(
        self, name: str, make_job: MakeJob, make_plan: MakePlan, request: pytest.FixtureRequest
    ) -> None:
        if name == "ring":
            # torch raises out of its signal handler, also between receiving a descriptor and closing it again.
            request.getfixturevalue("nothing_left")
        plan = make_plan()
        step = next(step for step, indices in enumerate(plan.batches) if BAD in indices)
        with get_loader(name)(make_job("odd+raw:dying"), workers=2) as loader:
            pids = [one.pid for one in loader.open()]
            left = [SEGMENTS / f"torch_{pid}_0" for pid in pids if name == "processes"]
            for path in left:
                path.touch()  # as torch's allocation does, if the worker is killed in it
            served: list[Indices] = []
            with pytest.raises(CellFailedError) as caught:
                served.extend(batch.indices for batch in loader.epoch(plan))
            line = str(caught.value)
            assert str(pids[step % 2]) in line
            assert "was killed by SIGKILL" in line
            assert "fewer workers" in line
            assert "\n" not in line
            assert len(served) == step if name == "ring" else len(served) <= step
        assert not any(map(psutil.pid_exists, pids))
        assert not any(path.exists() for path in left)

    def test_is_told_in_one_line_where_its_batch_cannot_be_fetched_any_more(
        self, make_job: MakeJob, make_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The DataLoader then raises an OSError, and counts the worker among the living."""
        monkeypatch.setenv(FADING, str(tmp_path))
        plan = make_plan(batch_size=COUNT // 2)
        plan.batches.sort(key=lambda indices: BAD in indices)
        with get_loader("processes")(make_job("odd+raw:fading"), workers=1) as loader:
            loader.open()
            batches = loader.epoch(plan)
            next(batches)
            while not (tmp_path / "fading").exists():
                time.sleep(0.01)
            timer = threading.Timer(0.2, (tmp_path / "die").touch)
            timer.start()
            with pytest.raises(CellFailedError, match="was killed by SIGKILL") as caught:
                next(batches)
            timer.join()  # the next test compares the threads before and after it
        assert isinstance(caught.value.__cause__, OSError)

    @pytest.mark.usefixtures("nothing_left")
    def test_between_two_epochs_does_not_keep_the_others_from_closing(
        self, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        loader = get_loader("ring")(make_job("odd+raw:recording"), workers=2)
        pids = [one.pid for one in loader.open()]
        list(loader.epoch(make_plan()))
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(CellFailedError, match=f"{pids[0]} was killed by SIGKILL"):
            loader.close()
        assert not any(map(psutil.pid_exists, pids))


class TestTheLoopsProcess:
    def test_its_workers_end_when_it_is_killed(self, make_job: MakeJob, tmp_path: Path) -> None:
        """They tidy up as well: LevelDB's snapshots go."""
        with running(make_job("leveldb").store, tmp_path) as (loop, workers):
            assert len(list(tmp_path.iterdir())) == 4
            loop.kill()
            loop.wait()
            wait_until_gone(workers)
        assert list(tmp_path.iterdir()) == []

    def test_an_interrupt_ends_everything(self, make_job: MakeJob, tmp_path: Path) -> None:
        """Ctrl-C goes to the loop and to the workers alike; only the loop says anything."""
        with running(make_job("leveldb").store, tmp_path) as (loop, workers):
            os.killpg(loop.pid, signal.SIGINT)
            _, said = loop.communicate(timeout=30)
            wait_until_gone(workers)
        assert said.count("Traceback") == 1
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("odd", "nothing_left")
class TestErrorsOfAWorker:
    def run(self, job: LoadJob, make_plan: MakePlan) -> None:
        with get_loader("ring")(job, workers=2) as loader:
            loader.open()
            list(loader.epoch(make_plan()))

    def test_an_unexpected_one_says_where_it_happened(self, make_job: MakeJob, make_plan: MakePlan) -> None:
        with pytest.raises(ValueError, match="nobody expected") as caught:
            self.run(make_job("odd+raw:failing"), make_plan)
        assert "in _fetch_into" in caught.value.__notes__[0]

    def test_one_that_cannot_be_sent_is_told_in_words(self, make_job: MakeJob, make_plan: MakePlan) -> None:
        with pytest.raises(RuntimeError, match="UnpicklableError: 1 and 2"):
            self.run(make_job("odd+raw:unpicklable"), make_plan)


HANDOVER = """
import sys
import numpy as np
from pathlib import Path
from storebench.formats.registry import parse_backend
from storebench.loading.batch import EpochPlan, LoadJob
from storebench.loading.loader import get_loader
from storebench.loading.loader import ReceivingLoader

kind = ReceivingLoader if sys.argv[2] == "receiving" else get_loader(sys.argv[2])
job = LoadJob(store=Path(sys.argv[1]), backend=parse_backend("lmdb"))
with kind(job, workers=int(sys.argv[3])) as loader:
    loader.open()
    try:
        print(len(list(loader.epoch(EpochPlan(epoch=0, batches=[np.arange(9)] * 9)))), "batches")
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "loader", [*(pytest.param(name, marks=pytest.mark.full) for name in ("processes", "receiving")), "ring"]
)
def test_a_batch_that_cannot_be_handed_over_ends_the_epoch(
    loader: str, make_job: MakeJob, tmp_path: Path
) -> None:
    """torch's sockets are in the folder for temporary files, whose path is too long for one."""
    temporary = tmp_path / ("long" * 20)
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", HANDOVER, str(make_job("lmdb").store), loader, "4"],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    served = loader == "ring" or sys.version_info >= (3, 14)  # which puts its sockets elsewhere then
    told = "9 batches" if served else "CellFailedError a worker could not hand over a batch"
    assert told in done.stdout, done.stderr
