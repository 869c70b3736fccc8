"""The answer in a few plain sentences: what to use, under which conditions, and what would change it."""

from collections.abc import Sequence
from dataclasses import dataclass

from storebench.accelerators import Accelerator
from storebench.comparison import MIN_ROUNDS, PRACTICAL_FRAC, Ratio, Verdict, rounds_needed
from storebench.formats.registry import parse_backend, store_name_of
from storebench.report.bottleneck import Bottleneck
from storebench.report.cells import CellSummary, LoopWork, work_key, work_of
from storebench.report.labels import (
    backend_label,
    condition_label,
    dataset_label,
    number,
    percent,
    size,
)
from storebench.report.panels import BASES, Panel, rate_ratio, state_rank
from storebench.report.roofline import Curve, Roofline
from storebench.results import OTHERS_MOST_FRAC
from storebench.runs.manifest import Whole
from storebench.settings.words import CacheState, ComputeKind
from storebench.units import format_duration, number_of

MANY_DISTURBED_FRAC = 0.25
"""If other work disturbed more than this share of the replicates, the answer begins with a warning."""

_MOST_CHANGES = 4


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
    changes = [*_other_settings(panel, panels, best), *_feeding_change(panel, roofs)]
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
    rounds = len(best.values("samples_per_s"))
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


def _other_settings(main: Panel, panels: Sequence[Panel], best: CellSummary | None) -> list[str]:
    """Return a sentence for each other state of the same work and dataset in which another store comes first."""
    told, seen = [], set()
    for panel in panels:
        same = panel.first.dataset_key == main.first.dataset_key
        if panel is main or not same or work_key(panel.first) != work_key(main.first):
            continue
        first, words = panel.fastest(), condition_label(panel.speaker)
        found = None if first is None else panel.ratio(first)
        if first is None or panel.base is None or words in seen:
            continue
        seen.add(words)
        if found is not None and found.verdict is Verdict.FASTER:
            told.append(
                f"{words[0].upper()}{words[1:]}: {backend_label(first.backend)},"
                f" {number(found.mid, 2)} times {backend_label(panel.base.backend)}."
            )
        elif best is not None:
            own = next((cell for cell in panel.measured if cell.backend == best.backend), panel.base)
            ratio = panel.ratio(own)
            if ratio is not None and ratio.verdict is not Verdict.UNDECIDED:
                told.append(
                    f"{words[0].upper()}{words[1:]}: {backend_label(best.backend)} is {ratio.verdict},"
                    f" {number(ratio.mid, 2)} times {backend_label(panel.base.backend)}."
                )
    return told


def _feeding_change(panel: Panel, roofs: Sequence[Roofline]) -> list[str]:
    """Return up to which accelerator the base is fast enough."""
    for roofline in roofs:
        curve = None if panel.base is None else roofline.curve(panel.base.backend)
        if curve is not None and curve.decided and curve.loader.dataset_key == panel.first.dataset_key:
            rate = number(curve.starving.low or curve.starving.mid, 2)
            return [f"Enough for an accelerator below {rate} images/s: {backend_label(curve.backend)}."]
    return []


def feeding_sentences(roofs: Sequence[Roofline], accelerators: Sequence[Accelerator]) -> list[str]:
    """Return one sentence per named accelerator and dataset: what each store delivers to it."""
    firsts: dict[object, Roofline] = {}
    for roofline in roofs:
        firsts.setdefault(roofline.first.dataset_key, roofline)
    return [
        f"{one.title} takes {number(one.images_per_s)} images/s ({dataset_label(roofline.first)},"
        f" {condition_label(roofline.first)}): {_shares(roofline, one)}."
        for roofline in firsts.values()
        for one in accelerators
    ]


