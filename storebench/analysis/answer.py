"""The answer: what to do with the images, under which conditions, and what would change it.

This module alone decides. The terminal, the page, Markdown, JSON and notebooks show the same `Answer`.
"""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storebench.accelerators import Accelerator
from storebench.analysis.bottleneck import Bottleneck
from storebench.analysis.choices import Choice, TrainingChange, choice_table, choices_of, cores_for
from storebench.analysis.comparison import MIN_ROUNDS, PRACTICAL_FRAC, Ratio, Verdict, rounds_needed
from storebench.analysis.labels import (
    MODELS,
    backend_label,
    condition_label,
    dataset_label,
    duration,
    machine_words,
    not_held,
    number,
    origin_words,
    size,
)
from storebench.analysis.limits import BUSY_FRAC
from storebench.analysis.panels import Panel, base_rank, rate_ratio
from storebench.analysis.roofline import Curve, Roofline
from storebench.analysis.summary import CellSummary, LoopWork, work_key, work_of
from storebench.analysis.table import Table
from storebench.codecs import any_size
from storebench.datasets.base import FOLDER_PREFIX
from storebench.formats.registry import get_format, is_installed, store_name_of
from storebench.record.schema import OTHERS_MOST_FRAC
from storebench.settings.words import LOCAL, CacheState, ComputeKind, Split
from storebench.units import number_of

# If other work disturbed more than this share of the replicates, a line says so, and beyond the second the answer.
_MANY_DISTURBED_FRAC, _BUSY_MACHINE_FRAC = 0.25, 0.5

_MOST_SETTINGS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What to do, in one sentence of at most 20 words, its conditions, and what would change it."""

    sentence: str
    conditions: str = ""
    choices: tuple[Choice, ...] = ()
    """What the user has, then everything that it was compared with."""
    best: Choice | None = None
    """The choice that the verdict is about: the one to take, or the one that comes nearest."""
    is_taken: bool = False
    keeps: bool = False
    """Whether the sentence says to keep what the user has."""
    table: Table | None = None
    lines: tuple[str, ...] = ()
    """Replicates that are missing, what loading costs, and how the choice is read."""
    changes: tuple[str, ...] = ()
    command: str = ""
    """The command that converts all images into the choice; "" if there is nothing to convert."""
    machines: "Mapping[str, Answer]" = dataclasses.field(default_factory=dict)
    """That of each machine, if there are several; all else is the first one's."""

    @property
    def base(self) -> CellSummary | None:
        return self.choices[0].cell if self.choices else None

    @property
    def choice(self) -> CellSummary | None:
        return self.best.cell if self.best and self.is_taken else None

    @property
    def ratio(self) -> Ratio | None:
        return self.best.ratio if self.best else None

    @property
    def verdict(self) -> Verdict:
        return self.best.verdict if self.best else Verdict.UNDECIDED


class Decision(NamedTuple):
    """A sentence, the choice that its verdict is about, and what it says to do."""

    sentence: str
    best: Choice | None = None
    is_taken: bool = False
    keeps: bool = False  # what the user has


