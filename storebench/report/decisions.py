"""The decisions of a page: every comparison that it rests on, decided once, with simultaneous intervals.

All sentences, tables and verdicts of a page are rendered from one `Decisions`, so no two can contradict each other.
"""

import enum
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from storebench import stats
from storebench.report.cells import CellSummary, key_without
from storebench.report.intervals import Estimate, Ratio, Round, family, mean_interval
from storebench.report.jobs import data_stores, does_the_work, stored_jobs, ways_to_exchange, work_of_ranks
from storebench.report.panels import Panel
from storebench.report.states import EpochRow
from storebench.settings.words import CacheState, ComputeKind
from storebench.stats import Verdict

LEAD_FRAC = 0.5
"""Share of the permitted error for the settings that a page's sentences rest on."""

OTHER_RATIOS_FRAC = 0.35
"""Share for all other ratios of two cells. The rest is for figures of single cells, of which a page has many more."""

FED_FRAC = 0.10
"""A loop that waits less than this share of its time is fed."""

INFLATED = 1.05
"""A backend beside which the network computes this many times as long takes the network's resources."""

TOLD_FRAC = 0.25
"""If nothing is decided, a page gives the number of rounds that would detect a difference of this size."""

WAIT = "data_wait_frac"
"""Data-wait fraction of a training loop."""

READS = "read_amplification"
"""Bytes that the device delivered over requested bytes."""

EXPOSED = "job_exposed_communication_s"
"""Seconds by which exchanging gradients lengthens a step of a job of ranks."""


class Topic(enum.StrEnum):
    """The difference between the two sides of a decision."""

    BACKEND = "backend"
    WORKERS = "workers"
    RANKS = "ranks"
    """A job of several ranks against one process with as many samples per step, of one rank or of all."""
    SYNC = "sync"
    """Jobs that differ only in the moment at which ranks exchange gradients, or in whether they do."""
    STORE = "store"
    """Jobs that keep samples in a data store against jobs whose ranks read for themselves."""
    CACHE = "cache"
    COMPUTE = "compute"
    """The network's computing beside a backend against its computing with nothing to load."""
    RUNG = "rung"
    """A rung of LMDBIO's ladder against another one; `storebench.report.ladder` decides it."""


class DoubtKind(enum.StrEnum):
    """Why an interval must not be used."""

    FEW_STEPS = "few steps"
    """Training of fewer than `storebench.report.cells.FEWEST_TRAINING_STEPS` steps ranks nothing."""
    UNSTEADY = "unsteady"
    """A limited rate is not shown to be steady."""
    COLD = "cold start"
    """Rates from a cold start depend on how much of the store is read, so they rank no stores."""
    CUT_OFF = "cut off"
    """Replicates were killed at their time limit, so the rate is that of the faster ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubt:
    """Why nothing is decided although the interval would allow it.

    Attributes
    ----------
    kind
        The kind of the doubt.
    cells
        The cells that the doubt is about.
    """

    kind: DoubtKind
    cells: tuple[CellSummary, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """One comparison of a page.

    Attributes
    ----------
    ratio
        How many times as fast `cell` is as `base`, paired by round, with an interval that holds together
        with all others of the page. For `Topic.COMPUTE`: how many times as long the network computes.
    doubt
        The reason why nothing is decided although the interval would allow it; None if the interval is used.
    alpha
        Error of its interval; None if the page does not ask for this comparison, which then has `Decisions.other_alpha`.
    """

    topic: Topic
    cell: CellSummary
    base: CellSummary
    ratio: Ratio
    doubt: Doubt | None = None
    alpha: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether `cell` is faster than `base`, slower, not detectably different, or undecided."""
        return Verdict.INCONCLUSIVE if self.doubt else self.ratio.verdict

    @property
    def faster(self) -> bool:
        """Whether `cell` is proven faster than `base`."""
        return self.verdict is Verdict.FASTER

    @property
    def slower(self) -> bool:
        """Whether `cell` is proven slower than `base`."""
        return self.verdict is Verdict.SLOWER

    @property
    def equal(self) -> bool:
        """Whether the two are proven to differ by less than `storebench.stats.PRACTICAL_FRAC`."""
        return self.doubt is None and self.ratio.equal

    def inverted(self) -> "Decision":
        """Return the same decision with its sides exchanged."""
        return replace(self, cell=self.base, base=self.cell, ratio=self.ratio.inverted())


@dataclass(frozen=True, kw_only=True)
class _Question:
    """A comparison to be decided: `top` over `bottom`."""

    topic: Topic
    cell: CellSummary
    base: CellSummary
    top: Mapping[Round, float]
    bottom: Mapping[Round, float]

    @property
    def key(self) -> tuple[object, ...]:
        return (self.topic, self.cell.key, self.base.key)