def _shares(roofline: Roofline, accelerator: Accelerator) -> str:
    rate = accelerator.images_per_s
    parts = []
    for curve in sorted(roofline.stored, key=lambda curve: -curve.supply.mid):
        busy = percent(min(1.0, curve.delivered(rate) / rate))
        most = "at most " if curve.at_most else ""
        unsure = "" if curve.decided else " (undecided)"
        parts.append(f"{most}{busy} busy with {backend_label(curve.backend)}{unsure}")
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Whether to convert image files: sentences, the verdict first, and what to convert into, if anything."""

    sentences: tuple[str, ...]
    store: str = ""
    backend: str = ""
    side: int | None = None


def worth(
    roofs: Sequence[Roofline],
    unsound: Sequence[CellSummary] = (),
    accelerators: Sequence[Accelerator] = (),
) -> Worth | None:
    """Return whether converting is worth it, from cells of one dataset that only load; None if there are none."""
    names = ", ".join(dict.fromkeys(backend_label(cell.backend) for cell in unsound))
    lead = next(
        (roof for roof in sorted(roofs, key=_rank) if not roof.augmented and roof.curve(*BASES)), None
    )
    base = None if lead is None else lead.curve(*BASES)
    if lead is None or base is None:
        if any(c.backend in BASES and c.cell.compute.kind is ComputeKind.NONE for c in unsound):
            return Worth(sentences=(f"It cannot be told: the figures of {names} do not validate.",))
        return None
    caution: tuple[str, ...] = (f"{names}: the figures do not validate, and are left out.",) if names else ()
    named = feeding_sentences([lead], accelerators)
    helping = {
        curve: found
        for curve in lead.stored
        if curve is not base
        and (found := rate_ratio(curve.loader, base.loader)) is not None
        and found.verdict is Verdict.FASTER
        and curve.starving.mid > base.starving.mid
    }
    packed = base.loader.cell.data.container is not None
    files = "your files" if base.backend == "original" else backend_label(base.backend)
    if packed:
        files = "single image files"
        caution += ("The container itself was not measured, only the stores made of it.",)
    where = condition_label(lead.first)
    memory = _memory_sentence(lead)
    if not helping:
        return Worth(sentences=(_keep(lead, base, files, where), *named, *caution, *memory))
    most = max(curve.starving.mid for curve in helping)
    alike = [curve for curve in helping if curve.starving.mid * (1 + PRACTICAL_FRAC) >= most]
    best = max(alike, key=lambda curve: curve.supply.mid)  # a slow handoff makes fast stores alike
    cell = best.loader
    store = parse_backend(store_name_of(cell.cell.backend))
    label, times = backend_label(best.backend), number(helping[best].mid, 2)
    enough = number(base.starving.low or base.starving.mid, 2)
    side = cell.cell.data.image_size if store.codec == "raw" else None
    fixed = f"It holds squares of {side} pixels a side: crops of larger images are no longer possible."
    return Worth(
        sentences=(
            f"Convert to {label} for training above {enough} images/s: it loads {times} times as fast as {files} ({where}).",
            f"Below that rate {files} keep the accelerator busy, and converting gains nothing.",
            *named,
            *_price(cell),
            *([fixed] if side else []),
            *memory,
            *caution,
        ),
        store=store.name,
        backend=cell.cell.backend.name,
        side=side,
    )


def _rank(roof: Roofline) -> tuple[int, int, int]:
    cell = roof.first.cell
    return -state_rank(roof.first), cell.ranks, -cell.workers


def _keep(lead: Roofline, base: Curve, files: str, where: str) -> str:
    others = [curve for curve in lead.stored if curve is not base]
    if base.loader.cold_start:
        return "It cannot be told from a cold start, which ranks no store."
    if base.at_most:
        late = number_of(base.loader.cut_off, "replicate")
        return f"It cannot be told: {late} of {files} ran out of time. A longer time limit would decide it."
    if not others:
        return f"Nothing to compare {files} with was measured."
    found = [rate_ratio(curve.loader, base.loader) for curve in others]
    if all(one is not None and one.verdict is not Verdict.UNDECIDED for one in found):
        if any(one is not None and one.verdict is Verdict.FASTER for one in found):
            return f"Keep {files}: other stores read faster, but handing batches over takes longer ({where})."
        return f"Keep {files}: no other store loads more than 10% faster ({where})."
    rate = number(base.starving.low or base.starving.mid, 2)
    return (
        f"Keep {files} below {rate} images/s; above, it is undecided whether another store helps ({where})."
    )


def _memory_sentence(lead: Roofline) -> tuple[str, ...]:
    whole: Whole | None = lead.first.whole
    if whole is None:
        return ()
    held = f"All {whole.count:,} images, {size(whole.total_bytes)},"
    memory = f"this machine's memory ({size(whole.memory_bytes)})"
    if whole.fits:
        return (f"{held} fit into {memory}: from the second epoch on they are read from there.",)
    measured = lead.first.cell.cache == CacheState.LIMITED
    return (f"{held} do not fit into {memory}" + ("." if measured else "; --cache limited measures that."),)


def _price(cell: CellSummary) -> tuple[str, ...]:
    """Return seconds and bytes that converting all samples takes, from the store that was measured."""
    count, build_s, stored = (cell.fact(name) for name in ("store_count", "build_s", "bytes_on_disk"))
    if not count or not build_s or not stored:
        return ()
    factor = (cell.whole.count if cell.whole else count) / count
    return (
        f"Converting takes about {format_duration(build_s * factor)} and {size(stored * factor)} of disk.",
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