def decide(
    base: Choice,
    others: Sequence[Choice],
    *,
    training: bool = False,
    accelerator: str = "",
    workers: int | None = None,
    busy: bool = False,
) -> Decision:
    """Return what to do.

    `accelerator` are words for those that were named, `workers` those by which the base feeds them on this machine, if
    it can, and `busy` says that other work disturbed most replicates.
    """
    name, verb = base.label, "train" if training else "load"
    sound = [choice for choice in others if choice.ratio and not (choice.cell.doubt or choice.cell.at_most)]
    ranked = sorted(sound, key=lambda choice: -choice.times)
    equal = [choice for choice in others if choice.loss is TrainingChange.NOTHING]
    fastest = next(iter(ranked), None)
    open_ones = [choice for choice in ranked if choice.verdict is not Verdict.FASTER and choice.may_be_faster]
    nearest = min(open_ones, key=lambda choice: choice.loss is not TrainingChange.NOTHING, default=None)
    rounds = max((choice.ratio.rounds for choice in ranked if choice.ratio), default=0)

    def told(words: str, best: Choice | None, *, taken: bool = False, keeps: bool = False) -> Decision:
        sentence = f"On a busy machine: {words}" if busy else words[:1].upper() + words[1:]
        return Decision(sentence, best, taken, keeps)

    def keep(words: str, best: Choice | None) -> Decision:
        return told(f"keep {name}{words}", best, keeps=True)

    if accelerator and base.feeds:
        return keep(f": fast enough for {accelerator}.", fastest)
    if accelerator and workers:
        one_each = ", one per core" if workers > 1 else ""
        with_them = f"{number_of(workers, 'worker')}{one_each}"
        return keep(f": fast enough for {accelerator} with {with_them}.", fastest)
    if not others:
        rate = number(base.cell.median("samples_per_s"))
        return told(f"{name}: {rate} images/s; no other store could be compared with it.", None)
    if fastest and rounds < MIN_ROUNDS:
        after = f"undecided after {number_of(rounds, 'round')}"
        return told(f"{after}; {fastest.label} may be fastest; {MIN_ROUNDS} rounds decide.", fastest)
    feeding = [choice for choice in ranked if choice.feeds and choice.verdict is Verdict.FASTER]
    if accelerator and feeding and all(choice.loss is not TrainingChange.NOTHING for choice in feeding):
        least = min(feeding, key=lambda choice: choice.loss.rank)
        words = f"fast enough for {accelerator}: only {least.label}, but {least.loss}."
        return told(words, least, taken=not equal)
    if best := _best(equal):
        open_to = [c for c in equal if c.is_open and c.times > best.times]
        if rival := max(open_to, key=lambda choice: choice.times, default=None):
            words = f"use {best.label}, {number(best.times, 2)} times as fast as {name}; {rival.label} may be faster."
            return told(words, best, taken=True)
        return told(
            f"use {best.label}: {verb}ing is {number(best.times, 2)} times as fast as from {name}.",
            best,
            taken=True,
        )
    if best := _best(c for c in ranked if c.loss is not TrainingChange.CROPS) or _best(ranked):
        loses = f"{best.label}: {number(best.times, 2)} times as fast, but {best.loss}."
        if not equal:
            return told(f"use {loses}", best, taken=True)
        if accelerator:
            return told(f"no store is fast enough for {accelerator}.", best)
        for_now = " for now" if not busy and any(choice.may_be_faster for choice in equal) else ""
        return keep(f"{for_now}; {loses}", best)
    if not any(choice.may_be_faster for choice in others):
        return keep(f": no other store {verb}s more than 10% faster.", fastest)
    if nearest is None or nearest.times <= 1:
        return keep(f": no other store is shown to {verb} faster.", fastest)
    more = "" if busy else _rounds_words(nearest.ratio)
    return told(
        f"undecided: {nearest.label} is {number(nearest.times, 3)} times as fast as {name}{more}.", nearest
    )


def _best(choices: Iterable[Choice]) -> Choice | None:
    """Return, of the faster choices, the one that changes least and feeds the accelerator, else the fastest."""
    faster = [choice for choice in choices if choice.verdict is Verdict.FASTER]
    feeding = [choice for choice in faster if choice.feeds]
    if feeding:
        return min(feeding, key=lambda choice: choice.loss.rank)
    return max(faster, key=lambda choice: choice.times, default=None)


def _rounds_words(ratio: Ratio | None) -> str:
    """Return the number of rounds that tell a ratio from the 10% that matter; "" if they are too many."""
    if ratio is None or not ratio.mid:
        return ""
    line = 1 + PRACTICAL_FRAC
    needed = rounds_needed(ratio.spread or 0.0, max(ratio.mid / line, line / ratio.mid) - 1)
    return f"; about {needed} rounds decide" if needed and needed > ratio.rounds else ""


