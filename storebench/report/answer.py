"""The answer in a few plain sentences: what to use, under which conditions, and what would change it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.codecs import any_size
from storebench.comparison import MIN_ROUNDS, Ratio, Verdict, rounds_needed
from storebench.datasets.base import FOLDER_PREFIX
from storebench.formats.registry import parse_backend, store_name_of
from storebench.report.bottleneck import Bottleneck
from storebench.report.cells import CellSummary, LoopWork, work_key, work_of
from storebench.report.labels import (
    MODELS,
    backend_label,
    condition_label,
    dataset_label,
    number,
)
from storebench.report.panels import Panel, rate_ratio
from storebench.report.roofline import Roofline
from storebench.results import OTHERS_MOST_FRAC, Cell
from storebench.settings.words import Split
from storebench.units import number_of

MANY_DISTURBED_FRAC = 0.25
"""If other work disturbed more than this share of the replicates, the answer begins with a warning."""

_MOST_CHANGES = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What to do, in one sentence of at most 20 words, its conditions, and what would change it."""

    sentence: str
    conditions: str = ""
    changes: tuple[str, ...] = ()
    panel: Panel | None = None
    choice: CellSummary | None = None
    ratio: Ratio | None = None


def answer(
    panels: Sequence[Panel],
    roofs: Sequence[Roofline],
    limits: dict[tuple[str, str], Bottleneck],
) -> Answer:
    """Return the answer that the first of some ordered panels gives."""
    panel = next((panel for panel in panels if panel.stored), None)
    if panel is None:
        return Answer(sentence="Nothing was measured that could be compared.")
    base, best = panel.base, panel.fastest()
    ratio = None if best is None else panel.ratio(best)
    changes = [
        *_beside(panel, best),
        *_unranked(panel, best),
        *_augmentation(base, best),
        *_other_settings(panel, panels, best),
        *_training(panel, panels),
        *_feeding_change(panel, roofs),
    ]
    limit = limits.get(best.key) if best is not None else None
    if best is not None and limit is not None and limit.gain > 1.0:
        changes.append(f"What limits {backend_label(best.backend)} is {limit.bound}: {limit.remedy}.")
    chosen = best if ratio is not None and ratio.verdict is Verdict.FASTER else base
    return Answer(
        sentence=_sentence(panel, base, best, ratio),
        conditions=_conditions(panel, ratio),
        changes=tuple(changes[:_MOST_CHANGES]),
        panel=panel,
        choice=chosen,
        ratio=ratio,
    )


def _sentence(panel: Panel, base: CellSummary | None, best: CellSummary | None, ratio: Ratio | None) -> str:
    if base is None:
        return "Nothing was measured that could be compared."
    name, rate = backend_label(base.backend), number(base.median("samples_per_s"))
    verb = "train" if work_of(base.cell) is LoopWork.TRAINING else "load"
    if panel.speaker.cold_start:
        return "A cold start ranks no store: measure in memory, or with a memory limit."
    if len(panel.stored) < 2:
        return f"{name}: {rate} images/s; no other store could be compared with it."
    if best is None:
        return "No store can be ranked: the rates are not steady, or too short."
    label = backend_label(best.backend)
    rounds = ratio.rounds if ratio is not None else len(best.values("samples_per_s"))
    if rounds < MIN_ROUNDS:
        times = "" if ratio is None or best is base else f" ({number(ratio.mid, 2)} times {name})"
        return f"Undecided after {number_of(rounds, 'round')}: {label} looks fastest{times}; {MIN_ROUNDS} rounds decide."
    if ratio is not None and ratio.verdict is Verdict.FASTER:
        return f"Use {label}: it {verb}s {number(ratio.mid, 2)} times as fast as {name}."
    found = [panel.ratio(cell) for cell in panel.stored if cell is not base]
    if all(one is not None and one.verdict in (Verdict.EQUAL, Verdict.SLOWER) for one in found):
        return f"Keep {name}: no other store {verb}s more than 10% faster."
    if ratio is None or best is base:
        return f"Keep {name}: no other store is shown to {verb} faster."
    needed = (
        rounds_needed(ratio.spread or 0.0, abs((ratio.mid or 1.0) - 1))
        if ratio.mid and ratio.mid > 1
        else None
    )
    more = f"; about {needed} rounds decide" if needed and needed > rounds else ""
    return f"Undecided: {label} {verb}s {number(ratio.mid, 3)} times as fast as {name}{more}."


def _conditions(panel: Panel, ratio: Ratio | None) -> str:
    own = panel.first.cell
    workers = number_of(own.workers, "worker") if own.workers else "no workers"
    rounds = ratio.rounds if ratio else max(len(cell.values("samples_per_s")) for cell in panel.measured)
    ranks = f", {own.ranks} ranks" if own.ranks > 1 else ""
    return (
        f"{dataset_label(panel.first)}, {condition_label(panel.speaker)}, {workers}, batches of {own.batch_size}{ranks};"
        f" {number_of(rounds, 'round')}."
    )


def _unranked(panel: Panel, best: CellSummary | None) -> list[str]:
    """Return a sentence for each store that looks faster than the best one, but may not be ranked."""
    rate = 0.0 if best is None else best.median("samples_per_s") or 0.0
    return [
        f"{backend_label(cell.backend)} may be faster: {number(cell.median('samples_per_s'))} images/s, but {cell.doubt}."
        for cell in panel.stored
        if best is not None and cell.doubt and (cell.median("samples_per_s") or 0.0) > rate
    ]


