"""The page's question and its answer: what is decided, what decides the ranking, and what of it reaches training."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from storebench.accelerators import Accelerator
from storebench.report.cells import CellSummary, work_of
from storebench.report.claims import Claim, ClaimKind, Claims, leading
from storebench.report.decisions import Decisions
from storebench.report.facts import Facts
from storebench.report.panels import Panel
from storebench.report.texts.caveats import caveats
from storebench.report.texts.choosing import choice_of
from storebench.report.texts.deciding import deciding
from storebench.report.texts.decoders import closing
from storebench.report.texts.labels import (
    MODELS,
    agreed,
    backend_label,
    dataset_label,
    device_words,
    here,
    network_name,
    setting_words,
    size,
    state_label,
    store_label,
    times,
    with_interval,
    workers_words,
)
from storebench.report.texts.rank_answers import only_costs, rank_sentences
from storebench.report.texts.roofline import roofline_sentences
from storebench.report.texts.sentence import Sentence, joined
from storebench.report.texts.tournaments import tournament_sentences
from storebench.report.texts.verdicts import bounded, doubt_words, more_rounds
from storebench.report.texts.worth import worth
from storebench.settings.words import ComputeKind
from storebench.units import number_of

QUESTION = "Does it matter how you store the training images?"
RANKS_QUESTION = "What does training with several ranks gain, and what does it cost?"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The first screen.

    Attributes
    ----------
    sentences
        What is decided with its interval, what decides the ranking and what a faster decoder changes, what of it reaches
        training, and what is undecided;
        the first one is the answer for those who read no further.
    panel
        The panel that it rests on; None if nothing was measured.
    question
        The question that the first sentence answers: about stores, or about jobs of several ranks.
    """

    sentences: tuple[Sentence, ...]
    panel: Panel | None = None
    question: str = QUESTION

    @property
    def answer(self) -> str:
        """All sentences."""
        return joined(self.sentences).text

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the answer asserts, in the order of its sentences."""
        return joined(self.sentences).claims


def headline(
    facts: Facts, unsound: Sequence[CellSummary] = (), accelerators: Sequence[Accelerator] = ()
) -> Headline:
    """Return the answer that some cells give.

    Parameters
    ----------
    unsound
        Cells of the page whose figures do not validate.
    accelerators
        Named accelerators. The answer of a run that chose its backends begins with what the stores deliver to them.
    """
    leads = [leading(_asked(panel, facts.claims)) for panel in facts.ordered]
    if not leads:
        return _nothing(facts.cells)
    # The order of panels, and of the comparisons of each, is fixed before anything is measured. Going down to the first
    # decided comparison is a choice by the data, and costs nothing: intervals of all comparisons of the page hold at
    # once, whichever of them is read out. What was asked before and is undecided is said as well.
    place = next((index for index, claim in enumerate(leads) if claim is not None and claim.decided), 0)
    panel, claim, before = facts.ordered[place], leads[place], facts.ordered[:place]
    other = _other(facts, panel)
    ranked, costs = [*tournament_sentences(facts), *rank_sentences(facts)], list[Sentence]()
    if only_costs(ranked):
        ranked, costs = costs, ranked
    feeding = [Sentence(text=text) for text in _feeding(facts, unsound, accelerators)]
    told = [*feeding, *ranked]
    shown, several = joined(told).text, any(panel.first.cell.ranks > 1 for panel in facts.ordered)
    sentences: list[Sentence | None] = [*told]
    if claim is not None or not ranked:
        loop = _network_words(panel, facts.cells) + _loop_words(panel, facts.cells)
        where = _where(panel, shown, loop, beside_jobs=several)
        sentences.append(_answer(panel, where, facts.claims))
    sentences += [_fastest(panel, claim, facts.claims), deciding(facts, claim), closing(panel, facts.claims)]
    sentences += costs
    sentences += [_beside(other, facts)] if other is not None and other not in before else []
    sentences += [_undecided(before, facts.claims)] if before else []
    return Headline(
        sentences=tuple(sentence for sentence in sentences if sentence is not None),
        panel=panel,
        question=RANKS_QUESTION if ranked and not feeding else QUESTION,
    )


def _feeding(facts: Facts, unsound: Sequence[CellSummary], accelerators: Sequence[Accelerator]) -> list[str]:
    """Return sentences on the accelerators that the stores feed; if one run chose its backends, those of the terminal."""
    answer = None if facts.whole is None else worth(facts, unsound, accelerators)
    return roofline_sentences(facts.rooflines) if answer is None else [*answer.named, *answer.sentences]


def panel_answer(panel: Panel, claims: Claims) -> Sentence:
    """Return the answer that one panel gives by itself: what it decides first, then what was asked before."""
    return _answer(panel, _where(panel), claims)


def asked_pairs(panel: Panel) -> Iterator[tuple[CellSummary, CellSummary]]:
    """Yield the pairs of a panel in the order in which they are asked: LMDB against PNG files, as the paper does, first."""
    first = _pair(panel)
    if first is None:
        return
    yield first
    base, stored = first[0], panel.stored
    yield from ((base, cell) for cell in stored if cell not in first)
    yield from itertools.combinations((cell for cell in stored if cell is not base), 2)


def _asked(panel: Panel, claims: Claims) -> list[Claim]:
    """Return the claims of a panel in the order in which they are asked."""
    compared = (claims.between(*pair) for pair in asked_pairs(panel))
    return [claim for claim in compared if claim is not None]


def _answer(panel: Panel, where: str, claims: Claims) -> Sentence:
    compared = _asked(panel, claims)
    lead = leading(compared)
    if lead is None:
        return Sentence(text=_alone(panel, where))
    sentences = [_sentence(panel, lead, where, claims.decisions)]
    if lead is not compared[0] and not compared[0].decided:
        sentences.append(_sentence(panel, compared[0], "There", claims.decisions))
    return joined(sentences)


def _fastest(panel: Panel, leading_claim: Claim | None, claims: Claims) -> Sentence | None:
    """Return the store that the advice on a panel names, where it is not the winner that is `leading_claim` already."""
    lead = choice_of(panel, claims).lead if len(panel.stored) > 1 else None
    if lead is None or leading_claim is None or lead.subject is leading_claim.subject:
        return None
    several = any(cell.lossy for cell in panel.stored) and not lead.subject.lossy
    return _sentence(panel, lead, f"The fastest {'lossless ' * several}store there", claims.decisions)


def _alone(panel: Panel, where: str) -> str:
    """Return the sentence on a panel in which no two cells can be compared."""
    pair = _pair(panel)
    if pair is not None:
        slow, fast = pair
        names = f"{backend_label(fast.backend)} and {backend_label(slow.backend)}"
        return f"{where}: {names} never ran in the same round, so no ratio is given."
    only = panel.measured[0]
    rate = ("at most " if only.at_most else "") + with_interval(only.interval("samples_per_s"))
    gives = agreed(only, "gives", "give")
    return f"{where}: {backend_label(only.backend)} {gives} {rate} samples/s; there is nothing to compare it with."


def _undecided(before: Sequence[Panel], claims: Claims) -> Sentence:
    """Return the undecided panels that precede the one told."""
    first = before[0]
    more = f", and {number_of(len(before) - 1, 'further setting')}" if len(before) > 1 else ""
    ahead = first.first.cell.readahead_kib
    readahead = "" if ahead is None else f", read-ahead {ahead} KiB"
    where = f"{dataset_label(first.first)}, {state_label(first.speaker)}{readahead}{_jobs(first)}"
    leads = (leading(_asked(panel, claims)) for panel in before)
    return Sentence(
        text=f"Undecided settings that come first: {where}{more}.",
        claims=tuple(claim for claim in leads if claim is not None),
    )


def _nothing(cells: Sequence[CellSummary]) -> Headline:
    if not any(cell.usable for cell in cells):
        return Headline(sentences=(Sentence(text="Nothing was measured: every cell failed."),))
    text = "Nothing can be concluded: these records show no steady steps with the requested limit of the page cache."
    return Headline(sentences=(Sentence(text=text),))


def _other(facts: Facts, main: Panel) -> Panel | None:
    """Return the panel of the same samples and cache state without compute, or the one with where `main` has none."""
    cell = main.first.cell
    wanted = ComputeKind.REAL if cell.compute.kind is ComputeKind.NONE else ComputeKind.NONE
    alike = [
        panel
        for panel in facts.panels
        if panel.first.cell.data.name == cell.data.name
        and panel.first.environment_key == main.first.environment_key
        and panel.first.cell.compute.kind is wanted
    ]
    same_state = [
        panel
        for panel in alike
        if panel.first.dataset_key == main.first.dataset_key and panel.first.cell.cache == cell.cache
    ]
    # Training that was not run in the same cache state still says how much of a difference reaches it.
    chosen = same_state or (alike if wanted is ComputeKind.REAL else [])
    return next((panel for panel in facts.ordered if panel in chosen), None)


def _beside(panel: Panel, facts: Facts) -> Sentence | None:
    """Return the sentence of a further panel; None if no two of its cells can be compared."""
    where = _beside_words(panel) + _loop_words(panel, facts.cells)
    return _answer(panel, where, facts.claims) if _asked(panel, facts.claims) else None


def _beside_words(panel: Panel) -> str:
    cell = panel.first.cell
    if cell.compute.kind is ComputeKind.REAL:
        return f"Training {network_name(panel.first)}, {state_label(panel.speaker)}, {dataset_label(panel.first)}"
    return (
        "Reading and decoding alone" if panel.alone else "With nothing to do but the network's augmentation"
    )


def _pair(panel: Panel) -> tuple[CellSummary, CellSummary] | None:
    """Return the two cells that are asked first: the fixed base, and LMDB beside PNG files, else the fastest other store.

    A store with the pixels of the base is asked before one that lost some.
    """
    slow = panel.base
    others = [cell for cell in panel.stored if cell is not slow]
    others = others or [cell for cell in panel.measured if cell is not slow]
    if slow is None or not others:
        return None
    alike = [cell for cell in others if cell.lossy == slow.lossy]
    fast = panel.of("lmdb") if slow.backend == "png" else None
    return slow, fast or max(alike or others, key=lambda cell: cell.median("samples_per_s") or 0.0)


def _network_words(panel: Panel, cells: Iterable[CellSummary]) -> str:
    """Return the network of a panel in words if others were trained on the same images."""
    trained = {
        other.cell.model
        for other in cells
        if other.dataset_key == panel.first.dataset_key and other.cell.compute.kind is ComputeKind.REAL
    }
    real = panel.first.cell.compute.kind is ComputeKind.REAL
    return f", training {network_name(panel.first)}" if real and len(trained) > 1 else ""


def _loop_words(panel: Panel, cells: Iterable[CellSummary]) -> str:
    """Return device, workers and batch size of a panel in words, each if others were measured of the same images.

    Batches count only where the same is done with them: training has batches of its own. Emulated compute is no work, and
    counts only beside other emulated compute.
    """
    first, kind = panel.first, panel.first.cell.compute.kind
    same_images = [
        other
        for other in cells
        if other.dataset_key == first.dataset_key
        and other.cell.compute.kind in (kind, ComputeKind.REAL, ComputeKind.NONE)
    ]
    same_work = [other for other in same_images if work_of(other.cell) is work_of(first.cell)]
    devices = {other.cell.device for other in same_work} if kind is ComputeKind.REAL else set()
    words = [
        f"on {device_words(first)}" if len(devices) > 1 else "",
        workers_words(first.cell) if len({other.cell.workers for other in same_images}) > 1 else "",
        f"batch {first.cell.batch_size}" if len({other.cell.batch_size for other in same_work}) > 1 else "",
    ]
    return "".join(f", {word}" for word in words if word)


def _where(panel: Panel, shown: str = "", loop: str = "", *, beside_jobs: bool = False) -> str:
    """Return the machine and the setting of a panel in words; caveats that were `shown` before are left out.

    The number of processes is named if it is several, or if the page has jobs of several `beside_jobs`; `loop` has the words
    for workers and batch size.
    """
    caveat = "".join(f" ({note})" for note in caveats(panel.cells, shown))
    drained = ", reader and decoder alone" if panel.alone else ", with the network's augmentation alone"
    work = drained if panel.first.cell.compute.kind is ComputeKind.NONE else ""
    named = dataset_label(panel.first)
    state = _beyond_memory(panel)
    place = f"{named}, {state}" if state else f"{state_label(panel.speaker)}, {named}"
    at = here(panel.cells)
    processes = _jobs(panel) or (", one process" if beside_jobs else "")
    return f"{at[0].upper()}{at[1:]}, {place}{processes}{loop}{work}{caveat}"


def _jobs(panel: Panel) -> str:
    """Return the number of ranks of jobs, and how they share reading, after commas; "" for one process."""
    cell = panel.first.cell
    words = [f"{cell.ranks} ranks", setting_words(cell, ["share"])] if cell.ranks > 1 else []
    return "".join(f", {word}" for word in words if word)


def _beyond_memory(panel: Panel) -> str:
    """Return words that say that every store is larger than the limited page cache; "" if one is not."""
    cell = panel.speaker.cell
    stored = [summary.fact("store_file_bytes") for summary in panel.stored]
    if (
        not cell.memory_bytes
        or not stored
        or not all(file_bytes and file_bytes > cell.memory_bytes for file_bytes in stored)
    ):
        return ""
    ahead = f", read-ahead {cell.readahead_kib} KiB" if cell.readahead_kib is not None else ""
    return f"larger than memory (page cache limited to {size(cell.memory_bytes)}{ahead})"


def _feeds(panel: Panel, winner: CellSummary) -> str:
    cell = panel.first.cell
    if cell.compute.kind is ComputeKind.NONE:
        return agreed(winner, "loads", "load")
    fed = (
        MODELS.get(cell.model, cell.model)
        if cell.compute.kind is ComputeKind.REAL
        else "an emulated accelerator"
    )
    return f"{agreed(winner, 'feeds', 'feed')} {fed}"


def _sentence(panel: Panel, claim: Claim, where: str, decisions: Decisions) -> Sentence:
    """Return one comparison of two stores in words."""
    winner, loser, decision = claim.subject, claim.object, claim.decision
    assert loser is not None
    assert decision is not None
    names = [store_label(side, (winner, loser)) for side in (winner, loser)]
    ratio = times(claim.figure)
    if claim.kind is ClaimKind.FASTER:
        text = f"{names[0]} {_feeds(panel, winner)} {bounded(claim)}{ratio} as fast as {names[1]}"
    elif claim.kind is ClaimKind.EQUAL:
        text = f"{names[0]} and {names[1]} differ by less than 10% ({names[0]} over {names[1]}: {ratio})"
    elif decision.doubt:
        text = f"{names[0]} and {names[1]} cannot be ranked: {doubt_words(decision.doubt)}"
    else:
        text = f"{names[0]} and {names[1]} cannot be told apart yet ({names[0]} over {names[1]}: {ratio}); {more_rounds(decisions, [claim])}"
    return Sentence(text=f"{where}: {text}.", claims=(claim,))
