"""The claims of a page: every assertion that its sentences may make, made once, by the rules of this module.

Headline, advice, verdicts, answers and captions put claims into words and add none, so a rule holds for all of them:

- Two cells have one claim per topic, whichever sentence asks. "Within 10% of each other" comes before "faster".
- A decided claim leads wherever there is one (`leading`).
- A conversion pays only where the saving is decided, the interval of the epochs spans less than a factor of `MOST_SPAN`,
  and no training that the reader may do is proven to gain nothing from it (`refusal`).
- The two sides of a claim differ in nothing but its topic, and in whether pixels are lost (`Claim.fair`).
"""

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from storebench.report.cells import RANK_COLUMNS, SETTING_COLUMNS, SHARE_COLUMNS, CellSummary
from storebench.report.decisions import EXPOSED, FED_FRAC, READS, Decision, Decisions, Topic
from storebench.report.factors import BreakEven, closings, shares
from storebench.report.intervals import Estimate
from storebench.report.ladder import Ladder
from storebench.report.panels import Panel
from storebench.report.roofline_curve import MOST_SPAN
from storebench.report.verdict import Bound, CellVerdict
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind
from storebench.stats import MIN_ROUNDS

AMPLIFIED = 2.0
"""A device that delivers more than so many times the bytes that were asked for reads too much."""

FEWEST_STEPS = 20
"""Below, a distribution over steps and a course over an epoch say nothing."""

TOLD_SHARE = 0.05
"""Smaller shares of a difference are not mentioned."""

_DEVICE_FRAC = 0.10
"""With the page cache as found: reads from the device of this share of the payload are reads of the store."""


class ClaimKind(enum.StrEnum):
    """The kind of an assertion about a subject and, in some kinds, an object."""

    FASTER = "faster"
    EQUAL = "equal"
    """The two differ by less than 10%, proven."""
    UNDECIDED = "undecided"
    FED = "fed"
    """The loop waits less than 10% of its time."""
    PAYS = "pays"
    """Converting the object's store into the subject's has paid for itself after `figure` epochs."""
    SHARE = "share"
    """A part of the work explains a share of the difference."""
    LIMITED = "limited"
    """Without the part that limits it the subject would be at most `figure` times as fast."""
    CONTENTION = "contention"
    """Beside the subject the network computes `figure` times as long as with nothing to load."""
    AMPLIFIED = "amplified"
    """The device delivers `figure` times the bytes that the subject asks for."""
    LARGER = "larger"
    """The subject's store takes `figure` times the space of the object's."""
    SPIKE = "spike"
    """The longest wait of an epoch is `figure` times the median one."""
    CLOSES = "closes"
    """The subject's decoder closes a share of the gap between the object, the default decoder, and raw pixels."""
    EXPOSED = "exposed"
    """Exchanging gradients lengthens a step of the subject, a job of ranks, by `figure` seconds."""


COMPARED = (ClaimKind.FASTER, ClaimKind.EQUAL, ClaimKind.UNDECIDED)
"""Kinds that compare two cells."""

