"""The choices that one has with some images: what the user has first, then every store that was measured beside it."""

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from storebench.accelerators import Accelerator
from storebench.analysis.comparison import Ratio, Verdict
from storebench.analysis.labels import (
    FORMATS,
    backend_label,
    number,
    rate_words,
    size,
    verdict_words,
    with_interval,
)
from storebench.analysis.panels import IN_PLACE, USERS_OWN, Panel, base_rank, rate_ratio
from storebench.analysis.roofline import Feeding, Roofline
from storebench.analysis.summary import MEMORY_FORMAT, UNSTEADY, CellSummary, backend_rank
from storebench.analysis.table import Column, Table, make_table
from storebench.codecs import any_size
from storebench.run.matrix import MODEL_CROPS, NETWORK_SIDE
from storebench.settings.words import CacheState, ComputeKind
from storebench.units import number_of


class TrainingChange(enum.StrEnum):
    """The change in training with a choice, the smallest first."""

    NOTHING = "nothing"
    ORDER = "own order"
    PIXELS = "pixels differ slightly"
    OUTER_CROPS = "central crops only"
    CROPS = "no random crops"

    @property
    def rank(self) -> int:
        return list(TrainingChange).index(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """One way to store and read the images, and how it compares with what the user has."""

    label: str
    loss: TrainingChange = TrainingChange.NOTHING
    ratio: Ratio | None = None  # over the base; None for the base, and without common rounds
    feeds: bool = False  # all named accelerators
    cell: CellSummary
    alike: tuple[CellSummary, ...] = ()
    """The cells of the same work: other numbers of workers, other states, and itself."""

    @property
    def verdict(self) -> Verdict:
        return self.ratio.verdict if self.ratio else Verdict.UNDECIDED

    @property
    def may_be_faster(self) -> bool:
        return self.ratio is None or self.ratio.may_be_faster

    @property
    def is_open(self) -> bool:
        """Whether right samples may be served faster than by the base, and this is not decided."""
        is_right = self.cell.doubt in ("", UNSTEADY)
        return is_right and self.verdict is Verdict.UNDECIDED and self.may_be_faster

    @property
    def times(self) -> float:
        return (self.ratio and self.ratio.mid) or 0.0

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds per image; None where a network used the CPU, too."""
        if self.cell.cell.compute.kind is ComputeKind.REAL:
            return None
        return self.cell.median("whole_cpu_s_per_sample")

    def of_all(self, name: str) -> float | None:
        """Return a fact about a store that grows with its samples, for the whole dataset."""
        value, count = self.cell.fact(name), self.cell.fact("store_count")
        whole = self.cell.whole.count if self.cell.whole else count
        # A container that is read in place is whole.
        is_known = value is not None and count and (whole == count or self.cell.backend not in IN_PLACE)
        return float(value * whole / count) if is_known else None


def cores_for(accelerator: Accelerator, cpu_s: float) -> int:
    return math.ceil(accelerator.images_per_s * cpu_s)


def choices_of(
    panel: Panel,
    base: CellSummary,
    cells: Iterable[CellSummary],
    roofs: Sequence[Roofline],
    named: Sequence[Accelerator],
) -> list[Choice]:
    """Return the base of a panel, then all stores of its setting, also those of larger squares; least loss first."""
    every = [
        cell for cell in cells if cell.median("samples_per_s") and cell.cell.backend.format != MEMORY_FORMAT
    ]
    others = {cell.backend: cell for cell in every if is_larger(cell, base)}
    others |= {cell.backend: cell for cell in panel.stored if cell is not base}
    curves = {curve.loader.key: curve for roof in roofs for curve in roof.curves}
    choices = []
    for cell in (base, *others.values()):
        curve = curves.get(cell.key)
        choices.append(
            Choice(
                label=_label(cell, base),
                loss=training_change(cell, base),
                ratio=None if cell is base else rate_ratio(cell, base),
                feeds=curve is not None
                and bool(named)
                and all(curve.feeding(profile.images_per_s) is Feeding.FEEDS for profile in named),
                cell=cell,
                alike=tuple(other for other in every if _work(other) == _work(cell)),
            )
        )
    return sorted(choices, key=lambda c: (c.cell is not base, c.loss.rank, backend_rank(c.cell.backend)))


def is_larger(cell: CellSummary, base: CellSummary) -> bool:
    """Whether a store has squares of more pixels than the base serves of its files, all else being equal."""
    data, other = base.cell.data, cell.cell.data
    return (
        any_size(base.cell.backend.codec)
        and (other.image_size or 0) > (data.image_size or 0)
        and dataclasses.replace(other, image_size=data.image_size) == data
        and (cell.environment_key, cell.setting) == (base.environment_key, base.setting)
    )


def _work(cell: CellSummary) -> tuple[object, ...]:
    fields = ("compute", "model", "place", "ranks", "batch_size", "readahead_kib", "tier")
    return (cell.dataset_key, cell.backend, *(getattr(cell.cell, name) for name in fields))


def training_change(cell: CellSummary, base: CellSummary) -> TrainingChange:
    """Return what training from a store changes beside training from the base."""
    backend, of_base = cell.cell.backend, base.cell.backend
    side, shown = cell.cell.data.image_size, base.cell.data.image_size
    losses = [TrainingChange.NOTHING]
    if any_size(of_base.codec) and not any_size(backend.codec) and side is not None:
        least = shown or MODEL_CROPS.get(base.cell.model, NETWORK_SIDE)
        losses.append(TrainingChange.OUTER_CROPS if side > least else TrainingChange.CROPS)
    if cell.lossy and backend.codec != of_base.codec:
        losses.append(TrainingChange.PIXELS)
    if backend.codec_options != of_base.codec_options and backend.codec == of_base.codec:
        losses.append(TrainingChange.PIXELS)
    if backend.native_order and not of_base.native_order:
        losses.append(TrainingChange.ORDER)
    return max(losses, key=lambda loss: loss.rank)


def _label(cell: CellSummary, base: CellSummary) -> str:
    """Return a choice in words; an owner of files or of a container reads "your files"."""
    name, backend = backend_label(cell.backend), cell.cell.backend
    if base_rank(base) > USERS_OWN:
        return name
    parts = name.partition(" (")
    details = parts[1] + parts[2]
    if backend.name in IN_PLACE:
        return f"your container{details}"
    if backend.format == "files" and any_size(backend.codec):
        return f"{'single image' if base.backend in IN_PLACE else 'your'} files{details}"
    store = FORMATS.get(backend.format, backend.format) + details
    codec = backend.codec.partition(":")[0].upper()
    if backend.codec == base.cell.backend.codec:
        return f"the same {'pixels' if backend.codec == 'raw' else 'files'} in {store}"
    if backend.codec == "raw":
        return f"raw pixels in {store}"
    pixels = cell.cell.data.image_size if base.cell.backend.codec != "raw" else None
    return f"{f'{pixels}-pixel ' if pixels else ''}{codec}s in {store}"


def choice_table(choices: Sequence[Choice], accelerators: Sequence[Accelerator]) -> Table:
    """Return one row per choice: rates and ratios with their intervals, costs, and what changes in training."""
    column: type[Column[Choice]] = Column
    base = choices[0].cell
    state = CacheState(base.cell.cache)
    others = {(cell.cell.workers, cell.cell.cache) for cell in choices[0].alike}
    counts = sorted({count for count, cache in others if cache == state} | {base.cell.workers})
    has_cold = state is not CacheState.COLD and (base.cell.workers, CacheState.COLD) in others

    def rate(workers: int, cache: CacheState) -> Callable[[Choice], str]:
        def words(choice: Choice) -> str:
            cells = (choice.cell, *choice.alike)
            wanted = [c for c in cells if (c.cell.workers, c.cell.cache) == (workers, cache)]
            return rate_words(wanted[0], with_interval) if wanted else ""

        return words

    def cores(choice: Choice) -> str:
        needed = [cores_for(profile, choice.cpu_s) for profile in accelerators if choice.cpu_s]
        return " / ".join(f"{count:,}" for count in needed)

    names = " / ".join(profile.name for profile in accelerators)
    columns = [
        column("choice", "choice", lambda c: c.label),
        column("", "backend", lambda c: c.cell.backend),
        *(
            column(
                f"images/s, {number_of(count, 'worker') if count else 'no workers'}", "", rate(count, state)
            )
            for count in counts
        ),
        column("", "samples_per_s", lambda c: c.cell.interval("samples_per_s"), interval=True),
        column("times", "ratio", lambda c: c.ratio, interval=True),
        column(
            "verdict", "verdict", lambda c: "" if c.cell is base else verdict_words(c.ratio, c.cell, base)
        ),
        *([column("first epoch, cold", "", rate(base.cell.workers, CacheState.COLD))] if has_cold else []),
        column("CPU ms", "cpu_s_per_sample", lambda c: c.cpu_s, lambda cpu_s: number(cpu_s and 1000 * cpu_s)),
        column("disk", "bytes_on_disk", lambda c: c.of_all("bytes_on_disk"), size),
        *([column(f"cores for {names}", "", cores)] if accelerators else []),
        column("changes in training", "loss", lambda c: str(c.loss)),
    ]
    caption = "The choices; CPU per image, disk for all images"
    return make_table("choices", caption, columns, choices)
