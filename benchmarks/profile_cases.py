"""Are planted limits of loops named, and their gains predicted? ``python -m benchmarks.profile_cases``.

Each loop runs profiled with its limit, and again, not profiled, with it and without it. Planted is what was built in,
named what the profile says; the last columns are the predicted and the measured speed-up. Exit code 1 if fewer than the
goals are right.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
import multiprocessing
import os
import socket
import socketserver
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate

import storebench
from benchmarks.control_groups import control_group, limit_reads
from storebench.probes.page_cache import evict, warm
from storebench.settings.words import Limit

NAMED_GOAL, GAIN_GOAL = 28 / 30, 24 / 30
MOST_ERROR = 0.15
FILE_MIB, READ_BYTES, DISK_BYTES_PER_S = 512, 1 << 18, 60 << 20


@dataclass(frozen=True)
class Loop:
    """A training loop over samples that cost what is asked for; `free` is what changes if the limit is removed."""

    name: str
    planted: Limit
    free: dict[str, Any]  # empty if it is the number of workers, which becomes the advised one
    epochs: int = 1
    steps: int = 120  # of an epoch with batches of eight
    batch: int = 8
    loop_s: float = 0.003
    workers: int | None = 2  # None for a generator
    persistent: bool = False
    init_s: float = 0.0  # of a worker, or of an epoch of a generator
    work_s: float = 0.0  # per sample, as all that follow except collate_s
    sleep_s: float = 0.0
    reply_s: float = 0.0  # of a server
    locked: bool = False
    stall_s: float = 0.0  # every 50 steps
    slow_s: float = 0.0  # of computing, one sample in 50
    first_s: float = 0.0  # of the loop's first step
    pause_s: float = 0.0  # of the loop, every 40 steps
    slow_disk: bool | None = None  # None if no file is read
    jpeg: bool = False
    collate_s: float = 0.0
    split: bool = False  # into many tensors

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of an epoch without a loader."""
        samples = Samples(self)
        time.sleep(self.init_s)
        for step in range(len(samples) // self.batch):
            yield self.collate([samples[step * self.batch + index] for index in range(self.batch)])

    def loader(self) -> Iterable[Any]:
        if self.reply_s:
            server_address()  # started here, as workers may not start processes
        if self.workers is None:
            return self
        return DataLoader(
            Samples(self),
            self.batch,
            num_workers=self.workers,
            collate_fn=self.collate,
            worker_init_fn=lambda _worker: time.sleep(self.init_s),
            persistent_workers=self.persistent,
        )

    def collate(self, samples: list[Any]) -> Any:
        work(self.collate_s)
        if self.split:
            return [sample[0, row].clone() for sample in samples for row in range(32)]
        return default_collate(samples)

    def train(self, loader: Iterable[Any]) -> float:
        """Return the seconds of the loop over a loader."""
        began = time.perf_counter()
        for _ in range(self.epochs):
            for step, _batch in enumerate(loader):
                pause_s = self.pause_s if step % 40 == 39 else 0.0
                if seconds := self.loop_s + pause_s + (0.0 if step else self.first_s):
                    time.sleep(seconds)
        return time.perf_counter() - began


def work(seconds: float) -> None:
    """Compute for so many CPU seconds."""
    ends = time.thread_time() + seconds
    block = np.ones(20_000)
    while time.thread_time() < ends:
        np.sqrt(block)


class Samples(Dataset[Any]):
    """Samples that cost what a loop asks for."""

    file: Path
    """The file that `slow_disk` loops read."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.lock = multiprocessing.Lock() if loop.locked else contextlib.nullcontext()
        photo = io.BytesIO()
        Image.effect_noise((160, 160), 64).convert("RGB").save(photo, "JPEG")
        self.photo = photo.getvalue()

    def __len__(self) -> int:
        return self.loop.steps * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        loop = self.loop
        if loop.sleep_s:
            with self.lock:
                time.sleep(loop.sleep_s)
        if loop.stall_s and index % (50 * loop.batch) == 25 * loop.batch:
            time.sleep(loop.stall_s)
        if loop.reply_s:
            ask(loop.reply_s)
        work(loop.work_s + (loop.slow_s if index % 50 == 25 else 0.0))
        if loop.jpeg:
            return torch.from_numpy(np.array(Image.open(io.BytesIO(self.photo)).resize((32, 32)))).permute(
                2, 0, 1
            )
        if loop.slow_disk is not None:
            with self.file.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                # Far apart, so that no read-ahead of the device helps.
                place = index * 37 % (FILE_MIB << 20 >> 18)
                return torch.frombuffer(
                    bytearray(os.pread(file.fileno(), READ_BYTES, place << 18)), dtype=torch.uint8
                )
        return torch.full((3, 32, 32), index)


class Replies(socketserver.StreamRequestHandler):
    """Replies late to a line with the seconds to wait."""

    def handle(self) -> None:
        time.sleep(float(self.rfile.readline()))
        self.wfile.write(bytes(1 << 16))


@functools.cache
def server_address() -> Any:
    """Return the address of a server that replies late, from a process of its own."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Replies)
    multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True).start()
    return server.server_address


