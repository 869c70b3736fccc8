"""What a profile says: the limit, the predicted gain, and the evidence, in at most twelve lines."""

import linecache
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storebench.plain_text import plain
from storebench.probes.machine import counts_reads, mount_of
from storebench.profiling.batch_times import BatchTimes
from storebench.profiling.memory import MemoryReport
from storebench.profiling.operations import DECODING
from storebench.profiling.recorder import Recorder
from storebench.profiling.stacks import CodeLine
from storebench.settings.words import Limit
from storebench.units import number_of, rounded_bytes

# Of fewer looks, the shares of lines are too rough to stand beside measured times.
LEAST_LOOKS = 30
_SHOWN_LINES, _SHOWN_OPERATIONS, _MOST_LINES = 2, 5, 12
# Converting is advised if the loop would be this many times as fast without decoding.
_PAYS = 1.10
# Samples are told to differ if one in a hundred takes so many times the median.
_UNEVEN = 3.0
# A share of the time below this is not shown.
_SHOWN_FRAC = 0.01
# The folder of the files has this share of those of their kind that were seen open.
_NEARLY_ALL = 0.9
_IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
# Suffixes of files that ``storebench run`` can convert.
_CONVERTED = _IMAGES | {".tar", ".parquet"}

_LOADER = "storebench.Loader(dataset, {0.batch_size}, workers={0.workers})"
_REMEDIES = {
    Limit.COMPUTE: "a faster accelerator or a smaller network; loading is not the limit",
    Limit.TRANSFORM: "a faster decoder, cheaper transforms, or images stored smaller or decoded",
    Limit.STORAGE: "more reads in flight (workers), fewer bytes, a faster disk, or more memory",
    Limit.WAITING: "the network, process or disk that it waits for; more workers hide waits",
    Limit.LOCK: "one file or object per worker",
    Limit.REPEATED: "do it once",
    Limit.SLOW_SAMPLES: "store these like the others, or a larger prefetch_factor",
    Limit.COLLATE: "padding by whole slices into an array of the final size, or tensors of one shape",
    Limit.HANDOFF: f"fewer tensors per batch; for a store of raw pixels, {_LOADER}",
    Limit.SMALL_BATCHES: "larger batches",
    Limit.PINNING: "fewer bytes per batch: uint8 images, converted on the device",
    Limit.LOADER: "its inside was not seen",
    Limit.WORKERS: "num_workers={0.workers_needed}",
    Limit.MANY_WORKERS: "num_workers={0.workers_needed}",
    Limit.STARTUP: "persistent_workers=True, or less work at the start of a worker",
    Limit.STALLS: "the slowest samples, or a larger prefetch_factor",
    Limit.UNKNOWN: "a longer loop",
}
# Limits that a store of smaller or decoded images may take away.
_DECODING = (
    Limit.TRANSFORM,
    Limit.SLOW_SAMPLES,
    Limit.STORAGE,
    Limit.WAITING,
    Limit.WORKERS,
    Limit.LOADER,
)


@dataclass(frozen=True)
class Operation:
    """An operation of making a batch: its share, its seconds, and how many times as fast the loop is without it."""

    name: str
    share: float
    seconds: float
    gain: float


@dataclass(frozen=True)
class HotLine:
    """A line of code, and its share of the samples taken while batches were made."""

    share: float
    file: str
    line: int
    text: str
    calls: str


@dataclass(frozen=True, kw_only=True)
class SlowSamples:
    """The few samples that take much of the time of a dataset."""

    frac: float  # of the samples
    time_frac: float
    usual_s: float  # of the others
    least_s: float
    longest_s: float
    longest: int  # the index of the slowest

    def excess_frac(self, made: BatchTimes) -> float:
        """Return the share of the dataset's time for a batch that its slow sample took beyond the usual."""
        longest_s = 1e-9 * made.longest_ns
        return (longest_s - self.usual_s) / (1e-9 * made.dataset_ns) if longest_s > self.least_s else 0.0

    def __str__(self) -> str:
        return (
            f"{100 * self.frac:.2g}% of the samples take {self.time_frac:.0%} of the dataset's time"
            f" (dataset[{self.longest}]: {1e3 * self.longest_s:,.0f} ms, usual {1e3 * self.usual_s:,.1f})"
        )


@dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """What limits a loop, how much faster it would be without that, and the evidence.

    Times are means in seconds, without the starts of epochs and stalls: `wait_s` and `loop_s` per step,
    `parts_s` per batch in one process. None is not known.
    """

    bound: Limit
    gain: float = 1.0
    advice: str = ""  # if it is not that of the limit
    steps: int = 0
    epochs: int = 0
    total_s: float = 0.0
    wait_s: float = 0.0
    loop_s: float = 0.0
    elsewhere_s: float = 0.0  # per step, in requests to other loaders
    loader: str = ""
    script_frac: float | None = None  # the share of the waits and loops in the time of the script
    others_s: Mapping[str, float] = field(default_factory=dict)  # waits for other loaders, in all
    judged_s: float = 0.0  # of the steps that are judged
    wait_frac: float = 0.0  # share of it that the loop waits for data, starts of epochs and stalls included
    first_loops_s: float = 0.0  # of the first steps of epochs, beyond the usual
    first_epoch: float = (
        0.0  # how many times as long its steps took, if it is unlike the others and not judged
    )
    slow: SlowSamples | None = None
    sample_s: Mapping[str, float] = field(default_factory=dict)  # p50, p95 and p99
    any_order: float | None = None  # the gain if slow samples delayed no others
    workers: int = 0
    cores: int = 0
    batch_size: int | None = None
    workers_needed: int | None = None
    by_workers: Mapping[int, float] = field(default_factory=dict)  # predicted: how many times as fast
    parts_s: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float | None = None
    device_bytes: float | None = None
    ready_batches: float | None = None
    prefetched: int = 0
    first_batch_s: float = 0.0
    worker_start_s: float | None = None
    startup_s: float = 0.0
    stall_s: float = 0.0
    operations: tuple[Operation, ...] = ()  # the most expensive first
    decoding: float | None = None  # the gain without it
    looks: int = 0  # at the line that makes a batch
    hot: tuple[HotLine, ...] = ()
    folder: str = ""  # of nearly all files that the dataset opened
    suffix: str = ""  # of these
    disturbed: str = ""  # by other programs
    unseen: tuple[str, ...] = ()
    memory: MemoryReport | None = None

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.wait_s + self.loop_s + self.elsewhere_s

    @property
    def remedy(self) -> str:
        """What to try."""
        if self.bound is Limit.TRANSFORM and self.operations:
            name = self.operations[0].name
            cheaper = "a faster decoder" if name == DECODING else f"a cheaper {name}"
            return f"{cheaper}, or images stored smaller or decoded" if self.pays_converting else cheaper
        return self.advice or _REMEDIES[self.bound].format(self)

    @property
    def pays_converting(self) -> bool:
        """Whether a store of decoded images may gain a tenth."""
        return self.decoding is None or self.decoding >= _PAYS

    def __str__(self) -> str:
        above, below = list(self._lines()), list(self._lines_below())
        most = max(0, min(_SHOWN_LINES, _MOST_LINES - len(above) - len(below)))
        hot = [
            f"  {line.share:.0%} in {Path(line.file).name}:{line.line}  {line.text[:70]}"
            for line in self.hot[: most if self.looks >= LEAST_LOOKS else 0]
        ]
        return "\n".join(map(plain, (*above, *hot, *below)[:_MOST_LINES]))

    def _lines(self) -> Iterator[str]:
        if not self.total_s:
            yield f"storebench profile: {self.bound}; try {self.remedy}"
        else:
            yield f"storebench profile: limited by {self.bound}; {self.wait_frac:.0%} of the time is waiting for data"
            yield f"  try: {self.remedy}; predicted without this limit: {self.gain:.2f} times as fast"
        if self.loader:
            frac = (
                "" if self.script_frac is None else f"; its loop takes {self.script_frac:.0%} of the script"
            )
            others = ", ".join([f"{seconds:.2f} s for {name}" for name, seconds in self.others_s.items()][:2])
            yield f"  loader: {self.loader}{frac}{'; also waited ' if others else ''}{others}"
        steps_s = {
            "wait": self.wait_s,
            "loop": self.loop_s,
            "other loaders": self.elsewhere_s or None,
        }
        if self.total_s:
            yield _times(f"per step, of {self.steps:,}", steps_s)
        if self.parts_s:
            workers = number_of(self.workers, "worker")
            yield _times(f"per batch, {workers}" if self.workers else "per batch", self.parts_s)
        if self.shares:
            yield _row("making batches", {name: f"{share:.0%}" for name, share in self.shares.items()})
        if self.operations:
            first, shown = self.operations[0], self.operations[:_SHOWN_OPERATIONS]
            shares = ", ".join(f"{row.name} {row.share:.0%}" for row in shown)
            yield f"  operations: {shares}; without {first.name} at most {first.gain:.2f} times as fast"
        for title, notes in (("", self._notes()), ("samples: ", self._samples())):
            if text := "; ".join(notes):
                yield f"  {title}{text}"

    def _notes(self) -> Iterator[str]:
        if self.disturbed:
            yield f"{self.disturbed}: repeat this on an idle machine"
        if self.first_loops_s > _SHOWN_FRAC * self.judged_s:
            yield f"first steps of the loop: {self.first_loops_s:.1f} s"
        if self.first_epoch:
            lost = "" if self.workers else ", and workers would not have what this process caches"
            yield f"epoch 1 was {self.first_epoch:.1f} times as long: this is about the later ones{lost}"

    def _samples(self) -> Iterator[str]:
        if self.slow:
            yield str(self.slow)
        elif self.sample_s and self.sample_s["p99"] > _UNEVEN * self.sample_s["p50"]:
            yield ", ".join(f"{name} {1e3 * s:,.1f} ms" for name, s in self.sample_s.items())
        if self.any_order and self.any_order >= _PAYS:
            yield f"in any order (in_order=False) {self.any_order:.2f} times as fast"

    def _lines_below(self) -> Iterator[str]:
        if not self.total_s:
            return
        if self.by_workers:
            factors = {f"{count}": f"{factor:.2f} times" for count, factor in self.by_workers.items()}
            yield _row("as fast by workers (predicted)", factors)
        if self.folder:
            yield f"  {self.folder}: from devices {rounded_bytes(self.device_bytes or 0.0)} per batch"
        if self.suffix in _CONVERTED and self.bound in _DECODING:
            gain = f"without decoding at most {self.decoding:.2f} times as fast: " if self.decoding else ""
            command = f"storebench run --dataset {shlex.quote(self.folder)}"
            yield f"  converting these files: {gain}{command if self.pays_converting else 'it does not pay'}"
        if self.memory and self.memory.samples:
            yield from (f"  {line}" for line in self.memory.lines())
        if self.unseen:
            yield f"  not seen: {'; '.join(self.unseen)}"
        waits = {"first batch": f"{self.first_batch_s:.2f} s"}
        if self.worker_start_s is not None:
            waits["of it workers' start"] = f"{self.worker_start_s:.2f} s"
        if self.startup_s + self.stall_s > _SHOWN_FRAC * self.total_s:
            waits |= {"starts of epochs": f"{self.startup_s:.2f} s", "stalls": f"{self.stall_s:.2f} s"}
        if self.prefetched and self.ready_batches is not None:
            waits["batches ready"] = f"{self.ready_batches:.1f} of {self.prefetched}"
        yield _row("waits", waits)


