"""The storage roofline: planted rates lie on its curves, and accelerators are fed or starve as the formula says."""

from pathlib import Path

import pytest

from storebench.analysis.frame import sourced
from storebench.analysis.limits import delivered, starving_above
from storebench.analysis.panels import panels
from storebench.analysis.roofline import (
    Curve,
    Feeding,
    Roofline,
    model_errors,
    point_keys,
    rooflines,
)
from storebench.analysis.summary import summarise
from storebench.record.schema import Record
from tests.support.planted_roofline import curve_records, loader_records, point_records

FIVE = (0.99, 1.0, 1.01, 1.0, 1.0)


def roofs_of(*records: Record) -> list[Roofline]:
    return rooflines(summarise(sourced((record, Path("run/records.jsonl")) for record in records)))


def curve_of(*records: Record) -> Curve:
    (roof,) = roofs_of(*records)
    (curve,) = roof.curves
    return curve


@pytest.mark.parametrize("overlap", [True, False])
def test_the_starving_point_is_where_an_accelerator_is_busy_nine_tenths(overlap: bool) -> None:
    for constant_s in (0.0, 1e-4):
        starving = starving_above(1000.0, constant_s, overlap=overlap)
        for times in (0.9, 1.2):
            rate = times * starving
            busy = delivered(rate, 1000.0, constant_s, overlap=overlap) / rate
            assert (busy >= 0.9) == (times < 1)
        assert overlap or delivered(starving, 1000.0, constant_s, overlap=False) == pytest.approx(
            0.9 * starving
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_points_on_the_curve_have_no_error(workers: int) -> None:
    curve = curve_of(*curve_records("lmdb", 1000.0, workers=workers, spread=FIVE))
    assert len(curve.points) == 5
    assert max(abs(point.error) for point in curve.points) < 0.02
    median, most = model_errors(curve.points) or (1.0, 1.0)
    assert median <= most < 0.02


def test_a_point_off_the_curve_has_its_error() -> None:
    records = loader_records("lmdb", 1000.0, workers=2, spread=FIVE)
    records += point_records("lmdb", 10.0, 500.0, workers=2, fetch_ms=64.0, spread=FIVE)
    (point,) = curve_of(*records).points
    assert point.error == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("spread", "rate", "feeding"),
    [
        (FIVE, 900.0, Feeding.FEEDS),
        (FIVE, 1300.0, Feeding.STARVES),
        (FIVE, 1111.0, Feeding.UNDECIDED),
        (FIVE[:4], 100.0, Feeding.UNDECIDED),
        ((0.4, 1.0, 2.0, 1.0, 1.0), 1300.0, Feeding.UNDECIDED),
    ],
)
def test_an_accelerator_is_fed_starves_or_cannot_be_told(
    spread: tuple[float, ...], rate: float, feeding: Feeding
) -> None:
    assert curve_of(*loader_records("lmdb", 1000.0, workers=2, spread=spread)).feeding(rate) is feeding


def test_a_cold_start_decides_nothing() -> None:
    curve = curve_of(*loader_records("lmdb", 1000.0, workers=2, spread=FIVE, cache="cold"))
    assert curve.feeding(1.0) is Feeding.UNDECIDED


def test_the_roofline_that_speaks_first_is_chosen_by_settings() -> None:
    records = [
        *loader_records("lmdb", 1000.0, workers=2, spread=FIVE),
        *loader_records("png", 100.0, workers=2, spread=FIVE),
        *loader_records("png", 90.0, workers=0, spread=FIVE),
        *loader_records("lmdb", 900.0, workers=0, spread=FIVE),
        *loader_records("lmdb", 9000.0, workers=2, cache="cold", spread=FIVE),
    ]
    roofs = roofs_of(*records)
    assert [(r.first.cell.workers, r.first.cell.cache, len(r.curves)) for r in roofs] == [
        (2, "warm", 2),
        (2, "cold", 1),
        (0, "warm", 2),
    ]
    assert [curve.backend for curve in roofs[0].curves] == ["png", "lmdb"]


def test_emulated_speeds_are_points_and_no_panels_of_their_own() -> None:
    records = curve_records("lmdb", 1000.0, spread=FIVE)
    cells = summarise(sourced((record, Path("run/records.jsonl")) for record in records))
    keys = point_keys(rooflines(cells), panels(cells))
    assert keys == {cell.key for cell in cells if cell.cell.compute.milliseconds}