def ask(reply_s: float) -> None:
    with socket.create_connection(server_address()) as connection, connection.makefile("rb") as reply:
        connection.sendall(f"{reply_s}\n".encode())
        reply.read()


JPEG: dict[str, Any] = {"jpeg": True, "batch": 32, "steps": 480}
DISK: dict[str, Any] = {"slow_disk": True, "steps": 250}
AT_ONCE: dict[str, Any] = {"reply_s": 1e-9}  # the requests stay
SMALL: dict[str, Any] = {"steps": 300, "workers": 1, "work_s": 0.0001, "loop_s": 0.0}
LOOPS = [
    Loop("slow transform", Limit.TRANSFORM, {"work_s": 0.0}, work_s=0.002),
    Loop("slow transform, 4 workers", Limit.TRANSFORM, {"work_s": 0.0}, work_s=0.002, workers=4),
    Loop("slow transform, generator", Limit.TRANSFORM, {"work_s": 0.0}, work_s=0.001, workers=None),
    Loop("JPEG decode", Limit.TRANSFORM, {"jpeg": False}, **JPEG),
    Loop("throttled disk", Limit.STORAGE, {"slow_disk": False}, **DISK),
    Loop("throttled disk, no workers", Limit.STORAGE, {"slow_disk": False}, **DISK, workers=0),
    Loop("throttled disk, generator", Limit.STORAGE, {"slow_disk": False}, **DISK, workers=None),
    Loop("slow network", Limit.WAITING, AT_ONCE, reply_s=0.004),
    Loop("slow network, no workers", Limit.WAITING, AT_ONCE, reply_s=0.002, workers=0),
    Loop("slow network, generator", Limit.WAITING, AT_ONCE, reply_s=0.002, workers=None),
    Loop("sleeping reads", Limit.WAITING, {"sleep_s": 0.0}, sleep_s=0.004),
    Loop("sleeping reads, 4 workers", Limit.WAITING, {"sleep_s": 0.0}, sleep_s=0.008, workers=4),
    Loop("expensive collate", Limit.COLLATE, {"collate_s": 0.0}, collate_s=0.016),
    Loop("collate of many samples", Limit.COLLATE, {"collate_s": 0.0}, collate_s=0.02, batch=32, steps=480),
    Loop("too few workers: 1", Limit.WORKERS, {}, work_s=0.002, workers=1),
    Loop("too few workers: 0", Limit.WORKERS, {}, work_s=0.001, workers=0, loop_s=0.01),
    Loop("too few workers: 0, JPEG", Limit.WORKERS, {}, **JPEG, workers=0, loop_s=0.01),
    Loop("too many workers: 16", Limit.MANY_WORKERS, {"workers": 1}, workers=16, epochs=4, steps=40),
    Loop("too many workers: 8", Limit.MANY_WORKERS, {"workers": 1}, workers=8, epochs=4, steps=40),
    Loop("small batches: 1", Limit.SMALL_BATCHES, {"batch": 32}, batch=1, **SMALL),
    Loop("small batches: 2", Limit.SMALL_BATCHES, {"batch": 32}, batch=2, **SMALL),
    Loop("many tensors per batch", Limit.HANDOFF, {"split": False}, split=True, workers=1),
    Loop("compute", Limit.COMPUTE, {"loop_s": 0.0}, loop_s=0.03, sleep_s=0.001),
    Loop("compute, no workers", Limit.COMPUTE, {"loop_s": 0.0}, loop_s=0.06, sleep_s=0.0005, workers=0),
    Loop("compute, generator", Limit.COMPUTE, {"loop_s": 0.0}, loop_s=0.06, work_s=0.0005, workers=None),
    Loop("lock among 4 workers", Limit.LOCK, {"locked": False}, locked=True, sleep_s=0.003, workers=4),
    Loop("lock among 2 workers", Limit.LOCK, {"locked": False}, locked=True, sleep_s=0.003),
    Loop("slow start of workers", Limit.STARTUP, {"persistent": True}, init_s=0.5, epochs=3, steps=40),
    Loop("slow start of a generator", Limit.STARTUP, {"init_s": 0.0}, init_s=0.5, epochs=3, workers=None),
    Loop("start of 5 s", Limit.STARTUP, {"init_s": 0.0}, init_s=5.0, workers=1, steps=400),
    Loop("slow first step", Limit.COMPUTE, {"loop_s": 0.0, "first_s": 0.0}, first_s=4.0, loop_s=0.02),
    Loop("slow sample in 50", Limit.SLOW_SAMPLES, {"slow_s": 0.0}, slow_s=0.1, work_s=0.0002),
    Loop(
        "evaluation every 40 steps",
        Limit.WORKERS,
        {},
        workers=0,
        sleep_s=0.006,
        loop_s=0.012,
        pause_s=1.9,
    ),
    Loop("stalls every 50 steps", Limit.STALLS, {"stall_s": 0.0}, stall_s=0.8, sleep_s=0.0005, steps=300),
]