def _times(title: str, seconds: Mapping[str, float | None]) -> str:
    return _row(title, {name: f"{1e3 * s:,.2f} ms" for name, s in seconds.items() if s is not None})


def _row(title: str, cells: Mapping[str, str]) -> str:
    return f"  {title}: " + ", ".join(f"{name} {text}" for name, text in cells.items())


def hot_lines(looks: Counter[CodeLine]) -> tuple[HotLine, ...]:
    """Return the lines of the user's code with the most looks."""
    lines: Counter[tuple[str, int]] = Counter()
    calls: dict[tuple[str, int], str] = {}
    for (file, line, call), count in looks.most_common():
        lines[file, line] += count
        calls.setdefault((file, line), call)
    return tuple(
        HotLine(count / looks.total(), *place, text=_code(*place), calls=calls[place])
        for place, count in lines.most_common(5)
    )


def _code(file: str, line: int) -> str:
    """Return a line of code; that of a condition after the line of its loop."""
    text = linecache.getline(file, line)
    indent = len(text) - len(text.lstrip())
    above = (code for code in reversed(linecache.getlines(file)[: line - 1]) if code.strip())
    outer = next((code.strip() for code in above if len(code) - len(code.lstrip()) < indent), "")
    is_walk = text.lstrip().startswith("if ") and outer.startswith("for ")
    return f"{outer} {text.strip()}" if is_walk else text.strip()


def home_of(opened: Counter[str]) -> tuple[str, str]:
    """Return the innermost folder of nearly all open files of one kind, that of the largest, and their suffix.

    A process has lists and models open as well, so images count before all others.
    """
    sizes: dict[Path, int] = {}
    for path in map(Path, opened):
        if not path.is_dir():
            sizes[path] = path.stat().st_size if path.is_file() else 0  # gone since
    if not sizes:
        return "", ""
    suffix = max(sizes, key=lambda path: (path.suffix.lower() in _IMAGES, sizes[path])).suffix.lower()
    counts = {path: opened[str(path)] for path in sizes if path.suffix.lower() == suffix}
    above: Counter[Path] = Counter()
    for path, count in counts.items():
        above.update(dict.fromkeys(path.parents, count))
    homes = [folder for folder, count in above.items() if count >= _NEARLY_ALL * sum(counts.values())]
    return str(max(homes, key=lambda home: len(home.parts))), suffix


def unseen_of(recorder: Recorder, folder: str, *, is_inside_seen: bool) -> Iterator[str]:
    if recorder.makes:
        yield "the inside of the loader (it is not a DataLoader of torch)"
    elif recorder.is_ahead:
        yield "the inside of the loader (a thread reads its batches ahead)"
    elif not is_inside_seen:
        yield "the inside of the loader (batches came without times)"
    elif recorder.seen.unclocked and not recorder.seen.operations:
        yield f"operations: {next(iter(recorder.seen.unclocked))}"
    filesystem = mount_of(folder).fstype if Path(folder).is_dir() else ""
    if folder and not counts_reads(filesystem):
        yield f"reads from devices (not counted on {filesystem})"
