"""The storage roofline in words: which accelerators each backend feeds, what decides it, and how well the model fits."""

import math
from collections.abc import Sequence

from storebench import stats
from storebench.accelerators import Accelerator, landmarks
from storebench.report.cells import CellSummary
from storebench.report.intervals import Estimate
from storebench.report.roofline import ErrorSummary, Roofline, told_roofline
from storebench.report.roofline_curve import Feeding, RooflineCurve
from storebench.report.roofline_errors import ERROR_LIMIT, Cause, Explanation
from storebench.report.roofline_model import BUSY_FRAC
from storebench.report.texts.caveats import caveats
from storebench.report.texts.feeding import feeding_of, more_prep_s
from storebench.report.texts.labels import (
    ORIGINAL,
    agreed,
    backend_label,
    dataset_label,
    device_words,
    listed,
    network_name,
    number,
    percent,
    state_label,
    with_interval,
    workers_words,
)
from storebench.report.trained import Trained
from storebench.settings.words import CacheState
from storebench.units import number_of

_MOSTLY = 0.5
"""A part that is more than this share of the producers' work decides their rate."""

_NOTABLY = 1.01
"""A rate that may be higher by this factor is called "at least"."""

_HANDED = 0.98
"""The handoff is named where a starving point is below this share of the one that the supply rate alone would give."""

_WARM_FREE = frozenset({"cache", "memory_bytes", "readahead_kib", "epochs"})
_LENGTH_FREE = frozenset({"max_steps", "warmup_steps", "passes"})

_TAKE_TURNS = (
    "; without workers loading and computing take turns, so an accelerator is busy 90% of its time up to a ninth of the"
    " rate at which its store loads"
)
_FED = "; an accelerator is fed if it is busy at least 90% of its time"


def roofline_answer(rooflines: Sequence[Roofline]) -> str | None:
    """Return a sentence on the accelerators that each backend feeds, and on the reasons; None if nothing is decided."""
    return " ".join(roofline_sentences(rooflines)) or None


def roofline_sentences(rooflines: Sequence[Roofline]) -> list[str]:
    """Return sentences on the accelerators that each backend feeds, and on the reasons; empty if nothing is decided.

    Parameters
    ----------
    rooflines
        In the order of `storebench.report.roofline.rooflines`. The first one with a decided backend is told; those of
        other read-aheads and cache states of the same samples are compared with it.
    """
    lead = told_roofline(rooflines)
    if lead is None:
        return []
    others = [roofline for roofline in rooflines if roofline is not lead]
    sentences = [
        _feeding_sentence(lead, others),
        _deciding_sentence(lead, others),
        handoff_sentence([lead]),
        _landmark_sentence(lead),
    ]
    return [sentence for sentence in sentences if sentence]


def one_roofline_answer(roofline: Roofline) -> str:
    """Return a sentence on the accelerators that the backends of one setting feed, undecided ones included."""
    fed = roofline.decided
    if not fed:
        names = ", ".join(backend_label(curve.backend) for curve in roofline.curves)
        return f"{_where(roofline)}: no starving point is decided yet ({names}); more rounds may decide it."
    return _feeding_sentence(roofline, [])


def accelerator_sentence(roofline: Roofline, accelerator: Accelerator) -> str:
    """Return in one sentence which backends keep a named accelerator busy, and by whose figure."""
    named = f"{accelerator.title} ({number(accelerator.images_per_s)} images/s, {accelerator.origin})"
    parts = _feeding_parts([(curve, curve.feeding(accelerator.images_per_s)) for curve in roofline.curves])
    return f"{named}: {'; '.join(parts)}. {_where(roofline)}."