def _beside(panel: Panel, best: CellSummary | None) -> list[str]:
    """Return a sentence on the stores that are no slower than the best one, as far as these rounds tell."""
    alike = [
        backend_label(cell.backend)
        for cell in panel.stored
        if best is not None
        and cell not in (best, panel.base)
        and not cell.doubt
        and (found := rate_ratio(cell, best)) is not None
        and found.verdict is not Verdict.SLOWER
    ]
    return (
        [f"Not told apart from {backend_label(best.backend)}: {', '.join(alike)}."] if best and alike else []
    )


def _augmentation(base: CellSummary | None, best: CellSummary | None) -> list[str]:
    """Return what training loses with a store of squares that were made of whole image files."""
    side = None if best is None else best.cell.data.image_size
    if base is None or best is None or side is None or any_size(best.cell.backend.codec):
        return []
    if not any_size(base.cell.backend.codec):
        return []
    return [f"{backend_label(best.backend)} holds squares of {side} pixels: no random crops of whole images."]


def _other_settings(main: Panel, panels: Sequence[Panel], best: CellSummary | None) -> list[str]:
    """Return a sentence for each other state of the same work and dataset in which another store comes first."""
    told, seen = [], set()
    for panel in panels:
        same = panel.first.dataset_key == main.first.dataset_key
        if panel is main or not same or work_key(panel.first) != work_key(main.first):
            continue
        first, words = panel.fastest(), condition_label(panel.speaker)
        workers = panel.first.cell.workers
        found = None if first is None else panel.ratio(first)
        if first is None or panel.base is None or words in seen:
            continue
        seen.add(words)
        where = words[0].upper() + words[1:] + (f", {number_of(workers, 'worker')}" if workers else "")
        if found is not None and found.verdict is Verdict.FASTER:
            told.append(
                f"{where}: {backend_label(first.backend)},"
                f" {number(found.mid, 2)} times {backend_label(panel.base.backend)}."
            )
        elif best is not None:
            own = next((cell for cell in panel.measured if cell.backend == best.backend), panel.stored[-1])
            ratio = panel.ratio(own)
            if ratio is not None and ratio.verdict is not Verdict.UNDECIDED:
                told.append(
                    f"{where}: {backend_label(own.backend)} is {ratio.verdict},"
                    f" {number(ratio.mid, 2)} times {backend_label(panel.base.backend)}."
                )
    return told


def _training(main: Panel, panels: Sequence[Panel]) -> list[str]:
    """Return for which networks no store helps, of those that trained on the same images."""
    names = [
        MODELS.get(panel.first.cell.model, panel.first.cell.model)
        for panel in panels
        if panel.first.dataset_key == main.first.dataset_key
        and panel is not main
        and work_of(panel.first.cell) is LoopWork.TRAINING
        and len(panel.stored) > 1
        and all(
            (found := panel.ratio(cell)) is not None and found.verdict in (Verdict.EQUAL, Verdict.SLOWER)
            for cell in panel.stored
            if cell is not panel.base
        )
    ]
    return [f"While {' or '.join(dict.fromkeys(names))} trains here, no store helps."] if names else []


def _feeding_change(panel: Panel, roofs: Sequence[Roofline]) -> list[str]:
    """Return up to which accelerator the base is fast enough; nothing where no network was trained."""
    for roofline in roofs:
        curve = None if panel.base is None else roofline.curve(panel.base.backend)
        if (
            curve is not None
            and curve.decided
            and roofline.trained
            and curve.loader.dataset_key == panel.first.dataset_key
        ):
            rate = number(min(curve.starving.low or curve.starving.mid, curve.supply.mid))
            return [f"Enough for an accelerator below {rate} images/s: {backend_label(curve.backend)}."]
    return []


def convert_command(cell: Cell, stores: Path | None = None) -> str:
    """Return the command that converts the whole dataset of a cell into its store."""
    data, path = cell.data, cell.data.name.removeprefix(FOLDER_PREFIX)
    options = {
        "--dataset": path if "/" in path else data.name,
        "--split": None if data.split is Split.TRAIN else data.split,
        "--size": data.size,
        "--image-size": None if any_size(cell.backend.codec) else data.image_size,
        "--out": stores,
    }
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    flags = ["--skip-unreadable"] if data.skip_unreadable else []
    return shlex.join(
        ["storebench", "convert", parse_backend(store_name_of(cell.backend)).name, *given, *flags]
    )


def disturbed(cells: Sequence[CellSummary]) -> str:
    """Return a warning if other work disturbed many of the replicates; "" otherwise."""
    rows = {
        (row["run_id"], row["cell_id"], row["replicate"]): bool(row["conditions_disturbed"])
        for cell in cells
        for row in cell.rows
        if row["conditions_disturbed"] is not None
    }
    count = sum(rows.values())
    if count <= MANY_DISTURBED_FRAC * len(rows):
        return ""
    return (
        f"Other work took more than {OTHERS_MOST_FRAC:.0%} of the cores during {count} of"
        f" {number_of(len(rows), 'replicate')}: run this again on an idle machine before you decide."
    )