def answer(
    panels: Sequence[Panel],
    cells: Sequence[CellSummary],
    roofs: Sequence[Roofline],
    limits: Mapping[tuple[str, str], Bottleneck],
    named: Sequence[Accelerator] = (),
) -> Answer:
    """Return the answer that some ordered panels give; `cells` are all that were measured beside them."""
    bases = {panel: min(panel.cells, key=base_rank) for panel in panels if panel.stored}
    if not bases:
        return Answer(sentence="Nothing was measured that could be compared.")
    panel = _leading(bases, named)
    base = bases[panel]
    choices, curve = choices_of(panel, base, cells, roofs, named), _curve_of(base, roofs)
    profile = named[0] if len(named) == 1 else None
    decision = decide(
        choices[0],
        choices[1:],
        training=work_of(base.cell) is LoopWork.TRAINING,
        accelerator=profile.title if profile else f"{len(named)} accelerators" if named else "",
        workers=_workers_here(choices[0], profile, curve) if profile else None,
        busy=disturbed([choice.cell for choice in choices])[0] > _BUSY_MACHINE_FRAC,
    )
    doubt = "no rate" if base.median("samples_per_s") is None else base.doubt
    if doubt:
        decision = Decision(f"It cannot be told from the figures of {choices[0].label}: {doubt}.")
    if panel.speaker.cold_start:
        cold = "A cold start ranks no store: measure in memory, or with a memory limit."
        decision = decision._replace(sentence=cold, keeps=False)
    best, taken = decision.best, decision.is_taken
    limit = limits.get(best.cell.key) if best else None
    changes = [
        *(_beside(choices, best) if best else ()),
        *_other_settings(panel, panels, best)[:_MOST_SETTINGS],
        *_training(panel, panels),
    ]
    if curve and curve.decided and not curve.at_most:
        rate = number(min(curve.starving.low or curve.starving.mid, curve.supply.mid))
        changes.append(f"Enough for an accelerator below {rate} images/s: {choices[0].label}.")
    if best and limit and limit.gain > 1:
        changes.append(f"What limits {best.label} is {limit.limit}: {limit.remedy}.")
    converts = best and is_installed(best.cell.cell.backend.format)
    command = _command(best, base) if best and converts else ""
    if best and command and not taken and best.loss is not TrainingChange.NOTHING and best.may_be_faster:
        changes.append(f"To convert all the same: {command}")
    return Answer(
        sentence=decision.sentence,
        conditions=_conditions(panel, base, best),
        choices=tuple(choices),
        best=best,
        is_taken=taken,
        keeps=decision.keeps,
        table=choice_table(choices, named) if len(choices) > 1 else None,
        lines=(
            *not_held(choice.cell for choice in choices),
            *_costs(choices[0], profile),
            *(_after(best) if best and taken else ()),
        ),
        changes=tuple(changes),
        command=command if taken else "",
    )


def answer_by_machine(
    panels: Sequence[Panel],
    cells: Sequence[CellSummary],
    roofs: Sequence[Roofline],
    limits: Mapping[tuple[str, str], Bottleneck],
    named: Sequence[Accelerator],
    ranks: str,
) -> Answer:
    """Return the answer; on several machines, the choice for each, after what is said of their ranks."""
    machines = {cell.machine: cell for cell in reversed(cells)}
    if len(machines) < 2:
        return answer(panels, cells, roofs, limits, named)
    answers, advice = dict[str, Answer](), dict[str, list[str]]()
    for machine in sorted(machines):
        its = [panel for panel in panels if panel.first.machine == machine]
        told = answer(its, [cell for cell in cells if cell.machine == machine], roofs, limits, named)
        answers[machine], words = told, "no choice"
        if told.is_taken and told.best:
            words = f"use {told.best.label}"
        elif told.keeps:
            words = f"keep {told.choices[0].label}"
        advice.setdefault(words, []).append(machine)
    first, each = next(iter(answers.values())), [f"{', '.join(on)}: {words}" for words, on in advice.items()]
    return dataclasses.replace(
        first,
        sentence=f"{ranks}{'; '.join(each)}.",
        conditions="; ".join(f"{machine}: {machine_words(machines[machine])}" for machine in answers) + ".",
        lines=tuple(f"{machine}: {told.sentence} {told.conditions}" for machine, told in answers.items()),
        table=None,
        changes=(),
        command=first.command if len(advice) == 1 else "",
        machines=answers,
    )