@dataclass(frozen=True, kw_only=True, eq=False)
class Decisions:
    """Every decision of a page.

    Attributes
    ----------
    found
        (topic, key of the cell, key of the base) -> decision.
    looks
        How many looks at these runs there may have been, this one included.
    alpha
        Error that this look at the results may spend on all of them.
    lead_alpha, other_alpha
        Error per ratio: in the settings that sentences rest on, and elsewhere.
    rest_alpha
        Error per figure of a single cell in all other settings.
    figure_alphas
        (name of a figure, key of a cell) -> error of that figure. No other figure proves anything.
    """

    found: Mapping[tuple[object, ...], Decision]
    looks: int
    alpha: float
    lead_alpha: float
    other_alpha: float
    rest_alpha: float
    figure_alphas: Mapping[tuple[str, tuple[str, str]], float]

    def between(self, cell: CellSummary, base: CellSummary, topic: Topic = Topic.BACKEND) -> Decision | None:
        """Return the decision on two cells, `cell` over `base`; None if it is not a question of the page."""
        known = self.found.get((topic, cell.key, base.key))
        if known is not None:
            return known
        turned = self.found.get((topic, base.key, cell.key))
        return None if turned is None else turned.inverted()

    @functools.cached_property
    def _inflations(self) -> Mapping[tuple[str, str], Decision]:
        return {
            decision.cell.key: decision for decision in self.found.values() if decision.topic is Topic.COMPUTE
        }

    def inflation(self, cell: CellSummary) -> Decision | None:
        """Return the network's compute time with `cell` over its compute time with nothing to load."""
        return self._inflations.get(cell.key)

    def inflated(self, cell: CellSummary) -> bool:
        """Whether loading through `cell` is proven to slow down the network's computing, and notably."""
        inflation = self.inflation(cell)
        return inflation is not None and inflation.ratio.mid > INFLATED and inflation.slower

    def figure(self, cell: CellSummary, metric: str) -> Estimate | None:
        """Return the mean of a figure of a cell; None if it was not measured.

        If the page may use the figure, it has an interval that holds together with all others of the page.
        """
        values = list(cell.values(metric).values())
        if not values:
            return None
        alpha = self.figure_alphas.get((metric, cell.key))
        mean = mean_interval(values, alpha or self.rest_alpha)
        return replace(mean, lo=None, hi=None) if alpha is None else mean

    def waiting(self, cell: CellSummary) -> Estimate | None:
        """Return the data-wait fraction of the loop; None if it was not measured."""
        return self.figure(cell, WAIT)

    def fed(self, cell: CellSummary) -> bool:
        """Whether the loop is proven to wait less than `FED_FRAC` of its time, its computing undisturbed."""
        share = self.waiting(cell)
        if cell.unsteady or share is None or share.n < stats.MIN_ROUNDS or share.hi is None:
            return False
        return share.hi < FED_FRAC and not self.inflated(cell)

    def above(self, cell: CellSummary, metric: str, limit: float) -> Estimate | None:
        """Return a figure with its interval where it is proven to be above `limit`; else None."""
        estimate = self.figure(cell, metric)
        if estimate is None or estimate.n < stats.MIN_ROUNDS or estimate.lo is None:
            return None
        return estimate if estimate.lo > limit else None