class Outcome(NamedTuple):
    """What the profile said of a loop, and the gain of removing its limit."""

    named: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured gain, less one."""
        return self.predicted / self.measured - 1.0


@contextlib.contextmanager
def slow_device(file: Path) -> Iterator[None]:
    """Evict a file, and let this process read its device slowly; warm it again at the end."""
    evict([file])
    device = file.stat().st_dev
    with control_group(f"storebench-{os.getpid()}", "blkio", "io") as group:
        limit_reads(group, f"{os.major(device)}:{os.minor(device)}", DISK_BYTES_PER_S)
        (group.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (group.folder.parent / "cgroup.procs").write_text(str(os.getpid()))
    warm([file])


def seconds_of(loop: Loop, loader: Iterable[Any]) -> float:
    with slow_device(Samples.file) if loop.slow_disk else contextlib.nullcontext():
        return loop.train(loader)


def measured(loop: Loop) -> Outcome:
    """Run a loop with its limit, profiled and not, and without it."""
    profiled = storebench.profile(loop.loader(), show=False)
    seconds_of(loop, profiled)
    report = profiled.report()
    free = dataclasses.replace(loop, **(loop.free or {"workers": report.workers_needed}))
    limited_s, free_s = (seconds_of(each, each.loader()) for each in (loop, free))
    return Outcome(report.bound, report.gain, limited_s / free_s)


RANKS = r"""
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self): return 960
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


def slow_rank(folder: Path) -> Outcome:
    """Return what is named of two ranks of which the second is slow, and the gain if it is not."""
    script = folder / "train.py"
    script.write_text(RANKS)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    seconds, texts = [], []
    for slow in ("1", "none"):
        command = (*launcher, "-m", "storebench", "profile", str(script), slow)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(max(map(float, done.stdout.split())))
        texts.append(done.stderr)
    named = texts[0].partition("limited by ")[2].partition(":")[0]
    words = texts[0].partition("waited like the others: ")[2].split()
    return Outcome(named, float(words[0]) if words else 1.0, seconds[0] / seconds[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="part of the names of loops")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    named = near = count = 0
    row = "{:30} {:26} {:26} {:>9} {:>9} {:>6}"
    print(row.format("loop", "planted", "named", "predicted", "measured", "error"))
    with tempfile.TemporaryDirectory(dir=".") as place:
        folder = Path(place).resolve()
        Samples.file = folder / "data.bin"
        Samples.file.write_bytes(os.urandom(FILE_MIB << 20))
        runs: dict[str, tuple[str, Callable[[], Outcome]]] = {
            loop.name: (loop.planted, functools.partial(measured, loop)) for loop in LOOPS
        }
        runs["slow rank"] = "a slow rank", functools.partial(slow_rank, folder)
        for name, (planted, run) in runs.items():
            if only not in name:
                continue
            try:
                outcome = run()
            except OSError as error:
                print(f"{name}: left out, {error}")
                continue
            count += 1
            named += outcome.named == planted
            near += abs(outcome.error) <= MOST_ERROR
            gains = f"{outcome.predicted:.2f}", f"{outcome.measured:.2f}", f"{outcome.error:+.0%}"
            print(row.format(name, planted, outcome.named, *gains), flush=True)
    print("pinned memory off: left out, what a copy to a device takes is not measured")
    print(f"named {named} of {count}; gain within {MOST_ERROR:.0%} for {near}")
    sys.exit(int(named < NAMED_GOAL * count or near < GAIN_GOAL * count))


if __name__ == "__main__":
    main()