_STATE = frozenset({"cache", "memory_bytes", "readahead_kib"})
_FREE: Mapping[Topic, frozenset[str]] = {
    Topic.BACKEND: frozenset({"loss"}),
    Topic.RUNG: frozenset({"share"}),
    Topic.WORKERS: frozenset({"workers"}),
    Topic.RANKS: frozenset(RANK_COLUMNS),
    Topic.SYNC: frozenset({"sync"}),
    Topic.STORE: frozenset(SHARE_COLUMNS),
    Topic.CACHE: _STATE,
    Topic.COMPUTE: _STATE | {"loss"},
}
"""Topic -> what the two sides may differ in besides their backends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """One assertion.

    Attributes
    ----------
    subject, object
        The cells that it is about; of two that are compared the subject is the one with the higher rate.
    figure
        The figure that stands in a sentence, with the interval that carries the assertion; None without one.
    topic
        What differs between subject and object.
    part
        Part of the work, of a share or a limit; the backend with raw pixels, where another decoder closes a gap.
    decided
        Whether the interval proves the assertion; what is only measured is not decided.
    decision
        The comparison behind it; None if it rests on something else.
    """

    kind: ClaimKind
    subject: CellSummary
    object: CellSummary | None = None
    figure: Estimate | None = None
    topic: Topic = Topic.BACKEND
    part: str = ""
    decided: bool = True
    decision: Decision | None = None

    @property
    def differs(self) -> frozenset[str]:
        """The conditions in which the two sides differ: fields of the setting, "machine", "samples" and "loss"."""
        if self.object is None:
            return frozenset()
        ours, theirs = _conditions(self.subject), _conditions(self.object)
        return frozenset(name for name in ours if ours[name] != theirs[name])

    @property
    def fair(self) -> bool:
        """Whether the two sides differ in nothing but the topic, and in whether pixels are lost."""
        return self.differs <= _FREE[self.topic]

    def contradicts(self, other: "Claim") -> bool:
        """Whether both cannot be true, or one calls indifferent what the other calls a gain."""
        return _clash(self, other) or _clash(other, self)


def _conditions(cell: CellSummary) -> Mapping[str, object]:
    fields = {name: cell.fields[name] for name in SETTING_COLUMNS}
    return fields | {"machine": cell.environment_key, "samples": cell.dataset_key[1:], "loss": cell.lossy}


def _clash(claim: Claim, other: Claim) -> bool:
    """Whether two claims clash, seen from the first; `Claim.contradicts` asks both ways round."""
    if claim.kind is ClaimKind.FED:
        return _is_denied(claim, other)
    if claim.object is None or other.object is None or claim.topic is not other.topic:
        return False
    same, turned = _pair(claim) == _pair(other), _pair(claim) == _pair(other)[::-1]
    if not (same or turned):
        return False
    if claim.kind is ClaimKind.PAYS:
        return other.kind in (ClaimKind.EQUAL, ClaimKind.UNDECIDED) or (
            other.kind is ClaimKind.FASTER and turned
        )
    if claim.kind is ClaimKind.FASTER and other.kind is ClaimKind.FASTER:
        return turned
    return claim.kind is ClaimKind.UNDECIDED and other.kind in (ClaimKind.FASTER, ClaimKind.EQUAL)


def _is_denied(fed: Claim, other: Claim) -> bool:
    """Whether `other` claims a notable gain for a loop that hardly waits, according to `fed`."""
    if other.object is None or other.object.key != fed.subject.key:
        return False
    if other.kind is ClaimKind.PAYS:
        return True
    least = other.figure.lo or 0 if other.figure else 0
    return other.kind is ClaimKind.FASTER and least > 1 / (1 - FED_FRAC)


def _pair(claim: Claim) -> tuple[object, object]:
    return claim.subject.key, None if claim.object is None else claim.object.key


@dataclass(frozen=True, kw_only=True, eq=False)
class Claims:
    """The claims of a page.

    Attributes
    ----------
    found
        Every claim but the shares of differences, which `shares` makes when they are asked for.
    decisions
        The comparisons behind them.
    """

    found: tuple[Claim, ...]
    decisions: Decisions

    @functools.cached_property
    def _pairs(self) -> Mapping[tuple[Topic, frozenset[object]], Claim]:
        return {
            (claim.topic, frozenset(_pair(claim))): claim for claim in self.found if claim.kind in COMPARED
        }

    @functools.cached_property
    def _single(self) -> Mapping[tuple[ClaimKind, tuple[str, str]], Claim]:
        return {(claim.kind, claim.subject.key): claim for claim in self.found if claim.kind not in COMPARED}

    @functools.cached_property
    def _shares(self) -> dict[Claim, tuple[Claim, ...]]:
        return {}

    def between(self, cell: CellSummary, other: CellSummary, topic: Topic = Topic.BACKEND) -> Claim | None:
        """Return the claim about two cells, whichever is named first; None if the page does not compare them."""
        return self._pairs.get((topic, frozenset((cell.key, other.key))))

    def on(self, kind: ClaimKind, cell: CellSummary) -> Claim | None:
        """Return the claim of a kind whose subject is `cell`; None if there is none."""
        return self._single.get((kind, cell.key))

    def each(self, kind: ClaimKind, cells: Iterable[CellSummary]) -> list[Claim]:
        """Return the claims of a kind whose subjects are among `cells`, in their order."""
        return [claim for cell in cells if (claim := self.on(kind, cell)) is not None]

    def shares(self, claim: Claim) -> tuple[Claim, ...]:
        """Return the proven shares of a proven difference between two backends; empty for any other claim."""
        if claim.kind is not ClaimKind.FASTER or claim.topic is not Topic.BACKEND:
            return ()
        if claim not in self._shares:
            self._shares[claim] = tuple(_share_claims(claim))
        return self._shares[claim]


def leading(claims: Iterable[Claim | None]) -> Claim | None:
    """Return the claim that leads: the first decided one, else the first; None if there is none."""
    known = [claim for claim in claims if claim is not None]
    return next((claim for claim in known if claim.decided), next(iter(known), None))


def claims_of(
    panels: Sequence[Panel],
    cells: Iterable[CellSummary],
    decisions: Decisions,
    verdicts: Mapping[tuple[str, str], CellVerdict],
    break_evens: Iterable[BreakEven],
    ladders: Iterable[Ladder],
) -> Claims:
    """Return the claims of a page.

    Parameters
    ----------
    panels
        Those that have a rate, in the order in which they are asked.
    cells
        All cells of the page.
    decisions, verdicts, break_evens, ladders
        What was derived from them.
    """
    compared = [
        _compared(decision) for decision in decisions.found.values() if decision.topic is not Topic.COMPUTE
    ]
    compared += [claim for ladder in ladders for claim in _gains(ladder)]
    before = Claims(found=tuple(compared), decisions=decisions)
    single = [
        *_fed(panels, decisions),
        *(claim for cell in cells for claim in _of_cell(cell, decisions, verdicts.get(cell.key))),
        *(claim for panel in panels for claim in _largest(panel)),
        *(_pays(even, before) for even in break_evens if not refusal(even, panels, before)),
        *(claim for panel in panels for claim in _closes(panel, before)),
        *(claim for panel in panels for claim in _exposed(panel, decisions)),
    ]
    return Claims(found=(*compared, *single), decisions=decisions)


def _compared(decision: Decision) -> Claim:
    shown = decision if decision.ratio.mid >= 1 else decision.inverted()
    kind = ClaimKind.EQUAL if shown.equal else ClaimKind.FASTER if shown.faster else ClaimKind.UNDECIDED
    return Claim(
        kind=kind,
        subject=shown.cell,
        object=shown.base,
        figure=shown.ratio,
        topic=shown.topic,
        decided=kind is not ClaimKind.UNDECIDED,
        decision=shown,
    )


def _gains(ladder: Ladder) -> Iterator[Claim]:
    """Yield the gains of each rung over the one below, of all explicit reading over plain LMDB, and of the best rung."""
    yield from (_compared(step.gain) for step in ladder.steps if step.gain is not None)
    if ladder.top_gain is not None:
        yield _compared(ladder.top_gain)
    if ladder.trains:
        yield from map(_compared, ladder.best_gains.values())


def _fed(panels: Iterable[Panel], decisions: Decisions) -> Iterator[Claim]:
    """Yield the stores whose loop is proven to be fed, of the panel of each dataset that sentences rest on."""
    leads: dict[object, Panel] = {}
    for panel in panels:
        leads.setdefault(panel.first.dataset_key, panel)
    for panel in leads.values():
        for cell in panel.stored:
            if decisions.fed(cell):
                yield Claim(kind=ClaimKind.FED, subject=cell, figure=decisions.waiting(cell))


def _of_cell(cell: CellSummary, decisions: Decisions, verdict: CellVerdict | None) -> Iterator[Claim]:
    """Yield the claims about one cell by itself."""
    if verdict is not None:
        yield from _limits(cell, verdict)
    if reads_device(cell):
        proven = decisions.above(cell, READS, AMPLIFIED) is not None
        yield Claim(
            kind=ClaimKind.AMPLIFIED, subject=cell, figure=decisions.figure(cell, READS), decided=proven
        )
    middle, longest = cell.median("data_wait_p50_ns"), cell.median("data_wait_max_ns")
    if middle and longest and has_distribution(cell):
        figure = Estimate(mid=longest / middle, n=len(cell.values("data_wait_p50_ns")))
        yield Claim(kind=ClaimKind.SPIKE, subject=cell, figure=figure, decided=False)


def _limits(cell: CellSummary, verdict: CellVerdict) -> Iterator[Claim]:
    gain = Estimate(mid=verdict.feed_gain if verdict.bound is Bound.COMPUTE else verdict.gain)
    yield Claim(kind=ClaimKind.LIMITED, subject=cell, figure=gain, part=str(verdict.bound), decided=False)
    inflation = verdict.inflation
    if verdict.bound is Bound.CONTENTION and inflation is not None:
        yield Claim(
            kind=ClaimKind.CONTENTION,
            subject=cell,
            object=inflation.base,
            figure=inflation.ratio,
            topic=Topic.COMPUTE,
            decision=inflation,
        )


def reads_device(cell: CellSummary) -> bool:
    """Whether the cell's epoch reads its store from a device, as far as that was counted; a warm one does not."""
    times = cell.median("read_amplification") if cell.usable and not cell.is_null else None
    if times is None or cell.cell.cache == CacheState.WARM or cell.fact("cache_applies_to") == "open":
        return False
    return cell.cell.cache in BOUNDED_STATES or times >= _DEVICE_FRAC