def _leading(bases: Mapping[Panel, CellSummary], named: Sequence[Accelerator]) -> Panel:
    """Return the panel that answers: the first that reads what the user has where it is, and may be ranked.

    An accelerator is fed by loading alone, so with one named, panels that only load come first.
    """
    least = min(map(base_rank, bases.values()))
    return min(
        bases,
        key=lambda panel: (
            bool(named) and panel.first.cell.compute.kind is not ComputeKind.NONE,
            base_rank(bases[panel]) > least,
            panel.speaker.cold_start,
            panel.first.cell.place != LOCAL,
            bool(bases[panel].invalid) or not bases[panel].median("samples_per_s"),
        ),
    )


def _conditions(panel: Panel, base: CellSummary, best: Choice | None) -> str:
    cell = panel.first.cell
    workers = number_of(cell.workers, "worker") if cell.workers else "no workers"
    rounds = best.ratio.rounds if best and best.ratio else len(base.values("samples_per_s"))
    ranks = f", {cell.ranks} ranks" if cell.ranks > 1 else ""
    origin = origin_words(base)
    return (
        f"{dataset_label(base)}{f' ({origin})' if origin else ''}, {condition_label(panel.speaker)}, {workers},"
        f" batches of {cell.batch_size}{ranks}; {number_of(rounds, 'round')}."
    )


def _beside(choices: Sequence[Choice], best: Choice) -> list[str]:
    others = [choice for choice in choices[1:] if choice is not best]
    ratios = [(choice, rate_ratio(choice.cell, best.cell)) for choice in others]
    told_apart = (Verdict.FASTER, Verdict.SLOWER)
    alike = [
        choice.label
        for choice, ratio in ratios
        if ratio
        and ratio.verdict not in told_apart
        and (not choice.cell.doubt or (choice.is_open and ratio.may_be_faster))
    ]
    return [f"Not told apart from {best.label}: {', '.join(alike)}."] if alike else []


def _others(main: Panel, panels: Sequence[Panel]) -> list[Panel]:
    return [p for p in panels if p is not main and p.first.dataset_key == main.first.dataset_key]


def _other_settings(main: Panel, panels: Sequence[Panel], best: Choice | None) -> list[str]:
    """Return a sentence for each other state of the same work and dataset in which another store comes first."""
    told: dict[str, str] = {}
    for panel in _others(main, panels):
        first, base, words = panel.fastest(), panel.base, condition_label(panel.speaker)
        is_other = work_key(panel.first) != work_key(main.first) or words in told
        if is_other or first is None or base is None:
            continue
        ratio = panel.ratio(first)
        if best is not None and (ratio is None or ratio.verdict is not Verdict.FASTER):
            first = next((c for c in panel.measured if c.backend == best.cell.backend), panel.stored[-1])
            ratio = panel.ratio(first)
        told[words] = ""
        if ratio is not None and ratio.verdict is not Verdict.UNDECIDED:
            workers = panel.first.cell.workers
            where = words[0].upper() + words[1:] + (f", {number_of(workers, 'worker')}" if workers else "")
            is_faster = "" if ratio.verdict is Verdict.FASTER else f" is {ratio.verdict}"
            times = f"{number(ratio.mid, 2)} times {backend_label(base.backend)}"
            told[words] = f"{where}: {backend_label(first.backend)}{is_faster}, {times}."
    return list(filter(None, told.values()))


def _training(main: Panel, panels: Sequence[Panel]) -> list[str]:
    names = [
        MODELS.get(panel.first.cell.model, panel.first.cell.model)
        for panel in _others(main, panels)
        if work_of(panel.first.cell) is LoopWork.TRAINING
        and len(panel.stored) > 1
        and (
            all(cell.computes_only for cell in panel.stored)
            or all(
                (ratio := panel.ratio(cell)) is not None and not ratio.may_be_faster
                for cell in panel.stored
                if cell is not panel.base
            )
        )
    ]
    return [f"While {' or '.join(dict.fromkeys(names))} trains here, no store helps."] if names else []