def delivering_sentences(roofline: Roofline, accelerator: Accelerator, where: str) -> list[str]:
    """Return the rate that stores deliver to a named accelerator by the roofline model, and then which of them keep it busy.

    Parameters
    ----------
    where
        The state and the loader of the roofline, in words.
    """
    rate = accelerator.images_per_s
    curves = sorted(roofline.stored, key=lambda curve: curve.backend != ORIGINAL)
    delivered = [f"{backend_label(curve.backend)} {_delivered_words(curve, rate)}" for curve in curves]
    parts = _feeding_parts([(curve, curve.feeding(rate)) for curve in curves])
    named = f"{accelerator.title} ({number(rate)} images/s, {accelerator.origin})"
    trains = f"would train this many images/s by the roofline's model ({where})"
    return [
        f"{named} {trains}: from {', '.join(delivered)}.{_none_feeds(curves, rate)}",
        f"It is {'; '.join(parts)}.",
    ]


def _none_feeds(curves: Sequence[RooflineCurve], rate: float) -> str:
    """Return a sentence that no store feeds an accelerator, and which comes closest; "" if one feeds it, by its median."""
    busy = {curve: curve.furthest.delivered(rate).mid / rate for curve in curves}
    if not busy or max(busy.values()) >= BUSY_FRAC:
        return ""
    best = max(busy, key=busy.__getitem__)
    closest = "" if best.at_most else f", and {backend_label(best.backend)} comes closest"
    return f" By these figures none keeps it busy {BUSY_FRAC:.0%} of its time{closest}."


def _delivered_words(curve: RooflineCurve, rate: float) -> str:
    """Return what a store delivers and how busy that keeps the accelerator: "970 [960, 980] (busy 39%)"."""
    delivered = curve.delivered(rate)
    if curve.model.overlap and delivered.mid < curve.supply.mid:
        # The accelerator and the handoff limit it: the interval of the supply rate would promise too much.
        delivered = Estimate(mid=delivered.mid, lo=None, hi=None, n=delivered.n)
    bound = _bound(curve, rate)
    return f"{bound}{with_interval(delivered)} (busy {bound}{percent(delivered.mid / rate)})"


def _bound(curve: RooflineCurve, rate: float) -> str:
    """Return "at most " or "at least " where the model only bounds what an accelerator of this rate gets."""
    if curve.at_most:
        return "at most "
    further = curve.furthest.model.delivered(rate) / curve.model.delivered(rate)
    return "at least " if further > _NOTABLY else ""


def handoff_sentence(rooflines: Sequence[Roofline]) -> str:
    """Return a sentence on the stores that the handoff keeps below what their supply rates would allow, or ""."""
    curves = [curve for roofline in rooflines for curve in roofline.curves if is_handed(curve)]
    names = dict.fromkeys(backend_label(curve.backend) for curve in curves)
    if not names:
        return ""
    alone = any(curve.handed_alone for curve in curves)
    longest = (
        " This was measured with nothing to compute, where it takes longest, so they may feed faster ones."
    )
    said, rate = ("feeds", "its supply rate") if len(names) == 1 else ("feed", "their supply rates")
    return (
        f"{listed([*names])} {said} slower accelerators than {rate} would allow: between two steps the loader hands a batch"
        f" over, and the accelerator waits (docs/worth-it.md).{longest if alone else ''}"
    )


def is_handed(curve: RooflineCurve) -> bool:
    """Return whether the handoff keeps a store below what its supply rate would allow."""
    return curve.model.overlap and curve.model.starving < _HANDED * curve.supply.mid / BUSY_FRAC


def _landmark_sentence(roofline: Roofline) -> str:
    """Return for how much of its time each store would keep the fastest marked accelerator busy; "" if all feed it.

    Where networks were trained on a GPU, they say more than published rates of others.
    """
    if any(trained.cell.cell.device != "cpu" for trained in roofline.trained):
        return ""
    fastest = max(landmarks(), key=lambda accelerator: accelerator.images_per_s)
    rate = fastest.images_per_s
    busy = [(curve, curve.delivered(rate).mid / rate) for curve in roofline.decided]
    if not roofline.of_photographs or all(share >= BUSY_FRAC for _, share in busy):
        return ""
    parts = [
        f"{_bound(curve, rate)}{percent(share)}{'' if place else ' of its time'} with {backend_label(curve.backend)}"
        for place, (curve, share) in enumerate(busy)
    ]
    return f"{fastest.title} ({number(rate)} images/s, {fastest.origin}) would be busy {listed(parts)}, by the roofline's model."