def has_distribution(cell: CellSummary) -> bool:
    """Whether every epoch of the cell has so many timed steps that their distribution says something."""
    return bool(cell.usable) and min(int(row["timed_steps"]) for row in cell.usable) >= FEWEST_STEPS


def _largest(panel: Panel) -> Iterator[Claim]:
    sized = [(float(size), cell) for cell in panel.stored if (size := cell.fact("bytes_on_disk"))]
    ordered = sorted(sized, key=lambda pair: pair[0])
    if ordered and ordered[0][0] < ordered[-1][0]:
        (small, least), (large, most) = ordered[0], ordered[-1]
        yield Claim(kind=ClaimKind.LARGER, subject=most, object=least, figure=Estimate(mid=large / small))


def refusal(even: BreakEven, panels: Iterable[Panel], claims: Claims) -> str:
    """Return why nothing is said of when a conversion pays, as part of a sentence; "" if it is said."""
    saving = claims.between(even.cell, even.baseline)
    if saving is None or saving.kind is not ClaimKind.FASTER or saving.subject is not even.cell:
        return "no saving is proven"
    if even.epochs is None:
        return f"fewer than {MIN_ROUNDS} conversions, or a saving whose interval does not leave out 0"
    if not _is_narrow(even.epochs):
        return f"the interval of the epochs spans more than a factor of {MOST_SPAN:g}"
    return "" if _training_gains(even, panels, claims) else "training gains nothing from it on this machine"


