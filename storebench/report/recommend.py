"""Which one should I use: a short list of advice, each piece derived by a named rule from the records."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, Panel, panels, time_ratio
from storebench.report.factors import break_even
from storebench.report.frame import CELL_COLUMNS
from storebench.report.headline import main_panel
from storebench.report.intervals import Ratio, ratios
from storebench.report.labels import (
    backend_label,
    dataset_label,
    number,
    percent,
    setting_label,
    size,
    with_interval,
)
from storebench.report.verdict import BOUND_FRAC, Bound, judge_all
from storebench.stats import Verdict

RULES = {
    "R1 it does not matter": "no backend is proven slower than the fastest, or the loop waits less than 10% of its time with every one",
    "R2 fastest": "the stored backend with the highest median rate, if it is proven faster than the next",
    "R3 equals": "of the stored backends that are not proven slower than the fastest, the smallest on disk",
    "R4 break-even": "build time of the store over the seconds an epoch that it saves against PNG files",
    "R5 bottleneck": "the verdict of the advised cell names the part to work on next",
    "R6 workers": "the number of workers with the highest median rate of the advised backend",
    "R7 keep it warm": "warm rate over cold rate of the advised backend, the same setting",
    "R8 read amplification": "the device delivered more than twice what was asked for",
}
AMPLIFIED = 2.0

_NEXT_STEP = {
    Bound.COMPUTE: "a faster device or a smaller network",
    Bound.STORAGE: "fewer bytes (an encoded codec), a faster device or enough memory to keep the store warm",
    Bound.READER: "the data is in memory already: a leaner reader or larger batches",
    Bound.DECODE: "raw pixels, or more workers if there are idle cores,",
    Bound.PREP: "cheaper augmentation or more workers",
    Bound.HANDOVER: "fewer workers, larger batches or another loader",
}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One recommendation.

    Attributes
    ----------
    rule
        Key of `RULES`.
    text
        The advice with its figures.
    """

    rule: str
    text: str


def recommend(cells: Sequence[CellSummary]) -> list[Advice]:
    """Return what the records say to do, for this dataset, machine and network.

    Parameters
    ----------
    cells
        All cells of one dataset on one machine.
    """
    sound = [cell for cell in cells if not cell.invalid]
    found = panels(sound)
    panel = main_panel(found)
    if panel is None or len(panel.measured) < 2:
        return []
    chosen, advice = _choice(panel)
    if chosen is None:
        return advice
    rest = (
        _break_even(panel, chosen),
        _bottleneck(chosen, sound),
        _workers(chosen, found),
        _warm(chosen, found),
    )
    return [*advice, *(one for rule in rest for one in rule), *_amplified(panel)]


def _stored(panel: Panel) -> list[CellSummary]:
    stored = [cell for cell in panel.measured if cell.cell.format != "memory"]
    return sorted(stored, key=lambda cell: -(cell.median("samples_per_s") or 0.0))


def _choice(panel: Panel) -> tuple[CellSummary | None, list[Advice]]:
    """Return the stored backend to use in a panel (None where it cannot be said), and why."""
    stored = _stored(panel)
    if len(stored) < 2:
        return None, []
    where = f"{dataset_label(panel.first.cell)}, {setting_label(panel.first.cell)}"
    fastest, *others = stored
    against = ratios([(fastest.values("samples_per_s"), cell.values("samples_per_s")) for cell in others])
    if min((one.n for one in against if one is not None), default=0) < 2:
        text = f"{where}: {backend_label(fastest.backend)} was the fastest in the one round that was run. Run more replicates before you choose."
        return None, [Advice(rule="R2 fastest", text=text)]
    equals = [cell for cell, one in zip(others, against, strict=True) if one is not None and not one.proven]
    if _fed(stored) or len(equals) == len(others):
        return _smallest(stored), [
            Advice(rule="R1 it does not matter", text=_indifferent(where, stored, against))
        ]
    best = _smallest([fastest, *equals])
    lossy = (
        " Its pixels are not those of the originals: the codec loses some."
        if best.fact("store_lossless") is False
        else ""
    )
    if equals:
        names = ", ".join(backend_label(cell.backend) for cell in [fastest, *equals])
        text = f"{where}: {names} cannot be told apart; of these {backend_label(best.backend)} is the smallest on disk ({size(best.fact('bytes_on_disk'))}). Use it.{lossy}"
        return best, [Advice(rule="R3 equals", text=text)]
    text = f"{where}: use {backend_label(best.backend)}. It is {with_interval(against[0])} times as fast as the next, {backend_label(others[0].backend)}.{lossy}"
    return best, [Advice(rule="R2 fastest", text=text)]