def starving_words(curve: RooflineCurve) -> str:
    """Return a starving point with its interval: "610 [580, 640]", "at most 610 [580, 640]"."""
    return ("at most " if curve.at_most else "") + with_interval(curve.starving)


def trained_label(trained: Trained) -> str:
    """Return a network that was trained here in words: "this CPU, CaffeNet"."""
    return f"{device_words(trained.cell)}, {network_name(trained.cell)}"


def state_words(roofline: Roofline) -> str:
    """Return the cache state of a roofline in words, with the read-ahead that was set for it."""
    cell = roofline.first.cell
    words = state_label(roofline.first)
    sizes = [curve.loader.fact("store_file_bytes") or 0 for curve in roofline.stored]
    if cell.memory_bytes and sizes and min(sizes) > cell.memory_bytes:
        words = f"larger than memory (page cache {words})"
    return words if cell.readahead_kib is None else f"{words}, read-ahead {cell.readahead_kib} KiB"


def loader_words(roofline: Roofline) -> str:
    """Return words for the loader of a roofline and the number of ranks that load together."""
    cell = roofline.first.cell
    together = f"{cell.ranks} ranks together, " if cell.ranks > 1 else ""
    if not cell.workers:
        return f"{together}{workers_words(cell)}"
    kind = "" if cell.loader == "processes" else f", loader {cell.loader}"
    each = " each" if together else ""
    return f"{together}{workers_words(cell)}{each}{kind}"


def error_words(errors: ErrorSummary) -> str:
    """Return the errors of a model against its points in one sentence."""
    words = (
        f"The model is off by {percent(errors.median)} at the median of {number_of(errors.count, 'point')}"
        f" and by {percent(errors.most)} at most"
    )
    if not errors.above:
        return f"{words}."
    verb, own = ("is", "its") if errors.above == 1 else ("are", "their")
    left = (
        f"{errors.unexplained} of them unexplained" if errors.unexplained else f"as {own} own records explain"
    )
    return (
        f"{words}; {number_of(errors.above, 'point')} {verb} off by more than {percent(ERROR_LIMIT)}, {left}."
    )


def explanation_words(explained: Explanation | None) -> str:
    """Return why a point is off its curve, with the figure that its records give."""
    if explained is None:
        return "unexplained"
    figure = explained.figure
    words = {
        Cause.FIRST_BATCH: f"the first batch is {percent(figure)} of so short an epoch",
        Cause.PRODUCERS: f"producers take {number(figure)} times as long per sample as with nothing to compute",
        Cause.HANDOFF: f"handing a batch over takes {percent(figure)} of the accelerator's step",
        Cause.JITTER: f"batches arrive unevenly: the longest of 20 waits is {number(figure)} times the mean one",
        Cause.SPREAD: "the replicates differ by more than the error",
    }[explained.cause]
    return words if explained.error is None else f"{words}; {percent(abs(explained.error))} is left"


def _where(roofline: Roofline, others: Sequence[Roofline] = (), beside: Sequence[CellSummary] = ()) -> str:
    """Return the setting of a roofline in words, with its batch size if `others` of the same images have another one.

    The caveats are those of its own loaders and of the cells `beside` it, whose figures stand in the same sentence.
    """
    images, work = roofline.first.dataset_key, roofline.augmented
    alike = (other.first for other in others if (other.first.dataset_key, other.augmented) == (images, work))
    size = roofline.first.cell.batch_size
    batch = f", batch {size}" if any(other.cell.batch_size != size for other in alike) else ""
    told = [*(curve.loader for curve in roofline.curves), *beside]
    caveat = "".join(f" ({note})" for note in caveats(told))
    augmented = ", with the network's augmentation" if roofline.augmented else ""
    return f"{dataset_label(roofline.first)}, {state_words(roofline)}, {loader_words(roofline)}{batch}{augmented}{caveat}"


