"""A plot with its words, as the page shows it."""

import functools
from dataclasses import dataclass

from matplotlib.axes import Axes

from storebench.report.plots.style import svg_bytes


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot with its words.

    Attributes
    ----------
    name
        Stem of its files.
    question, answer
        The plot's title, and what it shows, in one sentence.
    ax
        The axes that it was drawn into.
    """

    name: str
    question: str
    answer: str
    ax: Axes

    @functools.cached_property
    def svg(self) -> bytes:
        """The plot as SVG."""
        return svg_bytes(self.ax)