def decide(
    ordered: Sequence[Panel], looks: int, *, by_precision: bool = False, ratios: int = 0, others: int = 0
) -> Decisions:
    """Return every decision on the panels of one page.

    The family is the page: with probability 95%, over all looks at the same runs, every interval holds.

    Parameters
    ----------
    ordered
        The panels of the page that have a rate, in the order of `storebench.report.main_panel.ordered`: the first of
        each dataset is the one that sentences rest on.
    looks
        How many looks at these runs there may have been, this one included.
    by_precision
        Whether a run added rounds until its intervals were narrow enough.
    ratios
        Number of further ratios that sentences use, each with the error `other_alpha`.
    others
        Number of further figures that sentences use, each with the error `rest_alpha`.
    """
    leads = _leads(ordered)
    lead = {question.key: question for panel in leads for question in _lead_questions(panel)}
    asked = itertools.chain(
        *(_rest_questions(panel, ordered, is_lead=panel in leads) for panel in ordered),
        _job_questions(ordered),
    )
    rest = {question.key: question for question in asked if not _asked(question, lead)}
    alpha = stats.look_alpha(looks, by_precision=by_precision)
    computing = [panel for panel in leads if panel.first.cell.compute.kind is not ComputeKind.NONE]
    waits = {(WAIT, cell.key) for panel in computing for cell in panel.stored}
    shown = _shown_figures(ordered) - waits
    lead_size, other_size = max(1, len(lead) + len(waits)), max(1, len(rest) + ratios)
    lead_alpha, other_alpha = alpha * LEAD_FRAC / lead_size, alpha * OTHER_RATIOS_FRAC / other_size
    answers = [
        *_decided(list(lead.values()), lead_size, alpha * LEAD_FRAC),
        *_decided(list(rest.values()), other_size, alpha * OTHER_RATIOS_FRAC),
    ]
    rest_alpha = alpha * (1 - LEAD_FRAC - OTHER_RATIOS_FRAC) / max(1, len(shown) + others)
    return Decisions(
        found={(answer.topic, answer.cell.key, answer.base.key): answer for answer in answers},
        looks=looks,
        alpha=alpha,
        lead_alpha=lead_alpha,
        other_alpha=other_alpha,
        rest_alpha=rest_alpha,
        figure_alphas=dict.fromkeys(waits, lead_alpha) | dict.fromkeys(shown, rest_alpha),
    )


def _shown_figures(ordered: Sequence[Panel]) -> set[tuple[str, tuple[str, str]]]:
    """Return the figures of single cells that sentences may use, by name and key of the cell.

    These are the reads of every cell that is not warm, the exposed communication of every job of ranks, and the wait of a
    training loop with the base of the comparisons: whether a conversion pays depends on it.
    """
    reads = {
        (READS, cell.key)
        for panel in ordered
        for cell in panel.measured
        if cell.cell.cache != CacheState.WARM
    }
    waits = {
        (WAIT, panel.base.key)
        for panel in ordered
        if panel.base is not None and panel.first.cell.compute.kind is not ComputeKind.NONE
    }
    exposed = {
        (EXPOSED, cell.key)
        for panel in ordered
        if panel.first.cell.ranks > 1
        for cell in panel.measured
        if cell.values(EXPOSED)
    }
    return reads | waits | exposed


def _leads(ordered: Sequence[Panel]) -> list[Panel]:
    """Return the panel of each dataset and machine that sentences rest on: the first one in order."""
    first: dict[tuple[object, ...], Panel] = {}
    for panel in ordered:
        first.setdefault(panel.first.dataset_key, panel)
    return list(first.values())


def _lead_questions(panel: Panel) -> Iterator[_Question]:
    """Yield each pair of stores: which one is the fastest is not known beforehand."""
    for base, cell in itertools.combinations(panel.stored, 2):
        yield _rates(Topic.BACKEND, cell, base)


def _rest_questions(panel: Panel, panels: Sequence[Panel], *, is_lead: bool) -> Iterator[_Question]:
    base = panel.base
    if base is None:
        return
    yield from (_rates(Topic.BACKEND, cell, base) for cell in panel.measured if cell is not base)
    if panel.null is not None and panel.null.usable and panel.first.cell.compute.kind is ComputeKind.REAL:
        for cell in panel.measured:
            cell_s, null_s = (side.rounds_per_sample("compute_s") for side in (cell, panel.null))
            yield _Question(topic=Topic.COMPUTE, cell=cell, base=panel.null, top=cell_s, bottom=null_s)
    if not is_lead:
        return
    for cell in panel.stored:
        counts = sorted(siblings(cell, panels, "workers"), key=lambda sibling: sibling.cell.workers)
        yield from (_rates(Topic.WORKERS, more, counts[0]) for more in counts[1:])
        states = {sibling.state: sibling for sibling in siblings(cell, panels, "cache")}
        if "cold" in states and "warm" in states:
            yield _rates(Topic.CACHE, states["warm"], states["cold"])


def _job_questions(ordered: Sequence[Panel]) -> Iterator[_Question]:
    """Yield pairs of a job and one process, and pairs of jobs that exchange gradients or read in different ways."""
    jobs: dict[object, list[CellSummary]] = {}
    for cell in stored_jobs(ordered):
        jobs.setdefault(work_of_ranks(cell), []).append(cell)
    if not jobs:
        return
    for alone in (cell for panel in ordered for cell in panel.stored if cell.cell.ranks == 1):
        matching = (job for job in jobs.get(work_of_ranks(alone), ()) if does_the_work(job, alone))
        yield from (_rates(Topic.RANKS, job, alone) for job in matching)
    for ways in ways_to_exchange(ordered):
        yield from (_rates(Topic.SYNC, cell, base) for cell, base in itertools.combinations(ways, 2))
    yield from (_rates(Topic.STORE, kept, separate) for kept, separate in data_stores(ordered))