def _fed(stored: Sequence[CellSummary]) -> bool:
    return all((cell.median("data_wait_frac") or 0.0) < BOUND_FRAC for cell in stored)


def _indifferent(where: str, stored: Sequence[CellSummary], against: Sequence[Ratio | None]) -> str:
    last = backend_label(stored[-1].backend)
    why = "no backend is proven slower than the fastest"
    if _fed(stored):
        why = f"the loop waits less than {percent(BOUND_FRAC)} of its time with every backend"
    wide = any(one is not None and one.verdict is Verdict.INCONCLUSIVE for one in against)
    doubt = " Some intervals are wide: more replicates could still show a difference." if wide else ""
    return (
        f"{where}: it does not matter here: {why} (fastest over slowest, {last}: {with_interval(against[-1])})."
        f" Choose by size or by what your tools read; {backend_label(_smallest(stored).backend)} is the smallest.{doubt}"
    )


def _smallest(cells: Sequence[CellSummary]) -> CellSummary:
    return min(cells, key=lambda cell: float(cell.fact("bytes_on_disk") or float("inf")))


def _break_even(panel: Panel, chosen: CellSummary) -> Iterator[Advice]:
    for one in break_even(panel):
        if one.cell is not chosen:
            continue
        name = backend_label(chosen.backend)
        if one.epochs is None:
            text = f"Do not convert PNG files to {name} for speed: no saving per epoch is proven."
        else:
            text = f"Converting PNG files to {name} took {number(one.build_s)} s and saves {number(one.saved_s.mid)} s an epoch: it pays after {with_interval(one.epochs)} epochs."
        yield Advice(rule="R4 break-even", text=text)


def _bottleneck(chosen: CellSummary, cells: Sequence[CellSummary]) -> Iterator[Advice]:
    verdict = judge_all(cells).get(chosen.key)
    if verdict is not None:
        text = f"{backend_label(chosen.backend)} is {verdict.sentence}. What would help: {_NEXT_STEP[verdict.bound]}."
        yield Advice(rule="R5 bottleneck", text=text)


def _siblings(chosen: CellSummary, found: Sequence[Panel], varying: str) -> list[CellSummary]:
    """Return the measured cells of the same backend whose setting differs in the named field only."""
    fixed = [name for name in CELL_COLUMNS if name != varying]
    same = (panel.of(chosen.backend) for panel in found if panel.first.dataset_key == chosen.dataset_key)
    return [
        cell
        for cell in same
        if cell and all(getattr(cell.cell, name) == getattr(chosen.cell, name) for name in fixed)
    ]


def _workers(chosen: CellSummary, found: Sequence[Panel]) -> Iterator[Advice]:
    siblings = _siblings(chosen, found, "workers")
    if len({cell.cell.workers for cell in siblings}) < 2:
        return
    best, *rest = sorted(siblings, key=lambda cell: -(cell.median("samples_per_s") or 0.0))
    ratio = time_ratio(rest[0], best)
    name = backend_label(chosen.backend)
    if ratio is not None and ratio.proven:
        text = f"{name}: use {best.cell.workers} workers; that is {with_interval(ratio)} times as fast as {rest[0].cell.workers}."
    else:
        counts = sorted({best.cell.workers, rest[0].cell.workers})
        text = f"{name}: {counts[0]} workers do as well as {counts[-1]}, as far as can be told."
    yield Advice(rule="R6 workers", text=text)


def _warm(chosen: CellSummary, found: Sequence[Panel]) -> Iterator[Advice]:
    states = {cell.cell.cache: cell for cell in _siblings(chosen, found, "cache")}
    cold, warm = states.get("cold"), states.get("warm")
    ratio = time_ratio(cold, warm) if cold and warm else None
    if ratio is not None and ratio.verdict is Verdict.FASTER:
        text = f"Memory that holds the whole store makes {backend_label(chosen.backend)} {with_interval(ratio)} times as fast as reading it cold."
        yield Advice(rule="R7 keep it warm", text=text)


def _amplified(panel: Panel) -> Iterator[Advice]:
    for cell in panel.measured:
        times = cell.median("read_amplification")
        if times is not None and times > AMPLIFIED and cell.fact("cache_applies_to") == "epoch":
            text = f"{backend_label(cell.backend)}: the device delivered {number(times, 2)} times the bytes that were asked for. On a store larger than memory that is what every epoch pays."
            yield Advice(rule="R8 read amplification", text=text)
