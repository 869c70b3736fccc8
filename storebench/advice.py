"""What to do with some images: one row per choice, and what a training script needs to know; every figure was measured."""

import dataclasses
import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storebench.accelerators import Accelerator, usual
from storebench.comparison import MIN_ROUNDS, Ratio, Verdict, estimate
from storebench.first_run.facts import NETWORK_SIDE
from storebench.report.analysis import RunFolders
from storebench.report.answer import disturbed
from storebench.report.cells import CellSummary
from storebench.report.checks.records import cells_of, read_all, validate_records
from storebench.report.labels import (
    FORMATS,
    ORIGINAL,
    backend_label,
    condition_label,
    dataset_label,
    duration,
    number,
    percent,
    size,
)
from storebench.report.panels import BASES, IN_PLACE, rate_ratio, state_rank
from storebench.report.roofline import BUSY_FRAC, Model, rooflines
from storebench.report.tables import Table
from storebench.results import Cell
from storebench.runs.promised import incomplete
from storebench.settings.words import CacheState, ComputeKind
from storebench.units import number_of

NOTHING = "nothing"


class Change(enum.IntEnum):
    """The kinds of choices, those first that change least in training."""

    FILES = 0
    SAME = 1
    DECODER = 2
    SHRUNK = 3
    RAW = 4


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to store and decode the images, as far as the advice depends on it."""

    label: str
    change: Change
    changes: str = NOTHING
    """What changes in training, in a few words."""
    ratio: Ratio | None = None
    """Its rate over that of the files."""
    feeds: bool = False
    """Whether it keeps the accelerator busy that was named."""

    @property
    def verdict(self) -> Verdict:
        return self.ratio.verdict if self.ratio else Verdict.UNDECIDED

    @property
    def times(self) -> float:
        return (self.ratio and self.ratio.mid) or 0.0


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One sentence on what to do, the table of all choices, and labelled lines."""

    sentence: str
    table: Table | None = None
    lines: tuple[str, ...] = ()
    chosen: Cell | None = None
    """The cell of the store to convert into, if any."""
    convert_s: float | None = None
    findings: int = 0


def decide(
    base: Choice, others: Sequence[Choice], *, rounds: int, accelerator: str = "", workers: int | None = None
) -> tuple[str, Choice | None]:
    """Return what to do, with converting at equal augmentation first, and the choice that it recommends.

    `workers` are those by which the files feed the accelerator on this machine, if they can.
    """
    if accelerator and base.feeds:
        return f"Keep {base.label}: fast enough for {accelerator}.", None
    if accelerator and workers:
        return f"Keep {base.label}: fast enough for {accelerator} with {workers} workers, one per core.", None
    if not others:
        return f"Nothing to compare {base.label} with was measured.", None
    if rounds < MIN_ROUNDS:
        first = max(others, key=lambda choice: choice.times)
        return (
            f"Undecided after {number_of(rounds, 'round')}; {first.label} may be fastest. {MIN_ROUNDS} rounds decide.",
            None,
        )
    equal = [choice for choice in others if choice.changes == NOTHING]
    unsure = any(choice.verdict is Verdict.UNDECIDED for choice in equal)
    if best := _best(equal):
        return (
            f"Convert to {best.label}: {number(best.times, 2)} times as fast, and training stays the same.",
            best,
        )
    if best := _best(c for c in others if c.change is not Change.RAW) or _best(others):
        gain = "is undecided" if unsure else "gains nothing"
        return (
            f"Converting at equal augmentation {gain}; {best.label}: {number(best.times, 2)} times as fast, but {best.changes}.",
            best,
        )
    if any(choice.verdict is Verdict.UNDECIDED for choice in others):
        return f"Keep {base.label} for now: whether another choice is faster is undecided.", None
    return f"Keep {base.label}: no choice loads more than 10% faster.", None


def _best(choices: Iterable[Choice]) -> Choice | None:
    """Return, of the faster choices, the one that changes least and feeds the accelerator, else the fastest."""
    faster = [choice for choice in choices if choice.verdict is Verdict.FASTER]
    feeding = [choice for choice in faster if choice.feeds]
    if feeding:
        return min(feeding, key=lambda choice: choice.change)
    return max(faster, key=lambda choice: choice.times, default=None)


def advise(run: RunFolders, named: Sequence[Accelerator] = ()) -> Advice | None:
    """Return the advice that the records of a run give; None if no cell only loads."""
    records, found = read_all(run)
    findings = [*found, *validate_records(records)]
    cells = cells_of(records, findings)
    advice = advice_of(cells, named)
    if advice is None:
        return None
    lines = (*advice.lines, *filter(None, (disturbed(cells),)), *incomplete(records))
    return dataclasses.replace(advice, lines=lines, findings=len(findings))


