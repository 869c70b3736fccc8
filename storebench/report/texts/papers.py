"""The claims of the papers beside what was measured here, and the differences that the papers could not take apart."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from storebench.formats.lmdb.direct import RUNGS
from storebench.report.cells import CellSummary
from storebench.report.claims import Claim, Claims
from storebench.report.decisions import Decision, Topic
from storebench.report.factors import Square
from storebench.report.facts import Facts
from storebench.report.intervals import Estimate, Ratio
from storebench.report.ladder import Ladder, MeasuredRung
from storebench.report.panels import Panel
from storebench.report.states import EpochRow
from storebench.report.texts.labels import (
    DATASETS,
    backend_label,
    codec_label,
    dataset_label,
    panel_label,
    percent,
    setting_label,
    state_label,
    with_interval,
)
from storebench.report.texts.verdicts import TWO_BOUNDS, decision_words, doubt_words, told_ratio
from storebench.results import Cell
from storebench.settings.words import ComputeKind, Share

LIM = "Lim, Young and Patton, BPOE-7 2016 (OSTI 1335300)"
LMDBIO = "Pumma, Si, Feng and Balaji, LMDBIO (HPCC'17, ICPADS'17, TOPC'19)"


_LMM_ALONE = "nearly 20 times in some cases (whole applications, HPCC'17)"
_ALL_SIX = "65 times on 9,216 cores (whole applications, TOPC'19)"
_THEN = {
    "batches": _LMM_ALONE,
    "dm": "with LMM, 2 times LMM alone and more than 30 times LMDB (whole applications, ICPADS'17)",
}
"""Key of a rung -> the figure for it in the papers' abstracts; the ICPADS'17 paper calls what HPCC'17 measured LMM."""


@dataclass(frozen=True, kw_only=True)
class OwnFigure:
    """One figure of our own beside a paper's.

    Attributes
    ----------
    where
        The condition under which it was measured.
    figure
        The figure, as text.
    claims
        What it asserts.
    """

    where: str
    figure: str
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PaperClaim:
    """One claim of a paper beside what was measured.

    Attributes
    ----------
    then
        The paper's figure.
    now
        Ours.
    """

    source: str
    claim: str
    then: str
    now: tuple[OwnFigure, ...]


def then_and_now(facts: Facts) -> list[PaperClaim]:
    """Return the papers' claims that these facts can speak to; none of anybody's own images."""
    panels = [panel for panel in facts.panels if panel.first.cell.data.name in DATASETS]
    imagenet = [panel for panel in panels if panel.first.cell.data.name == "imagenet"]
    cells = [cell for cell in facts.cells if cell.cell.data.name in DATASETS]
    ladders = [ladder for ladder in facts.ladders if ladder.first.cell.data.name in DATASETS]
    claims = [
        PaperClaim(
            source=LIM,
            claim=f"On ImageNet, image files are much slower than {backend_label(store)}",
            then="more than 17 times",
            now=tuple(_slowness(imagenet, store, facts)),
        )
        for store in ("leveldb", "lmdb")
    ]
    claims.append(
        PaperClaim(
            source=LIM,
            claim="Key-value stores are reliable",
            then="stated",
            now=tuple(_reliability(cells)),
        )
    )
    claims.append(
        PaperClaim(
            source=LMDBIO,
            claim="With LMDB, I/O takes most of the training time",
            then="up to 90% of the total training time",
            now=tuple(_io_share(panels)),
        )
    )
    claims += _ladder_claims(ladders, facts.claims)
    return [claim for claim in claims if claim.now]


def _ladder_claims(ladders: Sequence[Ladder], claims: Claims) -> Iterable[PaperClaim]:
    yield PaperClaim(
        source=LMDBIO,
        claim="Explicit, planned reads instead of LMDB's map",
        then=f"with all six optimisations, {_ALL_SIX}",
        now=tuple(_climbed(ladders, claims, lambda ladder: (ladder.of("coal"), ladder.of("plain")))),
    )
    for key, name in (("plain", "plain LMDB"), ("page", "LMDB without read-ahead")):
        yield PaperClaim(
            source=LMDBIO,
            claim=f"The best of its optimisations instead of {name}, in complete steps of training",
            then=f"with LMM, {_LMM_ALONE}; with all six, {_ALL_SIX}",
            now=tuple(_climbed([ladder for ladder in ladders if ladder.trains], claims, _best_over(key))),
        )
    for rung in RUNGS:
        if rung.trouble:
            key, below = rung.key, rung.below or ""
            yield PaperClaim(
                source=LMDBIO,
                claim=f"{rung.name} solves: {rung.trouble}",
                then=_THEN.get(key, "no figure of its own in the abstracts"),
                now=tuple(_climbed(ladders, claims, _rungs(key, below))),
            )


