"""Whether it is worth converting image files: the answer to a run that chose its backends itself, in words."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from storebench.accelerators import Accelerator, landmarks
from storebench.formats.registry import parse_backend, store_name_of
from storebench.report.cells import CellSummary, state_key
from storebench.report.claims import Claim, ClaimKind
from storebench.report.facts import Facts
from storebench.report.main_panel import state_rank
from storebench.report.roofline import Roofline
from storebench.report.roofline_curve import Feeding, RooflineCurve
from storebench.report.texts.labels import ORIGINAL, backend_label, duration, number, times
from storebench.report.texts.roofline import delivering_sentences, is_handed, loader_words, starving_words
from storebench.report.texts.verdicts import COLD_START, more_rounds
from storebench.runs.manifest import Whole
from storebench.settings.words import CacheState, ComputeKind
from storebench.stats import PRACTICAL_FRAC
from storebench.units import number_of, rounded_bytes

BASES = (ORIGINAL, "png")
"""Backends that the others are compared with: the first of them that was measured."""

_STATES = {
    CacheState.WARM: "read from memory",
    CacheState.COLD: "from a cold start",
    CacheState.LIMITED: "larger than memory",
}


@dataclass(frozen=True, kw_only=True)
class Worth:
    """The answer.

    Attributes
    ----------
    sentences
        The verdict first, then what it depends on and what converting costs.
    store
        Name of the store to convert into, as ``storebench convert`` takes it; "" if converting gains nothing.
    backend
        The backend that reads this store in the verdict, "lmdb:direct"; "" if converting gains nothing.
    side
        Side of its images; None if it keeps their sizes.
    named
        Sentences on the rate that each named accelerator gets from the stores, in the state of the verdict, and on whether
        converting is worth it for this one.
    """

    sentences: tuple[str, ...]
    store: str = ""
    backend: str = ""
    side: int | None = None
    named: tuple[str, ...] = ()


def worth(
    facts: Facts,
    unsound: Sequence[CellSummary] = (),
    accelerators: Sequence[Accelerator] = (),
) -> Worth | None:
    """Return whether converting is worth it; None if the original files have no loader-only cell.

    Parameters
    ----------
    facts
        Of one dataset.
    unsound
        Cells whose figures do not validate. The answer says which backends it leaves out, or that it rests on such figures.
        In the latter case it names no store to convert into.
    accelerators
        Accelerators that were asked about.
    """
    names = ", ".join(dict.fromkeys(_unsound_words(cell, facts) for cell in unsound))
    answer = _worth(facts, whole_choice=not names)
    if answer is None and any(
        cell.backend in BASES and cell.cell.compute.kind is ComputeKind.NONE for cell in unsound
    ):
        return Worth(sentences=(f"It cannot be told: the figures of {names} do not validate.",))
    if answer is None:
        return None
    answer = replace(answer, named=_named(facts, accelerators))
    if not names:
        return answer
    rests = not {cell.key for cell in unsound}.isdisjoint(cell.key for cell in facts.cells)
    caution = f"{names}: the figures do not validate, and {'the answer uses them' if rests else 'the answer does not cover them'}."
    return replace(
        answer,
        sentences=(answer.sentences[0], caution, *answer.sentences[1:]),
        store="" if rests else answer.store,
        backend="" if rests else answer.backend,
    )


def _unsound_words(cell: CellSummary, facts: Facts) -> str:
    """Return words for a backend, with the cache state if the answer has its figures in another state."""
    label = backend_label(cell.backend)
    is_shown = any(summary.backend == cell.backend and summary.key != cell.key for summary in facts.cells)
    return f"{label} {_STATES.get(cell.cell.cache, f'cache {cell.cell.cache}')}" if is_shown else label


def _named(facts: Facts, accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    """Return sentences on the rates that named accelerators get in the state of the verdict, and on what follows for each."""
    lead = _lead(facts.rooflines)
    if lead is None:
        return ()
    told = (
        [*delivering_sentences(lead, accelerator, _where(lead)), _for_one(facts, lead, accelerator)]
        for accelerator in accelerators
    )
    return tuple(sentence for sentences in told for sentence in sentences if sentence)


def _for_one(facts: Facts, lead: Roofline, accelerator: Accelerator) -> str:
    """Return whether converting is worth it for a named accelerator; "" if the verdict says it of all."""
    base, rate = _base(lead), accelerator.images_per_s
    if base is None or base.at_most or len(lead.stored) == 1:
        return ""
    feeding = base.feeding(rate)
    if feeding is Feeding.FEEDS:
        return f"Converting is not worth it for this accelerator: {_files(base)} keep it busy."
    helping = _helping(_gains(_claims(facts, lead, base)), base)
    if not helping:
        return ""
    best = _best(facts, helping)
    name, more = backend_label(best.backend), best.delivered(rate).mid / base.delivered(rate).mid
    if feeding is Feeding.STARVES and more >= 1 + PRACTICAL_FRAC:
        return f"Converting is worth it for this accelerator: from {name} it would train {more:.3g} times as many images/s."
    return (
        f"Whether converting is worth it for this accelerator cannot be told yet: from {name} it would train {more:.3g} times as"
        " many images/s by these figures."
    )


def _claims(facts: Facts, lead: Roofline, base: RooflineCurve) -> list[tuple[RooflineCurve, Claim | None]]:
    """Return each other store with the claim about its loader and that of the files."""
    return [(curve, _claim(facts, curve, base)) for curve in lead.stored if curve is not base]


def _gains(pairs: Sequence[tuple[RooflineCurve, Claim | None]]) -> dict[RooflineCurve, Claim]:
    """Return the stores whose loaders are proven to be faster than that of the files."""
    return {
        curve: claim
        for curve, claim in pairs
        if claim is not None and claim.kind is ClaimKind.FASTER and claim.subject is curve.loader
    }


def _helping(gains: Mapping[RooflineCurve, Claim], base: RooflineCurve) -> dict[RooflineCurve, Claim]:
    """Return those of them that feed faster accelerators."""
    return {curve: claim for curve, claim in gains.items() if curve.starving.mid > base.starving.mid}


def _worth(facts: Facts, *, whole_choice: bool) -> Worth | None:
    lead, whole = _lead(facts.rooflines), facts.whole
    base = None if lead is None else _base(lead)
    if lead is None or base is None:
        return None
    pairs = _claims(facts, lead, base)
    gains = _gains(pairs)
    memory = _memory_sentence(lead, whole)
    if base.loader.cold_start:
        return Worth(sentences=tuple(filter(None, (f"It cannot be told: {COLD_START}.", memory))))
    if base.at_most:
        return Worth(sentences=tuple(filter(None, (_bounded(lead, base), memory))))
    if not gains:
        unknown = [
            (curve, claim) for curve, claim in pairs if claim is None or claim.kind is ClaimKind.UNDECIDED
        ]
        verdict = (
            _undecided(lead, base, unknown, facts)
            if unknown
            else _keep(facts, lead, base, pairs, whole_choice=whole_choice)
        )
        return Worth(sentences=tuple(filter(None, (verdict, memory))))
    helping = _helping(gains, base)
    if not helping:
        return Worth(sentences=tuple(filter(None, (_handoff(lead), memory))))
    return _converting(facts, base, helping, _below(lead, base), memory, whole)


def _converting(
    facts: Facts,
    base: RooflineCurve,
    gains: Mapping[RooflineCurve, Claim],
    below: str,
    memory: str,
    whole: Whole | None,
) -> Worth:
    """Return the answer where another store is proven to feed faster accelerators."""
    best = _best(facts, gains)
    cell = best.loader
    store = parse_backend(store_name_of(cell.cell.backend))
    raw = store.codec == "raw"
    sentences = (
        below,
        _above(base, best, gains[best]),
        _rivals(facts, best, gains),
        _unchanged(gains) if raw else "",
        memory,
        _price(cell, whole),
        _fixed(cell, base) if raw else "",
        _scale(base),
    )
    return Worth(
        sentences=tuple(filter(None, sentences)),
        store=store.name,
        backend=cell.cell.backend.name,
        side=cell.cell.data.image_size if raw else None,
    )


def _lead(rooflines: Sequence[Roofline]) -> Roofline | None:
    """Return the roofline that decides; None if there is none.

    Its state is the one that comes first on the page, however many stores have a rate in it. Of several in that state, it
    is the one with the fewest ranks, and then the one with most workers.
    """

    def rank(roofline: Roofline) -> tuple[int, int, int]:
        cell = roofline.first.cell
        return -state_rank(roofline.first), cell.ranks, -cell.workers

    return min((roofline for roofline in rooflines if not roofline.augmented), key=rank, default=None)


def _base(lead: Roofline) -> RooflineCurve | None:
    return next((curve for name in BASES if (curve := lead.curve(name)) is not None), None)


def _claim(facts: Facts, curve: RooflineCurve, base: RooflineCurve) -> Claim | None:
    return facts.claims.between(curve.loader, base.loader)


def _where(lead: Roofline) -> str:
    cache = lead.first.cell.cache
    return f"{_STATES.get(cache, f'cache {cache}')}, {loader_words(lead)}"


def _files(base: RooflineCurve) -> str:
    return "your files as they are" if base.backend == ORIGINAL else backend_label(base.backend)


def _listed(curves: Sequence[RooflineCurve]) -> str:
    return ", ".join(backend_label(curve.backend) for curve in curves)


def _floor(base: RooflineCurve) -> str:
    """Return the rate up to which the files keep any accelerator busy: the lower end of their starving point; "" if unknown."""
    return number(base.starving.lo) if base.starving.known and base.starving.lo is not None else ""


def _bounded(lead: Roofline, base: RooflineCurve) -> str:
    late = number_of(base.loader.cut_off, "replicate")
    return (
        f"It cannot be told ({_where(lead)}): {late} of {_files(base)} ran out of time, so their rate is that of the faster"
        " ones. A longer time limit would decide it."
    )


def _keep(
    facts: Facts,
    lead: Roofline,
    base: RooflineCurve,
    pairs: Sequence[tuple[RooflineCurve, Claim | None]],
    *,
    whole_choice: bool,
) -> str:
    names = _listed([curve for curve, _ in pairs])
    if not names:
        return f"Nothing to compare {_files(base)} with was measured."
    failed = [
        backend_label(cell.backend)
        for cell in facts.cells
        if state_key(cell) == state_key(base.loader) and not cell.median("samples_per_s")
    ]
    failures = f" {', '.join(failed)} failed." if failed else ""
    each = "every other measured store" if failed or not whole_choice else "every other store"
    return (
        f"Not worth it at any speed of training ({_where(lead)}): {each} ({names}) is proven to be"
        f" within 10% of {_files(base)}, or slower.{failures}"
    )


def _undecided(
    lead: Roofline, base: RooflineCurve, unknown: Sequence[tuple[RooflineCurve, Claim | None]], facts: Facts
) -> str:
    known = [claim for _, claim in unknown if claim is not None]
    more = f"; {more_rounds(facts.claims.decisions, known)}" if known else ""
    names = _listed([curve for curve, _ in unknown])
    floor = _floor(base)
    if not floor:
        return (
            f"It cannot be told yet ({_where(lead)}) up to which training rate {_files(base)} keep an accelerator busy, or"
            f" whether another store helps ({names}{more})."
        )
    return (
        f"Not worth it for training below {floor} images/s ({_where(lead)}): up to there"
        f" {_files(base)} keep the accelerator busy. Above, it cannot be told yet whether another store helps"
        f" ({names}{more})."
    )


def _handoff(lead: Roofline) -> str:
    return (
        f"Not worth it ({_where(lead)}): other stores are read faster, but handing batches to the loop takes so long that"
        " none of them feeds a faster accelerator."
    )


def _below(lead: Roofline, base: RooflineCurve) -> str:
    floor = _floor(base)
    if not floor:
        return (
            f"It cannot be told yet below which training rate converting is not worth it ({_where(lead)}):"
            f" {_files(base)} keep an accelerator busy at least 90% of its time up to {starving_words(base)} images/s."
        )
    return (
        f"Not worth it for training below {floor} images/s ({_where(lead)}): training will not notice, because"
        f" {_files(base)} keep an accelerator busy at least 90% of its time up to {starving_words(base)} images/s."
    )


def _above(base: RooflineCurve, best: RooflineCurve, claim: Claim) -> str:
    name = backend_label(best.backend)
    if (best.starving.lo or 0.0) > (base.furthest.starving.hi or math.inf):
        helps = f"Above that, {name} helps"
    elif is_handed(best):
        helps = f"For faster training {name} may help, but the intervals overlap"
    else:  # its loader is proven to be faster, and nothing else limits it
        helps = f"For faster training {name} helps"
    return (
        f"{helps}: up to {starving_words(best)} images/s. Its loader is"
        f" {times(claim.figure)} as fast as that of {_files(base)}."
    )


def _rivals(facts: Facts, best: RooflineCurve, gains: Collection[RooflineCurve]) -> str:
    """Return a sentence on the other stores that may feed as fast an accelerator as the best one, or "" without any."""
    names = [
        backend_label(curve.backend)
        for curve in gains
        if curve is not best
        and (curve.starving.hi or math.inf) >= (best.starving.lo or 0.0)
        and ((claim := _claim(facts, curve, best)) is None or claim.kind is ClaimKind.UNDECIDED)
    ]
    return (
        f"Whether {' or '.join(names)} would do as well is undecided: the intervals overlap." if names else ""
    )


def _unchanged(gains: Mapping[RooflineCurve, Claim]) -> str:
    """Return a sentence on the starving point of a container with unchanged files, or "" if none is proven to help."""
    kept = [curve for curve in gains if curve.loader.cell.backend.codec == ORIGINAL]
    if not kept:
        return ""
    best = max(kept, key=lambda curve: curve.starving.mid)
    return f"With the files unchanged, {backend_label(best.backend)}: up to {starving_words(best)} images/s."


def _best(facts: Facts, gains: Mapping[RooflineCurve, Claim]) -> RooflineCurve:
    """Return the backend with the highest starving point or, of those that are proven equal to it, the smallest."""
    first = max(gains, key=lambda curve: curve.starving.mid)
    alike = [
        curve
        for curve in gains
        if curve is first
        or ((claim := _claim(facts, curve, first)) is not None and claim.kind is ClaimKind.EQUAL)
    ]
    return min(
        alike, key=lambda curve: (float(curve.loader.fact("bytes_on_disk") or math.inf), curve is not first)
    )


def _memory_sentence(lead: Roofline, whole: Whole | None) -> str:
    """Return the cache state to expect in training, from the size of the whole dataset."""
    if whole is None:
        return ""
    holds = f"All {whole.count:,} images, {rounded_bytes(whole.total_bytes)},"
    memory = f"this machine's memory ({rounded_bytes(whole.memory_bytes)})"
    if whole.fits:
        return f"{holds} fit into {memory}: from the second epoch on they are read from there."
    sentence = f"{holds} do not fit into {memory}, so that every epoch reads from the disk"
    return (
        f"{sentence}."
        if lead.first.cell.cache == CacheState.LIMITED
        else f'{sentence}, which cache = "limited" would measure.'
    )


def _price(cell: CellSummary, whole: Whole | None) -> str:
    """Return the cost of converting everything, extrapolated from the only build of the measured store."""
    count, size, seconds = (cell.fact(name) for name in ("store_count", "bytes_on_disk", "build_s"))
    if whole is None or not (count and size and seconds):
        return ""
    share = whole.count / count
    timed = (
        "was timed once"
        if whole.count == count
        else f"is scaled from one conversion of {int(count):,} images"
    )
    return (
        f"Converting all {whole.count:,} images takes about {duration(seconds * share)} and"
        f" {rounded_bytes(size * share)} of disk. This {timed}, so the time has no interval."
    )


def _fixed(cell: CellSummary, base: RooflineCurve) -> str:
    """Return the drawback of raw pixels compared with files of any size, or "" if all files have one size."""
    if base.backend != ORIGINAL:
        return ""
    high, wide, _ = str(cell.fact("store_image_shape")).split("x")
    return (
        f"Raw pixels are fixed at {wide} x {high}: random crops of the whole image are then no longer possible, and part of"
        " the gain comes from leaving them out."
    )


def _scale(base: RooflineCurve) -> str:
    """Return published rates of accelerators, to compare the figures with; "" if images are not photographs."""
    if base.backend != ORIGINAL:
        return ""
    named = "; ".join(
        f"{accelerator.title}: {number(accelerator.images_per_s)} images/s" for accelerator in landmarks()
    )
    return f"For scale, published training rates: {named}."
