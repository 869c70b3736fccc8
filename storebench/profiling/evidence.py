"""What a profile says: the limit, the predicted gain, and the evidence, in at most twelve lines."""

import enum
import linecache
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storebench.plain_text import plain
from storebench.probes.counters import counts_reads
from storebench.probes.machine import mount_of
from storebench.profiling.files import Files
from storebench.profiling.recorder import MOST_STEPS, Recorder
from storebench.profiling.sampling import Place
from storebench.units import rounded_bytes

_SHOWN_LINES = 2
_SHOWN_FRAC = 0.01
"""A share of the time below this is not shown."""

_SHOWN_CORES = 0.25
"""Other processes that used fewer cores are not mentioned."""


class Bound(enum.StrEnum):
    """The limit of a loop."""

    COMPUTE = "the loop itself (compute)"
    TRANSFORM = "decode or transforms"
    STORAGE = "storage"
    WAITING = "waits in the dataset"
    LOCK = "a lock"
    COLLATE = "collate"
    HANDOFF = "the handoff"
    PINNING = "pinning"
    LOADER = "the loader"
    FEW_WORKERS = "too few workers"
    MANY_WORKERS = "too many workers"
    STARTUP = "the start of epochs"
    STALLS = "stalls"
    UNKNOWN = "nothing yet: too few steps"


_REMEDIES = {
    Bound.COMPUTE: "a faster accelerator or a smaller network; loading is not the limit",
    Bound.TRANSFORM: "a faster decoder, cheaper transforms, or images stored smaller or decoded",
    Bound.STORAGE: "more reads in flight (workers), fewer bytes, a faster disk, or more memory",
    Bound.WAITING: "find the network, process or disk that it waits for; more workers hide waits",
    Bound.LOCK: "one file or object per worker",
    Bound.COLLATE: "less work per batch: tensors of one shape, made in the dataset",
    Bound.HANDOFF: "larger batches, or fewer tensors per batch",
    Bound.PINNING: "fewer bytes per batch: uint8 images, converted on the device",
    Bound.LOADER: "its inside was not seen",
    Bound.FEW_WORKERS: "num_workers={}",
    Bound.MANY_WORKERS: "num_workers={}",
    Bound.STARTUP: "persistent_workers=True, or less work at the start of a worker",
    Bound.STALLS: "the slowest samples, or a larger prefetch_factor",
    Bound.UNKNOWN: "a longer loop",
}


@dataclass(frozen=True, kw_only=True)
class HotLine:
    """A line of code, and its share of the samples taken while batches were made."""

    share: float
    file: str
    line: int
    text: str
    calls: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What limits a loop, how much faster it would be without that, and the evidence.

    Times are means in seconds, without the starts of epochs and stalls: `wait_s` and `loop_s` per step, `parts_s` per batch
    in one process. None is not known.
    """

    bound: Bound
    gain: float = 1.0
    steps: int = 0
    epochs: int = 0
    total_s: float = 0.0
    wait_s: float = 0.0
    loop_s: float = 0.0
    workers: int = 0
    workers_needed: int | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    busy_frac: float | None = None
    ready_batches: float | None = None
    prefetched: int = 0
    others_cores: float = 0.0
    device_bytes: float | None = None
    major_faults: float | None = None
    first_wait_s: float = 0.0
    init_s: float = 0.0  # of a worker, by the loader's worker_init_fn
    startup_s: float = 0.0
    stall_count: int = 0
    stall_s: float = 0.0
    hot: tuple[HotLine, ...] = ()
    files: Files | None = None
    unseen: tuple[str, ...] = ()

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.wait_s + self.loop_s

    @property
    def wait_frac(self) -> float:
        """Share of the whole time that the loop waits for data, starts of epochs and stalls included."""
        return 1.0 - min(1.0, self.loop_s * self.steps / self.total_s) if self.total_s else 0.0

    @property
    def remedy(self) -> str:
        """What to try."""
        return _REMEDIES[self.bound].format(self.workers_needed)

    def __str__(self) -> str:
        return "\n".join(plain(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"storebench profile: limited by {self.bound}; {self.wait_frac:.0%} of the time is waiting for data"
        yield f"  try: {self.remedy}"
        if not self.total_s:
            return
        yield f"  predicted without this limit: {self.gain:.2f} times as fast"
        yield _row(f"per step, of {self.steps:,}", {"wait": self.wait_s, "loop": self.loop_s})
        if self.parts_s:
            yield _row(f"per batch, {self.workers} workers" if self.workers else "per batch", self.parts_s)
        if self.shares:
            yield "  making batches: " + ", ".join(
                f"{name} {share:.0%}" for name, share in self.shares.items()
            )
        if self.busy_frac is not None and self.ready_batches is not None and self.workers:
            yield f"  workers busy {self.busy_frac:.0%}, batches ready {self.ready_batches:.1f} of {self.prefetched}"
        hot = list(self.hot[:_SHOWN_LINES])
        if self.startup_s > _SHOWN_FRAC * self.total_s:
            yield (
                f"  starts of epochs {self.startup_s / self.total_s:.0%} of the time: "
                f"first batch after {self.first_wait_s:.2f} s, worker_init_fn {self.init_s:.2f} s"
            )
        if self.stall_s > _SHOWN_FRAC * self.total_s:
            yield f"  stalls {self.stall_s / self.total_s:.0%} of the time: {self.stall_count}"
            hot = hot[:1]  # there are twelve lines at most
        for line in hot:
            yield f"  {line.share:.0%} in {Path(line.file).name}:{line.line}  {line.text[:70]}"
        if self.files is not None:
            frac = self.files.resident_frac
            cached = "unknown" if frac is None else f"{frac:.0%}"
            device = rounded_bytes(self.device_bytes or 0.0)
            yield f"  {self.files.folder}: {cached} in memory when first seen; from devices {device} per batch"
        if self.unseen:
            yield f"  not seen: {'; '.join(self.unseen)}"


def _row(title: str, cells: Mapping[str, float]) -> str:
    return f"  {title}: " + ", ".join(f"{name} {1e3 * seconds:,.2f} ms" for name, seconds in cells.items())


def hot_lines(places: Counter[Place]) -> tuple[HotLine, ...]:
    """Return the lines of the user's code with the most samples."""
    lines: dict[tuple[str, int], Counter[str]] = {}
    for place, count in places.items():
        calls = lines.setdefault((place.file, place.line), Counter())
        calls[f"{Path(place.inner_file).name} {place.inner_function}"] += count
    return tuple(
        HotLine(
            share=calls.total() / places.total(),
            file=file,
            line=line,
            text=linecache.getline(file, line).strip(),
            calls=calls.most_common(1)[0][0],
        )
        for (file, line), calls in sorted(lines.items(), key=lambda item: -item[1].total())[:5]
    )


def unseen_of(recorder: Recorder, *, is_inside_seen: bool) -> Iterator[str]:
    """Return what could not be seen."""
    if not is_inside_seen:
        reason = "batches came without times" if recorder.workers else "it is not a DataLoader of torch"
        yield f"the inside of the loader ({recorder.opaque or reason})"
    if recorder.step_count > MOST_STEPS:
        yield f"all but the last {MOST_STEPS:,} steps"
    for path in recorder.files:
        try:
            kind = mount_of(path).fstype
        except OSError:
            continue
        if not counts_reads(kind):
            yield f"reads from devices (not counted on {kind})"
            return