def siblings(cell: CellSummary, panels: Sequence[Panel], varying: str) -> list[CellSummary]:
    """Return the measured cells of the same backend whose setting differs in the named field only."""
    key = key_without(cell, varying)
    measured = (panel.of(cell.backend) for panel in panels)
    return [sibling for sibling in measured if sibling is not None and key_without(sibling, varying) == key]


def _rates(topic: Topic, cell: CellSummary, base: CellSummary) -> _Question:
    top, bottom = (side.values("samples_per_s") for side in (cell, base))
    return _Question(topic=topic, cell=cell, base=base, top=top, bottom=bottom)


def _asked(question: _Question, lead: Mapping[tuple[object, ...], _Question]) -> bool:
    return question.key in lead or (question.topic, question.base.key, question.cell.key) in lead


def _decided(questions: Sequence[_Question], size: int, alpha: float) -> Iterator[Decision]:
    ratios = family([(question.top, question.bottom) for question in questions], size=size, alpha=alpha)
    for question, ratio in zip(questions, ratios, strict=True):
        if ratio is not None:
            # A ratio of times: where it is above 1, computing beside the cell is slower.
            shown = ratio.in_times() if question.topic is Topic.COMPUTE else ratio
            yield Decision(
                topic=question.topic,
                cell=question.cell,
                base=question.base,
                ratio=shown,
                doubt=_doubt(question, shown),
                alpha=alpha / size,
            )


def _doubt(question: _Question, ratio: Ratio) -> Doubt | None:
    """Return why the interval of a question of the page must not be used; None if it may."""
    if question.topic is Topic.COMPUTE:
        return None
    cold = tuple(side for side in (question.cell, question.base) if side.cold_start)
    if cold and question.topic is Topic.BACKEND:
        return Doubt(kind=DoubtKind.COLD, cells=cold)
    return doubt_about(question.cell, question.base, ratio)


def doubt_about(cell: CellSummary, base: CellSummary, ratio: Ratio) -> Doubt | None:
    """Return why the interval of a ratio of two rates must not be used; None if it may."""
    sides = (cell, base)
    few = tuple(side for side in sides if side.short_training)
    if few:
        return Doubt(kind=DoubtKind.FEW_STEPS, cells=few)
    moving = tuple(side for side in sides if side.unsteady)
    if moving:
        return Doubt(kind=DoubtKind.UNSTEADY, cells=moving)
    # An upper bound can prove its own cell slower, and nothing else.
    slow = {Verdict.FASTER: base, Verdict.SLOWER: cell}.get(ratio.verdict)
    cut_off = tuple(side for side in sides if side.cut_off and side is not slow)
    return Doubt(kind=DoubtKind.CUT_OFF, cells=cut_off) if cut_off else None


def looks_at(cells: Iterable[CellSummary]) -> int:
    """Return the number of looks at the rounds of any cell: its runs, and the extensions of each run."""
    return max((_cell_looks(cell.rows) for cell in cells), default=1)


def added_by_precision(cells: Iterable[CellSummary]) -> bool:
    """Whether a run of any cell added rounds until its intervals were narrow enough."""
    return any(row.get("rounds_rule") is not None for cell in cells for row in cell.rows)


def _cell_looks(rows: Sequence[EpochRow]) -> int:
    by_run = {row["run_id"]: int(row["looks"] or 1) for row in rows}
    return sum(by_run.values())


@functools.lru_cache(maxsize=256)
def _needed(spread: float, alpha: float) -> int | None:
    return stats.rounds_needed(spread, TOLD_FRAC, alpha=alpha)


def rounds_to_tell(decisions: Decisions, undecided: Sequence[Decision]) -> int | None:
    """Return the number of further rounds that would detect a difference of `TOLD_FRAC`; None if it is not below 200.

    From the largest spread among `undecided`, at 80% power, with the error of the next look.
    """
    spreads, rounds = [], []
    for decision in undecided:
        top, bottom = (side.values("samples_per_s") for side in (decision.cell, decision.base))
        logs = stats.spread([top[key] / bottom[key] for key in top if key in bottom])
        if logs is not None:
            spreads.append(logs)
            rounds.append(decision.ratio.n)
    if not spreads:
        return None
    spent = min(decision.alpha or decisions.other_alpha for decision in undecided)
    later = spent * stats.look_alpha(decisions.looks + 1) / stats.look_alpha(decisions.looks)
    needed = _needed(max(spreads), later)
    return None if needed is None else max(1, needed - min(rounds))