def _feeding_sentence(lead: Roofline, others: Sequence[Roofline]) -> str:
    variants = _of_other_readahead(lead, others)
    parts: list[str] = []
    for curve in lead.decided:
        verb = "" if parts else f" {agreed(curve.loader, 'feeds', 'feed')} accelerators"
        unit = "" if parts else " images/s"
        loads = (
            ""
            if lead.overlap
            else f" ({agreed(curve.loader, 'it loads', 'they load')} {_supply_words(curve)})"
        )
        parts.append(
            f"{backend_label(curve.backend)}{verb} up to {_starving_points(curve, variants, unit)}{loads}"
        )
    end = _on_this_machine(lead) or (_FED if lead.overlap else "")
    turns = "" if lead.overlap else _TAKE_TURNS
    open_ones = [backend_label(curve.backend) for curve in lead.stored if not curve.decided]
    parts[-1] += f"; it is undecided how much {listed(open_ones)} can feed" if open_ones else ""
    beside = [other.loader for curve in lead.decided for other in _differing(curve, variants)]
    return f"{_where(lead, others, beside)}: {', '.join(parts)}{turns}{end}."


def _supply_words(curve: RooflineCurve) -> str:
    """Return the rate at which a store loads, beside the rate of the accelerator that it feeds."""
    return ("at most " if curve.at_most else "") + number(curve.supply.mid)


def _of_other_readahead(lead: Roofline, others: Sequence[Roofline]) -> list[Roofline]:
    if lead.first.cell.readahead_kib is None:
        return []
    return [roofline for roofline in others if _alike(lead, roofline, frozenset({"readahead_kib"}))]


def _alike(first: Roofline, second: Roofline, free: frozenset[str]) -> bool:
    """Whether two rooflines differ in nothing but the named fields and the length of their epochs."""
    cell, other = first.first, second.first
    if cell.dataset_key != other.dataset_key or cell.cell.cell_id == other.cell.cell_id:
        return False
    ignored = free | _LENGTH_FREE | {"backend", "format", "codec", "reader", "reader_options"}
    return all(value == other.fields[name] for name, value in cell.fields.items() if name not in ignored)


def _starving_points(curve: RooflineCurve, variants: Sequence[Roofline], unit: str) -> str:
    """Return words for a starving point, and for those of other read-aheads that clearly differ."""
    differing = _differing(curve, variants)
    points = " or ".join([_with_unit(curve, unit), *(_with_unit(other, "") for other in differing)])
    sizes = " or ".join(str(each.loader.cell.readahead_kib) for each in (curve, *differing))
    return f"{points} (if the disk reads ahead {sizes} KiB)" if differing else points


def _differing(curve: RooflineCurve, variants: Sequence[Roofline]) -> list[RooflineCurve]:
    """Return the curves of the same backend at other read-aheads whose starving points clearly differ."""
    curves = (variant.curve(curve.backend) for variant in variants)
    return [other for other in curves if other is not None and _shown_apart(curve, other)]


def _with_unit(curve: RooflineCurve, unit: str) -> str:
    figure, _, ends = with_interval(curve.starving).partition(" [")
    most = " at most" if curve.at_most else ""
    return f"{figure}{unit}" + (f" [{ends}" if ends else "") + most


def _apart(first: RooflineCurve, second: RooflineCurve) -> bool:
    """Whether two starving points are decided and proven to differ."""
    if not (first.decided and second.decided):
        return False
    over = [first.over(rates) for rates in second.rounds]
    known = [(ratio.lo or 0.0, ratio.hi or math.inf) for ratio in over if ratio is not None]
    above, below = all(lo > 1 for lo, _ in known), all(hi < 1 for _, hi in known)
    return len(known) == len(over) and (above or below)


def _shown_apart(first: RooflineCurve, second: RooflineCurve) -> bool:
    """Whether two starving points are decided and their single intervals do not touch, so both are worth showing."""
    if not (first.decided and second.decided):
        return False
    first_point, second_point = first.starving, second.starving
    return (first_point.hi or 0.0) < (second_point.lo or 0.0) or (second_point.hi or 0.0) < (
        first_point.lo or 0.0
    )