def _is_narrow(epochs: Estimate) -> bool:
    if epochs.lo is None or epochs.hi is None:
        return False
    return epochs.lo > 0 and epochs.hi < MOST_SPAN * epochs.lo


def _training_gains(even: BreakEven, panels: Iterable[Panel], claims: Claims) -> bool:
    """Whether the loop that a saving was measured in is not fed already, nor any training where the loop only loads."""
    if claims.decisions.fed(even.baseline):
        return False
    if even.cell.cell.compute.kind is not ComputeKind.NONE:
        return True
    alike = [panel for panel in panels if panel.first.dataset_key == even.cell.dataset_key]
    for panel in alike:
        cell, base = panel.of(even.cell.backend), panel.of(even.baseline.backend)
        if panel.first.cell.compute.kind is not ComputeKind.REAL or cell is None or base is None:
            continue
        claim = claims.between(cell, base)
        if claims.decisions.fed(base) or (claim is not None and claim.kind is ClaimKind.EQUAL):
            return False
    return True


def _pays(even: BreakEven, claims: Claims) -> Claim:
    saving = claims.between(even.cell, even.baseline)
    decision = None if saving is None else saving.decision
    return Claim(
        kind=ClaimKind.PAYS, subject=even.cell, object=even.baseline, figure=even.epochs, decision=decision
    )


def _closes(panel: Panel, claims: Claims) -> Iterator[Claim]:
    """Yield the shares of each proven gap between compressed images and raw pixels that other decoders close."""
    for closing in closings(panel):
        gap, change = claims.between(closing.slow, closing.fast), claims.between(closing.cell, closing.slow)
        if (
            gap is None
            or change is None
            or gap.kind is not ClaimKind.FASTER
            or gap.subject is not closing.fast
        ):
            continue
        # The change itself must be proven as well: a share alone would not hold together with the page's other intervals.
        proven = (
            change.kind is ClaimKind.FASTER
            and change.subject is closing.cell
            and (closing.share.lo or 0.0) > 0
        )
        yield Claim(
            kind=ClaimKind.CLOSES,
            subject=closing.cell,
            object=closing.slow,
            figure=closing.share,
            part=closing.fast.backend,
            decided=proven,
            decision=change.decision,
        )


def _exposed(panel: Panel, decisions: Decisions) -> Iterator[Claim]:
    """Yield the cost per step of exchanging gradients, for each job of ranks."""
    for cell in panel.measured if panel.first.cell.ranks > 1 else ():
        figure = decisions.figure(cell, EXPOSED)
        if figure is not None:
            proven = decisions.above(cell, EXPOSED, 0.0) is not None
            yield Claim(kind=ClaimKind.EXPOSED, subject=cell, figure=figure, decided=proven)


def _share_claims(claim: Claim) -> Iterator[Claim]:
    if claim.object is not None:
        for explained in shares(claim.object, claim.subject):
            if explained.proven and abs(explained.share.mid) >= TOLD_SHARE:
                yield Claim(
                    kind=ClaimKind.SHARE,
                    subject=claim.object,
                    object=claim.subject,
                    figure=explained.share,
                    part=explained.part,
                )
