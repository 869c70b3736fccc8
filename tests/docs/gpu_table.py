"""The tables of docs/gpu.md, from the reference runs on a GPU; ``make figures`` prints them."""

from collections.abc import Callable, Iterator

import pandas as pd
from storebench.report.roofline_curve import Point, curve_of
from storebench.report.roofline_errors import ERROR_LIMIT, first_share, handing_s
from storebench.report.texts.labels import backend_label, network_name, number, percent, with_interval
from storebench.report.texts.roofline import error_words, explanation_words

import storebench
from storebench.report.cells import CellSummary, summarise
from storebench.report.roofline import error_summary, rooflines
from storebench.settings.words import CacheState
from tests.docs.doc_files import ROOT

BUSY_MOST_WAIT = 0.1
"""A store keeps up with a network that waits less than this."""

RUNS = ("gpu", "gpu-small")


def gpu_results(*, cold: bool = True) -> pd.DataFrame:
    """Return the results of the reference runs on a GPU; without cold cells, those in memory."""
    found = pd.concat([storebench.load_results(ROOT / "results" / "reference" / run) for run in RUNS])
    return found if cold else found[found.cache != str(CacheState.COLD)]


def gpu_lines() -> Iterator[str]:
    """Yield the rows of both tables, and the errors of the model in a sentence."""
    cells = summarise(gpu_results())
    points = [
        (state, point) for state in (CacheState.WARM, CacheState.COLD) for point in _points(cells, state)
    ]
    for state, point in points:
        yield _point_row(state, point)
    for state in (CacheState.WARM, CacheState.COLD):
        errors = error_summary([point for of, point in points if of is state])
        if errors is not None:
            yield f"{state}: {error_words(errors)}"
    errors = error_summary(_with_own_handoff(cells))
    if errors is not None:
        yield f"with the handoff of cells that only load: {percent(errors.median)} at the median, {percent(errors.most)} at most"
    yield from _handoff_lines(cells)
    alone = {cell.cell.model: cell for cell in cells if cell.is_null}
    for cell in cells:
        if (
            not cell.is_null
            and cell.cell.model in ("lenet", "cifar10_quick")
            and cell.cell.cache == CacheState.WARM
        ):
            yield _small_row(cell, alone[cell.cell.model])


def _points(cells: list[CellSummary], state: CacheState) -> list[Point]:
    found = [one for one in rooflines(cells) if one.first.cell.cache == state]
    points = [point for one in found for point in one.points]
    return sorted(points, key=lambda point: network_name(point.cell), reverse=True)


def _handoff_lines(cells: list[CellSummary]) -> Iterator[str]:
    """Yield what hands a batch over beside the GPU and alone, how long ResNet-50 would wait with the latter, and first batches."""
    for roofline in rooflines(cells):
        loaders = [curve.loader for curve in roofline.curves]
        if roofline.first.cell.cache == CacheState.COLD:
            yield f"of the cold epochs that only load, the first batch is {_range([first_share(one) or 0 for one in loaders], percent)}"
            continue
        keeping = [
            point.cell for point in roofline.points if point.cell.median("data_wait_frac") < BUSY_MOST_WAIT
        ]
        for name, some in (("beside the GPU", keeping), ("with nothing to compute", loaders)):
            yield f"handoff in memory, {name}: {_range([1e6 * handing_s(one) for one in some], '{:.0f}'.format)} µs per image"
        alone = [curve_of(curve.loader, [], []) for curve in roofline.curves]
        rate = next(one.rate.mid for one in roofline.trained if one.cell.cell.model == "resnet50")
        waits = [1 - curve.model.delivered(rate) / rate for curve in alone]
        yield f"with the latter, ResNet-50 would wait {_range(waits, percent)} of its time"


def _range(values: list[float], shown: Callable[[float], str]) -> str:
    return f"{shown(min(values))} to {shown(max(values))}"


def _with_own_handoff(cells: list[CellSummary]) -> list[Point]:
    """Return the points in memory if each curve had the handoff of its own loader, which never waited."""
    found: list[Point] = []
    for roofline in rooflines(cells):
        if roofline.first.cell.cache == CacheState.WARM:
            for curve in roofline.curves:
                found += curve_of(curve.loader, [point.cell for point in curve.points], []).points
    return found


def _point_row(state: CacheState, point: Point) -> str:
    why = explanation_words(point.explanation) if abs(point.error) > ERROR_LIMIT else ""
    wait = percent(point.cell.median("data_wait_frac") or 0.0)
    fields = (
        state,
        network_name(point.cell),
        backend_label(point.cell.backend),
        with_interval(point.delivered),
        wait,
        number(point.predicted),
        percent(point.error),
        why,
    )
    return f"| {' | '.join(fields)} |"


def _small_row(cell: CellSummary, alone: CellSummary) -> str:
    rate, most = cell.interval("samples_per_s"), alone.interval("samples_per_s")
    assert rate is not None
    assert most is not None
    wait = percent(cell.median("data_wait_frac") or 0.0)
    fields = (network_name(cell), backend_label(cell.backend), with_interval(rate), wait, with_interval(most))
    return f"| {' | '.join(fields)} |"