_Rungs = Callable[[Ladder], tuple[MeasuredRung | None, MeasuredRung | None]]


def _rungs(key: str, below: str) -> _Rungs:
    """Return a function that picks a rung of a ladder and the one below."""
    return lambda ladder: (ladder.of(key), ladder.of(below))


def _best_over(key: str) -> _Rungs:
    """Return a function that picks the best rung of a ladder and the rung that it is compared with."""
    return lambda ladder: (ladder.best, ladder.of(key))


def _climbed(ladders: Iterable[Ladder], claims: Claims, rungs: _Rungs) -> Iterator[OwnFigure]:
    """Yield the gains of one rung over another, per setting, for each number of processes or ranks."""
    grouped: dict[tuple[str, str], list[tuple[int, str, Claim]]] = {}
    for ladder in ladders:
        upper, lower = rungs(ladder)
        claim = claims.between(upper.cell, lower.cell, Topic.RUNG) if upper and lower else None
        if claim is not None and upper is not None:
            count, noun, varying = _crowd(ladder)
            where = f"{dataset_label(ladder.first)}: {setting_label(ladder.first, without=varying)}"
            grouped.setdefault((where, noun), []).append((count, _gain(claim, upper.cell), claim))
    for (where, noun), unordered in grouped.items():
        gains = sorted(unordered, key=operator.itemgetter(0))
        counted = "; ".join(f"{gain} with {count}" for count, gain, _ in gains)
        plural = "" if gains[-1][0] == 1 else "es" if noun.endswith("s") else "s"
        yield OwnFigure(
            where=where,
            figure=f"{counted} {noun}{plural}",
            claims=tuple(claim for _, _, claim in gains),
        )


def _crowd(ladder: Ladder) -> tuple[int, str, tuple[str, ...]]:
    """Return the number of processes that share the store, the word for them, and the settings that contain the number."""
    cell = ladder.first.cell
    if ladder.trains:
        return cell.ranks, "rank", ("workers", "ranks", "batch_size")
    return max(1, cell.workers), "reader process", ("workers",)


def decision_on(claim: Claim, cell: CellSummary) -> Decision:
    """Return the decision behind a comparison, with one of its two cells in the first place."""
    assert claim.decision is not None
    return claim.decision if claim.subject is cell else claim.decision.inverted()


def gain_of(claim: Claim, cell: CellSummary) -> Ratio:
    """Return the rate of one side of a comparison over that of the other; below 1 if it is slower."""
    return decision_on(claim, cell).ratio


def _gain(claim: Claim, cell: CellSummary) -> str:
    decision = decision_on(claim, cell)
    told, proven = told_ratio(decision), decision.faster or decision.slower
    return f"{told} times" + ("" if proven else f" ({decision.verdict})") if told else TWO_BOUNDS


def _slowness(panels: Sequence[Panel], store: str, facts: Facts) -> Iterator[OwnFigure]:
    for panel in panels:
        slow, fast = panel.of("png"), panel.of(store)
        claim = facts.claims.between(fast, slow) if slow and fast else None
        if claim is not None and slow is not None and fast is not None and claim.decision is not None:
            decision = decision_on(claim, fast)
            proven, told = decision.faster or decision.slower, told_ratio(decision)
            doubt = "" if proven else f" ({doubt_words(decision.doubt) or decision_words(decision)})"
            figure = f"{told} times{doubt}" if told else TWO_BOUNDS
            varying = facts.datasets[fast.dataset_key].varying
            yield OwnFigure(where=panel_label(panel, varying), figure=figure, claims=(claim,))