def advice_of(cells: Sequence[CellSummary], named: Sequence[Accelerator] = ()) -> Advice | None:
    """Return the advice that some cells of one dataset give; None if no cell only loads."""
    loading = [cell for cell in cells if cell.cell.compute.kind is ComputeKind.NONE and cell.usable]
    bases = [cell for cell in loading if cell.backend in BASES]
    sound = [cell for cell in bases if not cell.invalid and cell.median("samples_per_s")]
    if not bases:
        return None
    if not sound:
        names = ", ".join(dict.fromkeys(backend_label(cell.backend) for cell in bases))
        return Advice(sentence=f"It cannot be told: the figures of {names} do not validate.")
    sound = [cell for cell in sound if cell.backend in IN_PLACE] or sound
    base = max(sound, key=lambda cell: (not cell.cold_start, state_rank(cell), cell.cell.workers))
    if base.cold_start:
        return Advice(sentence="It cannot be told from a cold start, which ranks no store.")
    handoff_s = min(
        (
            curve.constant_s
            for roof in rooflines([cell for cell in cells if not cell.invalid])
            for curve in roof.curves
            if curve.loader.setting == base.setting
        ),
        default=0.0,
    )
    photographs = (base.cell.data.image_size or 0) >= NETWORK_SIDE
    accelerators = tuple(named) or (usual() if photographs else ())
    rows = []
    for cell in loading:
        if cell.setting != base.setting or cell.invalid or not cell.median("samples_per_s"):
            continue
        label, change, changes = _described(cell, base)
        choice = Choice(
            label=label,
            change=change,
            changes=changes,
            ratio=None if cell is base else rate_ratio(cell, base),
            feeds=len(named) == 1 and _feeds(cell, named[0], handoff_s),
        )
        alike = [other for other in loading if other.backend == cell.backend]
        rows.append(_Row(cell=cell, choice=choice, alike=alike))
    rows.sort(key=lambda row: (row.choice.change, row.cell.backend))
    sentence, best = decide(
        rows[0].choice,
        [row.choice for row in rows[1:]],
        rounds=len(base.values("samples_per_s")),
        accelerator=named[0].title if len(named) == 1 else "",
        workers=_workers_here(rows[0], named[0], handoff_s) if len(named) == 1 else None,
    )
    chosen = next((row.cell for row in rows if row.choice is best), None)
    advice = Advice(
        sentence=sentence,
        table=_table(rows, accelerators),
        lines=tuple(_lines(rows[0], accelerators if named else (), handoff_s)),
    )
    if chosen is None or chosen.cell.backend.format == base.cell.backend.format:
        return advice
    return dataclasses.replace(advice, chosen=chosen.cell, convert_s=_of_all(chosen, "build_s"))


def _described(cell: CellSummary, base: CellSummary) -> tuple[str, Change, str]:
    """Return the label and the kind of a choice, and what changes in training with it."""
    backend, side = cell.cell.backend, cell.cell.data.image_size
    files = "your files" if base.backend == ORIGINAL else backend_label(base.backend)
    if base.backend in IN_PLACE:
        files = "your container" + (" (own order)" if base.cell.backend.native_order else "")
    elif base.cell.data.container is not None:
        files = "single image files"
    store = FORMATS.get(backend.format, backend.format) + (" (direct)" if backend.reader == "direct" else "")
    if cell is base:
        return files, Change.FILES, NOTHING
    if backend.name == ORIGINAL and base.backend in IN_PLACE:
        return "single image files", Change.SAME, NOTHING
    if backend.format == base.cell.backend.format:
        options = ", ".join(f"{name} {value}" for name, value in backend.codec_options)
        return f"{files}, {options}", Change.DECODER, "pixels differ slightly"
    if backend.codec == base.cell.backend.codec:
        return f"the same {'pixels' if backend.codec == 'raw' else 'files'} in {store}", Change.SAME, NOTHING
    if base.cell.backend.codec == "raw":
        return f"{backend.codec.upper()}s in {store}", Change.SAME, NOTHING
    if backend.codec == "raw":
        return f"raw pixels in {store}", Change.RAW, "no random crops" if side else NOTHING
    return (
        f"{side}-pixel {backend.codec.partition(':')[0].upper()}s in {store}",
        Change.SHRUNK,
        "crops of the middle",
    )


def _feeds(cell: CellSummary, accelerator: Accelerator, handoff_s: float) -> bool:
    """Whether even the low end of a cell's rate keeps an accelerator busy."""
    rate = estimate(list(cell.values("samples_per_s").values()))
    model = Model(supply=rate.low or rate.mid, constant_s=handoff_s, overlap=cell.cell.workers > 0)
    return not cell.doubt and not cell.at_most and model.starving >= accelerator.images_per_s


