"""Loops with a planted limit: is it named, and is the gain of removing it predicted? ``python -m benchmarks.profile_cases``.

Each loop runs profiled with its limit, and again without it. Planted is what was built in, named what the profile says;
the last columns are the predicted and the measured speed-up. Exit code 1 if a limit is not named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import Lock
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

import storebench
from storebench.probes.page_cache import evict, warm
from storebench.profiling.evidence import Bound, Report

BATCH = 8
FILE_MIB, READ_BYTES, DISK_BYTES_PER_S = 192, 1 << 18, 60 << 20


def work(seconds: float) -> None:
    """Compute for so many CPU seconds."""
    ends = time.thread_time() + seconds
    block = np.ones(20_000)
    while time.thread_time() < ends:
        np.sqrt(block)


class Samples(Dataset[Any]):
    """Samples that compute, sleep, stall, lock, or read a file."""

    def __init__(
        self,
        count: int,
        *,
        work_s: float = 0.0,
        sleep_s: float = 0.0,
        stall_s: float = 0.0,
        locked: bool = False,
        file: Path | None = None,
    ) -> None:
        self.count, self.work_s, self.sleep_s, self.stall_s, self.file = count, work_s, sleep_s, stall_s, file
        self.lock = Lock() if locked else None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.lock is not None:
            with self.lock:
                time.sleep(self.sleep_s)
        elif self.sleep_s:
            time.sleep(self.sleep_s)
        if self.work_s:
            work(self.work_s)
        if self.stall_s and index % (50 * BATCH) == 25 * BATCH:
            time.sleep(self.stall_s)
        if self.file is not None:
            with self.file.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                # Far apart, so that no read-ahead of the device helps.
                place = index * 37 % (FILE_MIB << 20 >> 18)
                return torch.frombuffer(
                    bytearray(os.pread(file.fileno(), READ_BYTES, place << 18)), dtype=torch.uint8
                )
        return torch.full((3, 32, 32), index)


def working_collate(samples: list[Any]) -> Any:
    work(0.008)
    return default_collate(samples)


def many_tensors(samples: list[Any]) -> Any:
    return [sample[0, row].clone() for sample in samples for row in range(32)]


def stacked_tensors(samples: list[Any]) -> Any:
    return torch.stack(many_tensors(samples))


def slow_start(_worker: int) -> None:
    time.sleep(0.5)


def working(steps: int, work_s: float) -> Iterator[torch.Tensor]:
    for step in range(steps):
        work(work_s)
        yield torch.tensor([step])


def sleeping(steps: int, sleep_s: float) -> Iterator[torch.Tensor]:
    for step in range(steps):
        time.sleep(sleep_s)
        yield torch.tensor([step])


def throttle(file: Path, is_limited: bool) -> None:
    """Evict a file, and let this process read its device slowly; or warm it again. Needs root and the controller blkio."""
    group = Path("/sys/fs/cgroup/blkio", f"storebench-{os.getpid()}")
    if is_limited:
        evict([file])
        group.mkdir()
        device = file.stat().st_dev
        slow = f"{os.major(device)}:{os.minor(device)} {DISK_BYTES_PER_S}"
        (group / "blkio.throttle.read_bps_device").write_text(slow)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    else:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()
        warm([file])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loop with a limit, and the same loop without it."""

    name: str
    planted: Bound
    limited: Callable[[], Iterable[Any]]
    free: Callable[[], Iterable[Any]]
    loop_s: float = 0.003
    free_loop_s: float | None = None
    epochs: int = 1
    before: Callable[[bool], object] = lambda _is_limited: None  # called with whether the limit is there


def torch_loader(steps: int, workers: int, *, batch: int = BATCH, **kinds: Any) -> DataLoader[Any]:
    about = {
        key: kinds.pop(key)
        for key in list(kinds)
        if key in ("work_s", "sleep_s", "stall_s", "locked", "file")
    }
    return DataLoader(Samples(steps * batch, **about), batch, num_workers=workers, **kinds)


