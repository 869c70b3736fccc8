"""Tables of the storage roofline: the starving points of each setting, and its model compared with the measured points."""

from collections.abc import Sequence

from storebench.accelerators import Accelerator
from storebench.report.cells import CellSummary
from storebench.report.roofline import Roofline, error_summary
from storebench.report.roofline_curve import Point, RooflineCurve
from storebench.report.roofline_errors import ERROR_LIMIT
from storebench.report.roofline_model import BUSY_FRAC
from storebench.report.tables import Table, named
from storebench.report.texts.caveats import caveats
from storebench.report.texts.feeding import feeding_words, more_prep_s, trained_words
from storebench.report.texts.labels import (
    SIMULTANEOUS,
    SINGLE,
    backend_label,
    batch_words,
    dataset_label,
    duration,
    network_name,
    number,
    percent,
    with_interval,
)
from storebench.report.texts.roofline import (
    error_words,
    explanation_words,
    loader_words,
    starving_words,
    state_words,
    trained_label,
)

_STARVING_HEAD = (
    "cache", "workers", "loader", "batch_size", "memory_bytes", "readahead_kib", "backend",
    "supply_samples_per_s", "supply_samples_per_s_lo", "supply_samples_per_s_hi", "constant_s_per_sample",
    "starving_samples_per_s", "starving_samples_per_s_lo", "starving_samples_per_s_hi", "upper_bound", "decided",
    "cpu_s_per_sample", "cores_used", "replicates", "environment_key", "cell_id",
)  # fmt: skip
_POINT_HEAD = (
    "cache", "workers", "loader", "batch_size", "memory_bytes", "readahead_kib", "backend",
    "compute", "ingestion_samples_per_s", "delivered_samples_per_s", "delivered_samples_per_s_lo", "delivered_samples_per_s_hi",
    "predicted_samples_per_s", "error_frac", "cause", "cause_figure", "error_left_frac",
    "cpu_s_per_sample", "cores_used", "environment_key", "cell_id",
)  # fmt: skip

_USE_HEAD = ("CPU per sample", "cores")

_OVERLAP = "With workers the delivered rate is min(F, 1 / (1/G + c)), and the starving point is F / 0.9 unless c limits it."
_NO_OVERLAP = "Without workers it is 1 / (1/G + 1/F + c), and the starving point is 0.111 / (1/F + c)."
_TERMS = (
    "F is the supply rate, G the ingestion rate of the accelerator, and c the least time per image measured for handing a"
    " batch over and for the loop: with workers in any cell that has the same loader, without them in any cell of the backend."
    " Only c may come from a point, and only from one of three rounds or more."
)


_INTERVALS = (
    "Intervals of rates are single: each holds by itself. What a store feeds is decided by wider intervals, which hold simultaneously"
    " over the page. Where such an interval decides nothing, it is given: that of the point above which the accelerator starves."
)


def roofline_tables(rooflines: Sequence[Roofline], accelerators: Sequence[Accelerator] = ()) -> list[Table]:
    """Return the table of starving points of one dataset, and that of the model's errors where there are points.

    Parameters
    ----------
    rooflines
        Of one dataset on one machine.
    accelerators
        Named accelerators that get a column each.
    """
    if not rooflines:
        return []
    points = any(roofline.points for roofline in rooflines)
    tables = [starving_table(rooflines, accelerators)]
    return [*tables, error_table(rooflines)] if points else tables


def starving_table(rooflines: Sequence[Roofline], accelerators: Sequence[Accelerator] = ()) -> Table:
    """Return the supply rate and the starving point of every backend under every setting."""
    trained = rooflines[0].trained
    names = [f"{trained_label(network)}, {number(network.rate.mid)}/s" for network in trained]
    names += [f"{accelerator.title}, {number(accelerator.images_per_s)}/s" for accelerator in accelerators]
    listed = [(roofline, curve) for roofline in rooflines for curve in roofline.curves]
    loaders = [curve.loader for _, curve in listed]
    measured = f"{dataset_label(loaders[0])}, {batch_words(loaders)}"
    caption_sentences = [f"{measured}: the fastest accelerator that each store feeds", *caveats(loaders)]
    return Table(
        caption=". ".join(caption_sentences),
        head=(
            "setting",
            "backend",
            f"supplies, images/s [{SINGLE}]",
            *_USE_HEAD,
            f"starves above, images/s [{SINGLE}]",
            *(f"feeds {name} [{SIMULTANEOUS}]" for name in names),
        ),
        rows=tuple(
            (
                _setting(roofline),
                named(curve.loader),
                ("at most " if curve.at_most else "") + with_interval(curve.supply),
                *_use(curve.loader),
                starving_words(curve),
                *(trained_words(curve, network, more_prep_s(network, roofline)) for network in trained),
                *(feeding_words(curve, accelerator.images_per_s) for accelerator in accelerators),
            )
            for roofline, curve in listed
        ),
        raw_head=_STARVING_HEAD,
        raw=tuple(_raw_curve(roofline, curve) for roofline, curve in listed),
        marks=("",) * len(listed),
        notes=(
            f"An accelerator starves if it is busy less than {percent(BUSY_FRAC)} of its time. {_OVERLAP} {_NO_OVERLAP} {_TERMS}",
            _INTERVALS,
            "With fewer than three rounds nothing is decided.",
            *(
                f"{accelerator.title}: {number(accelerator.images_per_s)} images/s in training, {accelerator.precision}. {accelerator.source}, {accelerator.source.url}"
                if accelerator.source
                else f"{accelerator.title}: {number(accelerator.images_per_s)} images/s in training, as given."
                for accelerator in accelerators
            ),
        ),
    )


