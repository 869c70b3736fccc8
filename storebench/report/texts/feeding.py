"""Whether a backend feeds an accelerator, in words."""

import math

from storebench import stats
from storebench.matrix import MODEL_CROPS
from storebench.report.roofline import Roofline
from storebench.report.roofline_curve import Feeding, RooflineCurve
from storebench.report.roofline_model import BUSY_FRAC
from storebench.report.texts.labels import percent, times, with_interval
from storebench.report.trained import Trained


def feeding_of(curve: RooflineCurve, trained: Trained, prep_s: float | None) -> Feeding:
    """Return the verdict on whether a backend keeps a network busy that was trained on this machine.

    Parameters
    ----------
    prep_s
        Additional seconds per sample of producers, beyond those in the measured curve; None if unknown. Then only starving
        can be proven.
    """
    if not curve.certain:
        return Feeding.UNDECIDED
    as_measured = curve.furthest.over(trained.rounds)
    if as_measured is not None and (as_measured.hi or math.inf) < 1:
        return Feeding.STARVES
    prepared = None if prep_s is None or curve.at_most else curve.over(trained.rounds, prep_s)
    fed = prepared is not None and (prepared.lo or 0.0) >= 1 and _waited(curve, trained) is None
    return Feeding.FEEDS if fed else Feeding.UNDECIDED


def _waited(curve: RooflineCurve, trained: Trained) -> float | None:
    """Return for how much of its time a network was busy beside this very store, if that is too little; None otherwise."""
    network, device = trained.cell.cell.model, trained.cell.cell.device
    shares = [
        point.delivered.mid / trained.rate.mid
        for point in curve.points
        if not point.emulated and (point.cell.cell.model, point.cell.cell.device) == (network, device)
    ]
    return min((share for share in shares if share < BUSY_FRAC), default=None)


_ALONE = "its handoff was measured with nothing to compute"
"""The reason where a handoff that may be shorter beside an accelerator is all that would starve it."""

_YES_OR_NO = {Feeding.FEEDS: "yes", Feeding.STARVES: "no"}


def feeding_words(curve: RooflineCurve, rate: float) -> str:
    """Return whether a backend feeds an accelerator of a rate in images/s; if undecided, with the interval or the reason."""
    feeding = curve.feeding(rate)
    alone = _ALONE if curve.handed_alone and (curve.sure.hi or math.inf) < rate else ""
    return _YES_OR_NO.get(feeding) or f"cannot be told: {_doubt(curve) or alone or with_interval(curve.sure)}"


def trained_words(curve: RooflineCurve, trained: Trained, prep_s: float | None) -> str:
    """Return whether a backend feeds a network that was trained here; if undecided, with the interval or the reason.

    The interval is that of the starving point over the network's rate; see `feeding_of` for `prep_s`.
    """
    feeding = feeding_of(curve, trained, prep_s)
    if feeding is not Feeding.UNDECIDED:
        return _YES_OR_NO[feeding]
    return f"cannot be told: {_doubt(curve) or _open(curve, trained, prep_s)}"


def _open(curve: RooflineCurve, trained: Trained, prep_s: float | None) -> str:
    """Return why a starving point without a doubt decides nothing about a network, or the interval that does not."""
    if (busy := _waited(curve, trained)) is not None:
        return f"it was busy {percent(busy)} of its time there"
    if prep_s is None:
        return "its augmentation was not measured"
    as_measured = curve.over(trained.rounds)
    if curve.handed_alone and as_measured is not None and (as_measured.hi or math.inf) < 1:
        return _ALONE
    over = curve.over(trained.rounds, prep_s)
    return "no interval" if over is None else f"{times(over)} its rate"


def _doubt(curve: RooflineCurve) -> str:
    """Return why the interval of a starving point proves nothing or too little; "" if its width is the reason."""
    if curve.sure.n < stats.MIN_ROUNDS or curve.sure.lo is None:
        return f"fewer than {stats.MIN_ROUNDS} rounds"
    if curve.loader.unsteady:
        return "not steady"
    if curve.loader.cold_start:
        return "a cold start"
    return "only an upper bound" if curve.at_most else ""


def more_prep_s(network: Trained, roofline: Roofline) -> float | None:
    """Return the seconds per sample of a network's augmentation that a roofline lacks; None if unknown."""
    model = network.cell.cell.model
    return 0.0 if model not in MODEL_CROPS or roofline.first.cell.model == model else network.prep_s