def _of_all(cell: CellSummary, name: str) -> float | None:
    """Return a fact about a store that grows with its samples, for the whole dataset."""
    value, count = cell.fact(name), cell.fact("store_count")
    whole = cell.whole.count if cell.whole else count
    if value is None or not count or (cell.backend in IN_PLACE and whole != count):  # its files are whole
        return None
    return float(value * whole / count)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    choice: Choice
    cell: CellSummary
    alike: Sequence[CellSummary]
    """The cells of its backend in other settings."""

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds per image."""
        return self.cell.median("whole_cpu_s_per_sample")

    def rate(self, workers: int, state: CacheState) -> str:
        """Return its rate with another number of workers, or in another state."""
        rates = [
            other.median("samples_per_s")
            for other in self.alike
            if (other.cell.workers, other.cell.cache) == (workers, state)
            and other.cell.batch_size == self.cell.cell.batch_size
            and (not workers or other.cell.loader == self.cell.cell.loader)
        ]
        return number(next(iter(rates), None))

    def cores(self, accelerators: Sequence[Accelerator]) -> str:
        if self.cpu_s is None:
            return ""
        return " / ".join(f"{cores_for(one, self.cpu_s):,}" for one in accelerators)


def cores_for(accelerator: Accelerator, cpu_s: float) -> int:
    """Return the cores that loading needs to feed an accelerator."""
    return math.ceil(accelerator.images_per_s * cpu_s)


def _busy_frac(accelerator: Accelerator, handoff_s: float) -> float:
    """Return the most that an accelerator can be busy while batches are handed over to it."""
    return 1 / (1 + accelerator.images_per_s * handoff_s)


def _workers_here(row: _Row, accelerator: Accelerator, handoff_s: float) -> int | None:
    """Return the workers that feed an accelerator, if this machine has a core for each and fewer were measured."""
    needed = math.inf if row.cpu_s is None else cores_for(accelerator, row.cpu_s)
    possible = row.cell.cell.workers < needed <= int(row.cell.fact("conditions_cores") or 1)
    return int(needed) if possible and _busy_frac(accelerator, handoff_s) >= BUSY_FRAC else None


def _table(rows: Sequence[_Row], accelerators: Sequence[Accelerator]) -> Table:
    base = rows[0].cell
    state = CacheState(base.cell.cache)
    counts = sorted({other.cell.workers for other in rows[0].alike if other.cell.cache == state})
    cold = state is not CacheState.COLD and any(c.cell.cache == CacheState.COLD for c in rows[0].alike)
    names = " / ".join(one.name for one in accelerators)
    heads = [
        "choice",
        *(f"images/s, {number_of(count, 'worker') if count else 'no workers'}" for count in counts),
        *(["first epoch, cold"] if cold else []),
        "CPU ms",
        "disk",
        *([f"cores for {names}"] if accelerators else []),
        "changes in training",
    ]
    return Table(
        caption=f"{dataset_label(base.cell)}, {condition_label(base)}, batches of {base.cell.batch_size}; CPU per image, disk for all images",
        head=tuple(heads),
        rows=tuple(
            (
                row.choice.label,
                *(row.rate(count, state) for count in counts),
                *([row.rate(base.cell.workers, CacheState.COLD)] if cold else []),
                "" if row.cpu_s is None else number(1000 * row.cpu_s),
                size(_of_all(row.cell, "bytes_on_disk")),
                *([row.cores(accelerators)] if accelerators else []),
                row.choice.changes,
            )
            for row in rows
        ),
    )


def _lines(row: _Row, named: Sequence[Accelerator], handoff_s: float) -> Iterable[str]:
    """Yield the lines below the table: cores, workers, memory, and the first batch."""
    cell, cpu_s, files = row.cell, row.cpu_s, row.choice.label
    cores = int(cell.fact("conditions_cores") or 1)
    if cpu_s and len(named) == 1:
        needed, busy_frac = cores_for(named[0], cpu_s), _busy_frac(named[0], handoff_s)
        yield f"Cost: an image of {files} takes {duration(cpu_s)} of one core, so {named[0].title} needs {number_of(needed, 'core')}."
        yield f"Workers: enough with {needed:,}, each on a core of its own; this machine has {number_of(cores, 'core')}."
        if cell.cell.workers and busy_frac < BUSY_FRAC:
            yield f"Handoff: moving batches leaves it at most {percent(busy_frac)} busy, whatever the workers."
    elif cpu_s:
        enough = min(cores, math.ceil(cpu_s / handoff_s)) if handoff_s else cores
        yield f"Cost: an image of {files} takes {duration(cpu_s)} of one core: {number(1000 * cpu_s, 2)} cores per 1,000 images/s."
        yield f"Workers: enough with {enough} on this machine, which has {number_of(cores, 'core')}."
    if cell.whole is not None:
        held = f"Memory: {size(cell.whole.total_bytes)} hold all files; this machine has {size(cell.whole.memory_bytes)}"
        yield held + (
            ", so the second epoch is warm."
            if cell.whole.fits
            else ", so every epoch reads the disk (--cache limited measures that)."
        )
    first_s = cell.median("time_to_first_batch_s")
    if first_s is not None:
        yield f"First batch: {duration(first_s)} after the epoch begins, once workers and readers are open."