def _reliability(cells: Iterable[CellSummary]) -> Iterator[OwnFigure]:
    for store in ("leveldb", "lmdb"):
        rows = [row for cell in cells if cell.cell.backend.format == store for row in cell.rows]
        if rows:
            right = [row for row in rows if _served_rightly(row)]
            pixels = ", and no wrong pixel was found" if len(right) == len(rows) else ""
            figure = f"{len(right)} of {len(rows)} epochs served exactly the samples of their plan{pixels}"
            yield OwnFigure(where=backend_label(store), figure=figure + _extents(right))


def _served_rightly(row: EpochRow) -> bool:
    broken = (row["coverage_duplicates"], row["coverage_missing"], row["coverage_pixels_wrong"])
    return row["status"] == "ok" and broken == (0, 0, 0)


def _extents(rows: Sequence[EpochRow]) -> str:
    """Return how many epochs served the whole dataset once, a part of it, or all of it several times."""
    parts: list[float] = []
    passes: list[int] = []
    once = 0
    for row in rows:
        unique, times = row["coverage_unique"], row["coverage_served"] // max(row["coverage_unique"], 1)
        if unique < (row["store_count"] or unique):
            parts.append(unique / row["store_count"])
        elif times > 1:
            passes.append(times)
        else:
            once += 1
    words = [f"{once} served the whole dataset once"] if once else []
    words += [f"{len(parts)} served a part of the dataset, at most {percent(max(parts))}"] if parts else []
    if passes:
        low, high = min(passes), max(passes)
        times_each = f"{low}" if low == high else f"{low} to {high}"
        words += [f"{len(passes)} served the whole dataset {times_each} times"]
    return f" ({'; '.join(words)})" if words else ""


def _io_share(panels: Iterable[Panel]) -> Iterator[OwnFigure]:
    for panel in panels:
        cell = panel.of("lmdb")
        if cell is not None and _trains_alone(cell.cell):
            share = percent(cell.median("data_wait_frac"))
            where = f"{dataset_label(cell)}: {setting_label(cell)}"
            yield OwnFigure(where=where, figure=f"{share} of a step is data wait")


def _trains_alone(cell: Cell) -> bool:
    """Return True if the loop computes and each rank reads separately, as with plain LMDB."""
    return cell.compute.kind is not ComputeKind.NONE and cell.share is Share.NONE


def factor_lines(facts: Facts) -> list[str]:
    """Return each difference that could be taken apart as a sentence that names its dataset."""
    return [
        f"{dataset_label(part.cells[0])}: {factor_sentence(square)}"
        for part in facts.datasets.values()
        for square in part.squares
    ]


def factor_sentence(square: Square) -> str:
    """Return a square in words: both sides of the codec, both of the container, and their interaction."""
    codec, name = codec_label(square.slow.cell.backend), backend_label(square.fast.backend)
    slow, fast, raw_files, encoded = square.slow, square.fast, square.raw_files, square.encoded
    parts = [
        (f"{codec} instead of raw pixels costs", square.codec_in_files, (slow,), (raw_files,), "in files"),
        ("", square.codec_in_container, (encoded,), (fast,), f"in {name}"),
        (f"files instead of {name} cost", square.container_raw, (raw_files,), (fast,), "with raw pixels"),
        ("", square.container_encoded, (slow,), (encoded,), f"with {codec}"),
        (
            "interaction",
            square.interaction,
            (slow, fast),
            (raw_files, encoded),
            "(the codec's cost in files less that in the container)",
        ),
    ]
    clauses = [
        " ".join(word for word in (lead, _microseconds(cost, dear, cheap), where) if word)
        for lead, cost, dear, cheap, where in parts
        if cost is not None
    ]
    return (
        f"{backend_label(slow.backend)} against {name}, {state_label(slow)}, in microseconds per sample:"
        f" {_microseconds(square.whole, (slow,), (fast,))} in all; {'; '.join(clauses)}."
    )


def _microseconds(
    cost: Estimate, dear: Iterable[CellSummary | None], cheap: Iterable[CellSummary | None]
) -> str:
    """Return a cost, the times of the `dear` cells less those of the `cheap` ones; a bound if a rate is only an upper bound."""
    longer = [any(cell is not None and cell.at_most for cell in side) for side in (dear, cheap)]
    if all(longer):
        return "an unknown amount (rates of both sides are only upper bounds)"
    bound = "at least " if longer[0] else "at most " if longer[1] else ""
    return bound + with_interval(cost.scaled(1e6))
