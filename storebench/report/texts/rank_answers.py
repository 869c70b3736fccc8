"""What several ranks deliver, and what sharing their reading and overlapping their exchange of gradients gain, in sentences."""

from collections.abc import Sequence

from storebench.plain_text import plain
from storebench.report.cells import CellSummary
from storebench.report.claims import Claim, ClaimKind, Claims
from storebench.report.decisions import EXPOSED, Topic
from storebench.report.facts import Facts
from storebench.report.jobs import data_stores, jobs_beside, ways_to_exchange
from storebench.report.panels import Panel
from storebench.report.texts.caveats import caveats
from storebench.report.texts.labels import (
    backend_label,
    dataset_label,
    here,
    percent,
    state_label,
    with_interval,
)
from storebench.report.texts.ranks import milliseconds
from storebench.report.texts.sentence import Sentence
from storebench.report.texts.verdicts import bounded
from storebench.settings.words import Share, Sync
from storebench.units import number_of

_MOST_NAMED = 2
"""Jobs without a proven cost that are named."""

_MOST_TOLD = 3
"""Settings whose ranks an answer tells of; the plots have them all."""


def job_name(cell: CellSummary) -> str:
    """Return the backend of a cell, its ranks, and when they exchange gradients."""
    ranks, sync = cell.cell.ranks, cell.cell.sync
    words = [backend_label(cell.backend), "1 process" if ranks == 1 else f"{ranks} ranks"]
    words += (
        [{Sync.AFTER: "exchange after", Sync.NONE: "no exchange"}.get(sync, "overlapped")]
        if ranks > 1
        else []
    )
    words += ["global batch"] if cell.cell.global_batch_size is not None else []
    words += [f"share {cell.cell.share}"] if cell.cell.share is not Share.NONE else []
    return plain(", ".join(words))


def step_parts(cell: CellSummary) -> dict[str, float]:
    """Return the mean seconds of each part of a step; they add up to the time of the loop.

    Computing is the loop's compute time less exposed communication and the wait for the slowest rank. Negative exposed
    communication is noise and counts as 0.
    """
    compute_s = cell.per_step("whole_compute_s")
    slowest_s = min(cell.per_step("whole_job_wait_for_slowest_s"), compute_s)
    exposed_s = min(_exposed_s(cell), compute_s - slowest_s)
    return {
        "data wait": cell.per_step("whole_data_wait_s"),
        "copy": cell.per_step("whole_h2d_s"),
        "compute": compute_s - slowest_s - exposed_s,
        "exposed communication": exposed_s,
        "wait for the slowest rank": slowest_s,
    }


def _exposed_s(cell: CellSummary) -> float:
    return max(0.0, cell.median(EXPOSED) or 0.0)


def step_s(cell: CellSummary) -> float:
    """Return the mean seconds of a step."""
    return sum(step_parts(cell).values())


