"""The tables of docs/gpu.md, from the reference runs on a GPU; ``make figures`` prints them."""

from collections.abc import Iterator

import pandas as pd

import storebench
from storebench.report.cells import CellSummary, summarise
from storebench.report.roofline import error_summary, rooflines
from storebench.report.roofline_curve import Point, curve_of
from storebench.report.roofline_errors import ERROR_LIMIT
from storebench.report.texts.labels import backend_label, network_name, number, percent, with_interval
from storebench.report.texts.roofline import error_words, explanation_words
from storebench.settings.words import CacheState
from tests.docs.doc_files import ROOT

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