def _curve_of(cell: CellSummary, roofs: Sequence[Roofline]) -> Curve | None:
    """Return the curve of a cell, or of one that loads the same samples."""
    curves = [curve for roof in roofs for curve in roof.curves if curve.backend == cell.backend]
    curves = [curve for curve in curves if curve.loader.dataset_key == cell.dataset_key]
    return min(curves, key=lambda curve: curve.loader is not cell, default=None)


def _workers_here(base: Choice, profile: Accelerator, curve: Curve | None) -> int | None:
    """Return the workers that feed an accelerator, if this machine has a core for each and fewer were measured."""
    cell, fields = base.cell, base.cell.cell
    # From memory and without a network, the CPU time of an image says how many workers are enough.
    loads = fields.cache == CacheState.WARM and fields.place == LOCAL and fields.ranks == 1
    loads = loads and fields.compute.kind is ComputeKind.NONE
    if curve is None or not curve.decided or not base.cpu_s or not loads:
        return None
    needed = cores_for(profile, base.cpu_s)
    possible = fields.workers < needed <= int(cell.fact("conditions_cores") or 1)
    handed = 1 / (1 + profile.images_per_s * curve.constant_s) >= BUSY_FRAC
    return needed if possible and handed and not cell.at_most else None


def _costs(base: Choice, profile: Accelerator | None) -> Iterable[str]:
    cell, cpu_s = base.cell, base.cpu_s
    cost = f"Cost: an image of {base.label} takes {duration(cpu_s)} of one core"
    if cpu_s and profile:
        needed, have = cores_for(profile, cpu_s), number_of(int(cell.fact("conditions_cores") or 1), "core")
        yield f"{cost}, so {profile.title} needs {number_of(needed, 'core')}; this machine has {have}."
    elif cpu_s:
        yield f"{cost}: {number(1000 * cpu_s, 2)} cores per 1,000 images/s."
    if cell.whole is not None:
        memory, later = size(cell.whole.memory_bytes), "every epoch reads the disk (measure --cache limited)"
        later = "the second epoch is warm" if cell.whole.fits else later
        yield f"Memory: {size(cell.whole.total_bytes)} hold all files; this machine has {memory}, so {later}."


def _after(taken: Choice) -> Iterable[str]:
    """Yield how long a conversion takes, and how its store is read if not by the default reader of its format."""
    if took_s := taken.of_all("build_s"):
        yield f"Conversion: about {duration(took_s)} for all images."
    backend = taken.cell.cell.backend
    if is_installed(backend.format) and backend.reader != get_format(backend.format).info.default_reader:
        options = f", options={dict(backend.options)!r}" if backend.options else ""
        yield f"Read it with {backend}; in Python: storebench.StoreDataset(STORE, {backend.reader!r}{options})."


def _command(taken: Choice, base: CellSummary) -> str:
    """Return the command that converts the whole dataset into a choice; "" if it reads the same store."""
    cell, store = taken.cell.cell, store_name_of(taken.cell.cell.backend)
    if store == store_name_of(base.cell.backend):
        return ""
    data, path = cell.data, cell.data.name.removeprefix(FOLDER_PREFIX)
    options = {
        "--dataset": path if "/" in path else data.name,
        "--split": None if data.split is Split.TRAIN else data.split,
        "--size": data.size,
        "--image-size": None if any_size(cell.backend.codec) else data.image_size,
    }
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    flags = ["--skip-unreadable"] if data.skip_unreadable else []
    usual = get_format(store.partition("+")[0]).info.default_codec
    return shlex.join(["storebench", "convert", store.removesuffix(f"+{usual}"), *given, *flags])


def disturbed(cells: Sequence[CellSummary]) -> tuple[float, str]:
    """Return the share of replicates that other work disturbed, and a warning if that is a large one."""
    rows = {
        (*row.round, row.record.cell.cell_id): bool(row.record.conditions.disturbed)
        for cell in cells
        for row in cell.rows
        if row.record.conditions is not None
    }
    count = sum(rows.values())
    frac = count / len(rows) if rows else 0.0
    warning = (
        f"Other work took more than {OTHERS_MOST_FRAC:.0%} of the cores during {count} of"
        f" {number_of(len(rows), 'replicate')}: run this again on an idle machine before you decide."
    )
    return frac, warning if frac > _MANY_DISTURBED_FRAC else ""