def error_table(rooflines: Sequence[Roofline]) -> Table:
    """Return every measured point with the model's prediction, its error, and what explains a large one."""
    listed = [
        (roofline, curve, point)
        for roofline in rooflines
        for curve in roofline.curves
        for point in curve.points
    ]
    errors = error_summary([point for _, _, point in listed])
    cells = [point.cell for _, _, point in listed]
    caption_sentences = [
        f"{dataset_label(cells[0])}: the model compared with measured points",
        *caveats(cells),
    ]
    return Table(
        caption=". ".join(caption_sentences),
        head=(
            "setting",
            "backend",
            "accelerator, images/s",
            "step",
            f"delivered, images/s [{SINGLE}]",
            *_USE_HEAD,
            "predicted",
            "error",
            "explanation",
        ),
        rows=tuple(
            (
                _setting(roofline),
                backend_label(curve.backend),
                number(point.ingestion.mid),
                _step(point),
                with_interval(point.delivered),
                *_use(point.cell),
                number(point.predicted),
                percent(point.error),
                explanation_words(point.explanation) if abs(point.error) > ERROR_LIMIT else "",
            )
            for roofline, curve, point in listed
        ),
        raw_head=_POINT_HEAD,
        raw=tuple(_raw_point(roofline, point) for roofline, _, point in listed),
        marks=tuple("unexplained" if point.unexplained else "" for _, _, point in listed),
        notes=(
            *([error_words(errors)] if errors else []),
            (
                "The error is (predicted - delivered) / delivered. The supply rate comes from cells that compute nothing, so the"
                f" points test the curve. An error above {percent(ERROR_LIMIT)} needs a cause that the point's own records show."
            ),
        ),
    )


def _step(point: Point) -> str:
    """Describe the step of a point: how long it sleeps, or which network it trains."""
    if point.emulated:
        return duration(point.cell.cell.compute.milliseconds / 1000)
    return f"trains {network_name(point.cell)}"


def _setting(roofline: Roofline) -> str:
    return f"{state_words(roofline)}, {loader_words(roofline)}" + (
        ", augmented" if roofline.augmented else ""
    )


def _use(cell: CellSummary) -> tuple[str, str]:
    """Return the processor time per sample and the cores used, in the order of `_USE_HEAD`."""
    seconds, cores = _raw_use(cell)
    return duration(seconds), number(cores, 2)


def _raw_use(cell: CellSummary) -> tuple[float | None, float | None]:
    return cell.median("whole_cpu_s_per_sample"), cell.median("whole_cores_used")


def _raw_setting(roofline: Roofline) -> tuple[object, ...]:
    cell = roofline.first.cell
    return cell.cache, cell.workers, cell.loader, cell.batch_size, cell.memory_bytes, cell.readahead_kib


def _raw_curve(roofline: Roofline, curve: RooflineCurve) -> tuple[object, ...]:
    supply, starving = curve.supply, curve.starving
    return (
        *_raw_setting(roofline),
        curve.backend,
        *(supply.mid, supply.lo, supply.hi, curve.constant_s),
        *(starving.mid, starving.lo, starving.hi, curve.at_most, curve.decided),
        *_raw_use(curve.loader),
        supply.n,
        curve.loader.environment_key,
        curve.loader.cell.cell_id,
    )


def _raw_point(roofline: Roofline, point: Point) -> tuple[object, ...]:
    why, delivered = point.explanation, point.delivered
    cause = (str(why.cause), why.figure, why.error) if why else (None, None, None)
    return (
        *_raw_setting(roofline),
        point.cell.backend,
        str(point.cell.cell.compute),
        point.ingestion.mid,
        *(delivered.mid, delivered.lo, delivered.hi),
        *(point.predicted, point.error),
        *cause,
        *_raw_use(point.cell),
        point.cell.environment_key,
        point.cell.cell.cell_id,
    )