def rank_steps_answer(cells: Sequence[CellSummary], claims: Claims) -> Sentence:
    """Return a sentence on the jobs whose steps are proven to be longer because gradients are exchanged."""
    exposed = claims.each(ClaimKind.EXPOSED, cells)
    if not exposed:
        alone = all(cell.cell.ranks == cell.cell.trainers for cell in cells)
        why = "Each trainer has one rank, so no gradients are exchanged."
        return Sentence(text=why if alone else "Exposed communication was not measured in these jobs.")
    proven = [claim for claim in exposed if claim.decided]
    if not proven:
        text = "Exchanging gradients is not proven to lengthen the steps of any job."
        return Sentence(text=text, claims=tuple(exposed))
    most = max(proven, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
    others = [claim for claim in exposed if claim is not most]
    several = len({dataset_label(claim.subject) for claim in exposed}) > 1
    left = [_job_words(claim.subject, several) for claim in exposed if not claim.decided]
    unproven = " and ".join(left) if len(left) <= _MOST_NAMED else ""
    text = (
        f"Exchanging gradients is proven to lengthen the steps of {len(proven)} of {number_of(len(exposed), 'job')}; the largest cost is"
        f" {milliseconds(most.figure)}, {_of_a_step(most.subject)}, with {_job_words(most.subject, several)}"
        + (f"; it is not proven with {unproven}." if unproven else ".")
    )
    return Sentence(text=text, claims=(most, *others))


def _of_a_step(cell: CellSummary) -> str:
    """Return exposed communication, which is measured after the last epoch, beside the steps of the epochs."""
    share = _exposed_s(cell) / (step_s(cell) or 1.0)
    return f"{percent(share)} of a step" if share <= 1 else "more than a step of its epochs"


def _job_words(job: CellSummary, several: bool) -> str:
    """Return "LMDB (2 ranks, overlapped)", with the dataset if there are `several`."""
    backend, _, setting = job_name(job).partition(", ")
    dataset = f"{dataset_label(job)}: " if several else ""
    return f"{backend} ({dataset}{setting})"


def rank_panels(facts: Facts) -> list[Panel]:
    """Return the panels of one process for which jobs of several ranks were measured, in the order of importance."""
    jobs = [panel for panel in facts.ordered if panel.first.cell.ranks > 1]
    return [
        panel
        for panel in (facts.ordered if jobs else ())
        if panel.first.cell.ranks == 1 and any(jobs_beside(cell, jobs) for cell in panel.stored)
    ]


def ranks_answer(facts: Facts, panel: Panel) -> Sentence:
    """Return a sentence on the backends proven to be faster with several ranks, with the largest gain and its efficiency."""
    by_backend = {
        alone.backend: [
            claim
            for job in jobs_beside(alone, facts.ordered)
            if (claim := facts.claims.between(job, alone, Topic.RANKS)) is not None
        ]
        for alone in panel.stored
    }
    by_backend = {backend: claims for backend, claims in by_backend.items() if claims}
    if not by_backend:
        return Sentence(text="No backend was measured with several numbers of ranks in the same rounds.")
    asserted = tuple(claim for claims in by_backend.values() for claim in claims)
    at = here(
        cell for claim in asserted for cell in (claim.subject, claim.object) if cell and cell.cell.ranks > 1
    )
    gains = [claim for claim in asserted if claim.kind is ClaimKind.FASTER and claim.subject.cell.ranks > 1]
    if not gains:
        return Sentence(
            text=f"No backend is proven to deliver more with several ranks {at} than with one.",
            claims=asserted,
        )
    most = max(gains, key=_times)
    helped = len({claim.subject.backend for claim in gains})
    verb, ranks = "is" if helped == 1 else "are", most.subject.cell.ranks
    share, least = most.figure.scaled(100 / ranks) if most.figure else None, bounded(most)
    text = (
        f"{helped} of {number_of(len(by_backend), 'backend')} {verb} proven to deliver more with several ranks {at}; the"
        f" largest gain is {least}{with_interval(most.figure)} times with {ranks} ranks instead of 1"
        f" ({backend_label(most.subject.backend)}), an efficiency of {least}{with_interval(share, '%')}."
    )
    return Sentence(text=text, claims=(most, *(claim for claim in gains if claim is not most)))


def exchanging(facts: Facts) -> list[list[CellSummary]]:
    """Return groups of jobs that differ in the moment of the exchange, if any job of the group has exposed communication."""
    groups = ways_to_exchange(facts.ordered)
    return [group for group in groups if any(cell.median(EXPOSED) is not None for cell in group)]


def overlap_answer(groups: Sequence[Sequence[CellSummary]], claims: Claims) -> Sentence:
    """Return a sentence on the jobs in which overlapping is proven to be faster than an exchange after the backward pass."""
    pairs = [{cell.cell.sync: cell for cell in group} for group in groups]
    asked = [
        (pair[Sync.OVERLAPPED], claim)
        for pair in pairs
        if Sync.OVERLAPPED in pair and Sync.AFTER in pair
        if (claim := claims.between(pair[Sync.OVERLAPPED], pair[Sync.AFTER], Topic.SYNC)) is not None
    ]
    if not asked:
        return Sentence(text="No job exchanged gradients both during and after the backward pass.")
    gains = [claim for cell, claim in asked if claim.kind is ClaimKind.FASTER and claim.subject is cell]
    losses = [claim for cell, claim in asked if claim.kind is ClaimKind.FASTER and claim.subject is not cell]
    asserted = tuple(claim for _, claim in asked)
    if gains:
        most = max(gains, key=_times)
        text = (
            f"Overlapping is proven to be faster in {len(gains)} of {number_of(len(asked), 'job')}; the largest gain is"
            f" {bounded(most)}{with_interval(most.figure)} times ({job_name(most.subject)})"
        )
    elif len(asked) == 1:
        text = (
            "In the only job, overlapping is not proven to be faster than an exchange after the backward pass"
        )
    else:
        text = f"In none of {number_of(len(asked), 'job')} is overlapping proven to be faster than an exchange after the backward pass"
    where = "" if len(asked) == 1 else f"in {len(losses)} "
    text += f"; {where}it is proven to be slower." if losses else "."
    return Sentence(text=text, claims=asserted)


def data_store_answer(facts: Facts) -> Sentence:
    """Return a sentence on the jobs that are proven to be faster with a data store, or slower; without claims if there are none."""
    asked = [
        (kept, claim)
        for kept, separate in data_stores(facts.ordered)
        if (claim := facts.claims.between(kept, separate, Topic.STORE)) is not None
    ]
    return _way_answer("a data store in the memory of the ranks", asked)


def one_reader_answer(facts: Facts) -> Sentence:
    """Return a sentence on the jobs of LMDB that are proven to be faster with one reader per node, or slower; without claims if none."""
    asked = [
        (step.cell, claim)
        for ladder in facts.ladders
        for step in ladder.steps
        if step.cell.cell.share is Share.NODE
        and (below := ladder.of(step.rung.below or "")) is not None
        and (claim := facts.claims.between(step.cell, below.cell, Topic.RUNG)) is not None
    ]
    return _way_answer("one reader per node", asked)


def _way_answer(way: str, asked: Sequence[tuple[CellSummary, Claim]]) -> Sentence:
    """Return a sentence on jobs that read in one `way`, each beside the job whose ranks read for themselves."""
    decided = [(job, claim) for job, claim in asked if claim.kind is ClaimKind.FASTER]
    gains = [claim for job, claim in decided if claim.subject is job]
    losses = [claim for job, claim in decided if claim.subject is not job]
    jobs, several = number_of(len(asked), "job"), len({dataset_label(job) for job, _ in asked}) > 1
    named, alone = f"{way[0].upper()}{way[1:]}", "ranks that read for themselves"
    most = max(gains or losses, key=_times, default=None)
    if most is None:
        text = f"In none of {jobs} is {way} proven to be faster than {alone}, or slower"
    elif gains:
        text = (
            f"{named} is proven to be faster than {alone} in {len(gains)} of {jobs}; the largest gain is"
            f" {bounded(most)}{with_interval(most.figure)} times, with {_job_words(most.subject, several)}"
        )
    else:
        text = (
            f"{named} is proven to be slower than {alone} in {len(losses)} of {jobs}, and faster in none; the largest loss is a factor of"
            f" {bounded(most)}{with_interval(most.figure)}, with {_job_words(most.subject, several)}"
        )
    text += f"; it is proven to be slower in {len(losses)}." if gains and losses else "."
    told = Sentence(text=text, claims=tuple(claim for _, claim in asked))
    cells = [job for job, _ in asked]
    alike = len({(dataset_label(job), state_label(job)) for job in cells}) == 1
    return _placed(told, cells[0], cells) if alike else told


def _times(claim: Claim) -> float:
    return claim.figure.mid if claim.figure else 0.0


def rank_sentences(facts: Facts) -> list[Sentence]:
    """Return the sentences on the rates of several ranks, on how they share reading, and on their exchange of gradients.

    There are none if most cells are of one process.
    """
    stored = [cell for panel in facts.ordered for cell in panel.stored]
    if 2 * sum(cell.cell.ranks > 1 for cell in stored) <= len(stored):
        return []
    told = [
        _placed(ranks_answer(facts, panel), panel.speaker, panel.cells)
        for panel in rank_panels(facts)[:_MOST_TOLD]
    ]
    groups, jobs = exchanging(facts), [cell for cell in stored if cell.cell.ranks > 1]
    told += [data_store_answer(facts), one_reader_answer(facts)]
    told += [rank_steps_answer(jobs, facts.claims)]
    told += [overlap_answer(groups, facts.claims)] if groups else []
    return [sentence for sentence in told if sentence.claims]


def only_costs(sentences: Sequence[Sentence]) -> bool:
    """Return whether all that sentences on ranks tell is the cost of exchanging gradients; no ways to train are compared."""
    kinds = [{claim.kind for claim in told.claims} for told in sentences]
    return bool(kinds) and all(kind == {ClaimKind.EXPOSED} for kind in kinds)


def _placed(sentence: Sentence, speaker: CellSummary, cells: Sequence[CellSummary]) -> Sentence:
    """Return a sentence on some cells behind the dataset and the cache state of one of them, and the caveats of all."""
    told = sentence.text[0].lower() + sentence.text[1:]
    caveat = "".join(f" ({note})" for note in caveats(cells))
    place = f"{dataset_label(speaker)}, {state_label(speaker)}"
    return Sentence(text=f"{place}{caveat}: {told}", claims=sentence.claims)