def _on_this_machine(lead: Roofline) -> str:
    """Return words for the backends that feed the networks trained here: those on a GPU, or else the slowest on the CPU."""
    on_gpu = [trained for trained in lead.trained if trained.cell.cell.device != "cpu"]
    return "".join(_fed_words(lead, trained) for trained in on_gpu or lead.trained[:1])


def _fed_words(lead: Roofline, trained: Trained) -> str:
    """Return words for the backends that feed a network that was trained here."""
    curves = lead.decided
    named = f"{device_words(trained.cell)} ({network_name(trained.cell)} at {with_interval(trained.rate)} images/s)"
    prep_s = more_prep_s(trained, lead)
    feedings = [(curve, feeding_of(curve, trained, prep_s)) for curve in curves]
    if all(feeding is Feeding.FEEDS for _, feeding in feedings):
        alone = agreed(curves[0].loader, "it keeps", "they keep")
        each = "each of them keeps" if len(curves) > 1 else alone
        return f"; {each} {named} busy at least 90% of its time"
    return f"; {named} is {', '.join(_feeding_parts(feedings))}"


def _feeding_parts(feedings: Sequence[tuple[RooflineCurve, Feeding]]) -> list[str]:
    names: dict[Feeding, list[str]] = {}
    for curve, feeding in feedings:
        names.setdefault(feeding, []).append(backend_label(curve.backend))
    words = {
        Feeding.FEEDS: "kept busy at least 90% of its time by {}",
        Feeding.STARVES: "starved by {}",
        Feeding.UNDECIDED: "undecided for {}",
    }
    return [text.format(listed(names[kind])) for kind, text in words.items() if kind in names]


def _deciding_sentence(lead: Roofline, others: Sequence[Roofline]) -> str:
    """Return the conditions that are proven to decide the starving points: memory, read-ahead, decoding; "" if none."""
    settings = [
        condition
        for condition in (_memory(lead, others), _readahead(lead, others), _decoding(lead))
        if condition is not None
    ]
    return f"These figures depend on {listed(settings)}." if settings else ""


def _memory(lead: Roofline, others: Sequence[Roofline]) -> str | None:
    warm = next(
        (
            roofline
            for roofline in others
            if roofline.first.cell.cache == CacheState.WARM and _alike(lead, roofline, _WARM_FREE)
        ),
        None,
    )
    if warm is None or lead.first.cell.cache == CacheState.WARM:
        return None
    gains = [
        (fast.starving.mid / slow.starving.mid, fast)
        for slow in lead.decided
        if (fast := warm.curve(slow.backend)) is not None
        if _apart(slow, fast) and fast.starving.mid > slow.starving.mid
    ]
    if not gains:
        return None
    _, curve = max(gains, key=lambda pair: pair[0])
    what = "whether the store fits into memory" if _is_limited(lead) else "whether the store is in memory"
    return f"{what} ({backend_label(curve.backend)} in memory: up to {_with_unit(curve, '')})"


def _is_limited(roofline: Roofline) -> bool:
    return roofline.first.cell.cache == CacheState.LIMITED


def _readahead(lead: Roofline, others: Sequence[Roofline]) -> str | None:
    names = [
        backend_label(curve.backend)
        for curve in lead.decided
        if any(
            (other := roofline.curve(curve.backend)) is not None and _apart(curve, other)
            for roofline in _of_other_readahead(lead, others)
        )
    ]
    return f"the disk's read-ahead ({listed(names)})" if names else None


def _decoding(lead: Roofline) -> str | None:
    supplied = [curve for curve in lead.decided if not is_handed(curve)]
    shares = [(share, curve) for curve in supplied if (share := _decode_share(curve.loader)) is not None]
    if not shares:
        return None
    words = [
        f"{percent(share)} of the producers' work with {backend_label(curve.backend)}"
        for share, curve in shares
    ]
    return f"decoding ({listed(words)})"


def _decode_share(cell: CellSummary) -> float | None:
    """Return the share of decoding in the producers' work where it is most of it in every replicate; None elsewhere."""
    shares = list(cell.work_share("decode_s").values())
    if len(shares) < stats.MIN_ROUNDS or min(shares) <= _MOSTLY:
        return None
    return stats.median(shares)
