"""Reports without pictures, for tests of their texts: drawing takes most of the time of a report."""

import pytest

from storebench.report.plots.plot import Plot

NO_SVG = b'<svg xmlns="http://www.w3.org/2000/svg"></svg>'


@pytest.fixture
def without_bitmaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the PNG files of plots hold no picture."""
    monkeypatch.setattr("storebench.report.build.png_bytes", lambda _ax: b"\x89PNG")


@pytest.fixture
def without_pictures(without_bitmaps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty files for plots."""
    monkeypatch.setattr(Plot, "ax", None)
    monkeypatch.setattr(Plot, "words", "")
    monkeypatch.setattr(Plot, "svg", NO_SVG)
