"""Figures as people read them: significant digits, and one precision for a figure and its interval."""

import pytest

from storebench.report.intervals import Interval
from storebench.report.texts.labels import between, number, with_interval


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.997, 2, "1.0"),
        (1.004, 2, "1.0"),
        (0.994, 2, "0.99"),
        (9.996, 3, "10.0"),
        (1234.0, 3, "1,230"),
        (0.0123, 3, "0.0123"),
        (0.00001234, 3, "1.23e-05"),
        (-2.5, 3, "-2.50"),
        (0.0, 3, "0"),
    ],
)
def test_significant_digits_hold_where_rounding_adds_a_place(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.997, 0.96, 1.04), "1.00 [0.96, 1.04]"),
        ((3.0, 2.9, 3.1), "3.0 [2.9, 3.1]"),
        ((0.98, 0.957, 1.04), "0.98 [0.96, 1.04]"),
        ((3.1, 0.93, 12.34), "3.10 [0.93, 12.34]"),
        ((1.5, 0.002, 900.0), "1.50 [0.0020, 900.00]"),
    ],
)
def test_a_figure_and_its_interval_have_the_same_decimals(
    ends: tuple[float, float, float], text: str
) -> None:
    assert "".join(between(*ends, digits=2)) == text


def test_rates_keep_their_significant_digits() -> None:
    assert with_interval(Interval(mid=1234.0, lo=987.6, hi=1500.0, n=3)) == "1,230 [988, 1,500]"
    assert with_interval(Interval(mid=2.5)) == "2.50"