def cases(folder: Path) -> list[Case]:
    """Return the cases; those that read a file read one in the folder."""
    file = folder / "data.bin"
    file.write_bytes(os.urandom(FILE_MIB << 20))
    load = torch_loader
    return [
        Case(
            name="slow transform",
            planted=Bound.TRANSFORM,
            limited=lambda: load(120, 2, work_s=0.002),
            free=lambda: load(120, 2),
        ),
        Case(
            name="slow transform, no PyTorch",
            planted=Bound.TRANSFORM,
            limited=lambda: working(120, 0.01),
            free=lambda: working(120, 0.0),
        ),
        Case(
            name="slow disk: a throttled device",
            planted=Bound.STORAGE,
            limited=lambda: load(80, 2, file=file),
            free=lambda: load(80, 2, file=file),
            before=lambda is_limited: throttle(file, is_limited),
        ),
        Case(
            name="slow disk: sleeping reads",
            planted=Bound.WAITING,
            limited=lambda: load(120, 2, sleep_s=0.004),
            free=lambda: load(120, 2),
        ),
        Case(
            name="expensive collate",
            planted=Bound.COLLATE,
            limited=lambda: load(120, 2, collate_fn=working_collate),
            free=lambda: load(120, 2),
        ),
        Case(
            name="too few workers: 1",
            planted=Bound.FEW_WORKERS,
            limited=lambda: load(120, 1, work_s=0.002),
            free=lambda: load(120, 2, work_s=0.002),
        ),
        Case(
            name="too few workers: 0",
            planted=Bound.FEW_WORKERS,
            limited=lambda: load(120, 0, work_s=0.001),
            free=lambda: load(120, 1, work_s=0.001),
            loop_s=0.01,
        ),
        Case(
            name="too many workers: 16",
            planted=Bound.MANY_WORKERS,
            limited=lambda: load(30, 16, sleep_s=0.0002),
            free=lambda: load(30, 1, sleep_s=0.0002),
            loop_s=0.005,
            epochs=4,
        ),
        Case(
            name="small batches: 1",
            planted=Bound.HANDOFF,
            limited=lambda: load(3200, 1, batch=1),
            free=lambda: load(100, 1, batch=32),
            loop_s=0.0,
        ),
        Case(
            name="many tensors per batch",
            planted=Bound.HANDOFF,
            limited=lambda: load(100, 1, collate_fn=many_tensors),
            free=lambda: load(100, 1, collate_fn=stacked_tensors),
        ),
        Case(
            name="compute",
            planted=Bound.COMPUTE,
            limited=lambda: load(120, 2, sleep_s=0.001),
            free=lambda: load(120, 2, sleep_s=0.001),
            loop_s=0.03,
            free_loop_s=0.0,
        ),
        Case(
            name="generator that sleeps",
            planted=Bound.WAITING,
            limited=lambda: sleeping(120, 0.02),
            free=lambda: sleeping(120, 0.0),
        ),
        Case(
            name="lock among workers",
            planted=Bound.LOCK,
            limited=lambda: load(100, 4, sleep_s=0.003, locked=True),
            free=lambda: load(100, 4, sleep_s=0.003),
        ),
        Case(
            name="slow start of workers",
            planted=Bound.STARTUP,
            limited=lambda: load(40, 2, sleep_s=0.001, worker_init_fn=slow_start),
            free=lambda: load(40, 2, sleep_s=0.001, persistent_workers=True),
            loop_s=0.005,
            epochs=3,
        ),
        Case(
            name="stalls every 50 steps",
            planted=Bound.STALLS,
            limited=lambda: load(300, 2, sleep_s=0.0005, stall_s=0.8),
            free=lambda: load(300, 2, sleep_s=0.0005),
            loop_s=0.005,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the profile said of a case."""

    report: Report
    measured_gain: float

    @property
    def error(self) -> float:
        """Predicted over measured gain, less one."""
        return self.report.gain / self.measured_gain - 1.0


def loop(loader: Iterable[Any], loop_s: float, epochs: int) -> float:
    """Return the seconds of a loop."""
    began = time.perf_counter()
    for _ in range(epochs):
        for _batch in loader:
            if loop_s:
                time.sleep(loop_s)
    return time.perf_counter() - began


def report_on(case: Case) -> tuple[Report, float]:
    """Return what the profile says of a case, and the seconds of its loop."""
    case.before(True)
    profiled = storebench.profile(case.limited(), show=False)
    limited_s = loop(profiled, case.loop_s, case.epochs)
    return profiled.report(), limited_s


def measured(case: Case) -> Outcome:
    """Run a case with its limit and without it."""
    report, limited_s = report_on(case)
    case.before(False)
    free_loop_s = case.loop_s if case.free_loop_s is None else case.free_loop_s
    free_s = loop(storebench.profile(case.free(), show=False), free_loop_s, case.epochs)
    return Outcome(report=report, measured_gain=limited_s / free_s)


RANKS = r"""
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self): return 480
    def __getitem__(self, index):
        time.sleep(0.004 if os.environ["RANK"] == sys.argv[1] else 0.0005)
        return index
torch.distributed.init_process_group("gloo")
began = time.perf_counter()
for batch in DataLoader(Samples(), batch_size=8):
    time.sleep(0.003)
    torch.distributed.all_reduce(torch.ones(1))
print(f"{time.perf_counter() - began}\n", end="")
torch.distributed.destroy_process_group()
"""


def slow_rank(folder: Path) -> tuple[str, float, float]:
    """Return what is named of two ranks of which the second is slow, and the predicted and the measured gain."""
    script = folder / "train.py"
    script.write_text(RANKS)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    seconds, texts = [], []
    for slow in ("1", "none"):
        command = (*launcher, "-m", "storebench", "profile", str(script), slow)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(max(map(float, done.stdout.split())))
        texts.append(done.stderr)
    is_named = "limited by a slow rank: rank 1 " in texts[0]
    words = texts[0].partition("waited like the others: ")[2].split()
    return (
        "a slow rank" if is_named else "not named",
        float(words[0]) if words else 1.0,
        seconds[0] / seconds[1],
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of cases")
    parser.add_argument("--json", type=Path, help="also write the reports to this file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")
    wrong, reports = 0, dict[str, str]()
    row = "{:28} {:26} {:26} {:>9} {:>9}"
    print(row.format("loop", "planted", "named", "predicted", "measured"))
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        for case in cases(folder):
            if not options.only or any(part in case.name for part in options.only):
                outcome = measured(case)
                report = outcome.report
                gains = f"{report.gain:.2f}", f"{outcome.measured_gain:.2f}"
                print(row.format(case.name, case.planted, report.bound, *gains), flush=True)
                wrong += report.bound is not case.planted
                reports[case.name] = str(report)
        if not options.only or "slow rank" in options.only:
            named, predicted, gain = slow_rank(folder)
            print(row.format("slow rank", "a slow rank", named, f"{predicted:.2f}", f"{gain:.2f}"))
            wrong += named != "a slow rank"
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1))
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main()
