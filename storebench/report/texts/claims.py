"""The claims of the papers beside what was measured here, and the differences that the papers could not take apart."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from storebench.formats.lmdb.ladder import RUNGS, Rung
from storebench.report.cells import CellSummary, Panel
from storebench.report.decisions import Decisions
from storebench.report.factors import Square
from storebench.report.facts import Facts
from storebench.report.intervals import Interval, Ratio
from storebench.report.ladder import Ladder, top_gain
from storebench.report.texts.labels import (
    backend_label,
    dataset_label,
    panel_label,
    percent,
    setting_label,
    state_label,
    with_interval,
)
from storebench.report.texts.verdicts import doubt_words
from storebench.settings.words import ComputeKind

LIM = "Lim, Young and Patton, BPOE-7 2016 (OSTI 1335300)"
LMDBIO = "Pumma, Si, Feng and Balaji, LMDBIO (HPCC'17, ICPADS'17, TOPC'19)"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim beside what was measured.

    Attributes
    ----------
    now
        (condition, figure) pairs, as text.
    """

    source: str
    claim: str
    then: str
    now: tuple[tuple[str, str], ...]


def then_and_now(facts: Facts) -> list[Claim]:
    """Return the papers' claims that these facts can speak to."""
    imagenet = [panel for panel in facts.panels if panel.first.cell.data.name == "imagenet"]
    claims = [
        Claim(
            source=LIM,
            claim=f"On ImageNet, image files are much slower than {backend_label(store)}",
            then="more than 17 times",
            now=tuple(_slowness(imagenet, store, facts.decisions)),
        )
        for store in ("leveldb", "lmdb")
    ]
    claims.append(
        Claim(
            source=LIM,
            claim="Key-value stores are reliable",
            then="stated",
            now=tuple(_reliability(facts.cells)),
        )
    )
    claims.append(
        Claim(
            source=LMDBIO,
            claim="With LMDB, I/O takes most of the training time",
            then="up to 90%",
            now=tuple(_io_share(facts.panels)),
        )
    )
    claims += _ladder_claims(facts.ladders)
    return [claim for claim in claims if claim.now]


def _ladder_claims(found: Sequence[Ladder]) -> Iterable[Claim]:
    yield Claim(
        source=LMDBIO,
        claim="Explicit, planned reads instead of LMDB's map",
        then="nearly 20 times in some cases, 65 times on 9,216 cores (whole applications)",
        now=tuple(_climbed(found, top_gain)),
    )
    for rung in RUNGS:
        if rung.trouble:
            yield Claim(
                source=LMDBIO,
                claim=f"{rung.key.upper()} mends: {rung.trouble}",
                then="no figure of its own in the abstracts",
                now=tuple(_climbed(found, functools.partial(_step_gain, rung=rung))),
            )


def _step_gain(ladder: Ladder, rung: Rung) -> Ratio | None:
    step = ladder.of(rung.key)
    return None if step is None else step.gain


def _climbed(found: Iterable[Ladder], gain_of: Callable[[Ladder], Ratio | None]) -> Iterator[tuple[str, str]]:
    """Yield where it was measured, and the gain over the rung below with each number of processes."""
    grouped: dict[str, list[tuple[int, Ratio]]] = {}
    for ladder in found:
        if (gain := gain_of(ladder)) is not None:
            cell = ladder.first.cell
            where = f"{dataset_label(ladder.first)}: {setting_label(ladder.first, without=('workers',))}"
            grouped.setdefault(where, []).append((max(1, cell.workers), gain))
    for where, unordered in grouped.items():
        gains = sorted(unordered, key=operator.itemgetter(0))
        told = "; ".join(f"{_gain(gain)} with {processes}" for processes, gain in gains)
        yield where, f"{told} reader process{'' if gains[-1][0] == 1 else 'es'}"


def _gain(gain: Ratio) -> str:
    return f"{with_interval(gain)} times" + ("" if gain.proven else f" ({gain.verdict})")


def _slowness(found: Iterable[Panel], store: str, decisions: Decisions) -> Iterable[tuple[str, str]]:
    for panel in found:
        slow, fast = panel.of("png"), panel.of(store)
        decision = decisions.between(fast, slow) if slow and fast else None
        if decision is not None:
            decided = decision.faster or decision.slower
            doubt = "" if decided else f" ({doubt_words(decision.doubt) or decision.verdict})"
            yield panel_label(panel), f"{with_interval(decision.ratio)} times{doubt}"


def _reliability(cells: Iterable[CellSummary]) -> Iterable[tuple[str, str]]:
    for store in ("leveldb", "lmdb"):
        rows = [row for cell in cells if cell.cell.backend.format == store for row in cell.rows]
        if rows:
            whole = sum(_served_rightly(row) for row in rows)
            yield (
                backend_label(store),
                f"{whole} of {len(rows)} epochs served every sample exactly once, and no wrong pixel was found",
            )


def _served_rightly(row: object) -> bool:
    assert isinstance(row, dict)
    broken = (row["coverage_duplicates"], row["coverage_missing"], row["coverage_pixels_wrong"])
    return row["status"] == "ok" and broken == (0, 0, 0)


def _io_share(found: Iterable[Panel]) -> Iterable[tuple[str, str]]:
    for panel in found:
        cell = panel.of("lmdb")
        if cell is not None and cell.cell.compute.kind is not ComputeKind.NONE:
            share = percent(cell.median("data_wait_frac"))
            yield f"{dataset_label(cell)}: {setting_label(cell)}", f"{share} of a step is data wait"


def factor_lines(facts: Facts) -> list[str]:
    """Return each difference that could be taken apart as a sentence that names its dataset."""
    return [
        f"{dataset_label(part.cells[0])}: {factor_sentence(square)}"
        for part in facts.datasets.values()
        for square in part.squares
    ]


def factor_sentence(square: Square) -> str:
    """Return a square in words: both sides of the codec, both of the container, and their interaction."""
    codec, name = square.slow.cell.backend.codec.upper(), backend_label(square.fast.backend)
    files = backend_label(square.slow.backend)
    parts = [
        (f"{codec} instead of raw pixels costs", square.codec_in_files, "in files"),
        ("", square.codec_in_container, f"in {name}"),
        (f"files instead of {name} cost", square.container_raw, "with raw pixels"),
        ("", square.container_encoded, f"with {codec}"),
        ("interaction", square.interaction, "(the codec's cost in files less that in the container)"),
    ]
    said = [
        " ".join(word for word in (lead, _microseconds(cost), where) if word)
        for lead, cost, where in parts
        if cost is not None
    ]
    return (
        f"{files} against {name}, {state_label(square.slow)}, in microseconds per sample:"
        f" {_microseconds(square.whole)} in all; {'; '.join(said)}."
    )


def _microseconds(cost: Interval) -> str:
    return with_interval(cost.scaled(1e6))
