"""A plot with its words, as the page shows it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.text import Text

from storebench.report.claims import Claim
from storebench.report.plots.style import svg_bytes


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot with its words; it is drawn when it is asked for.

    Attributes
    ----------
    name
        Stem of its files.
    question, answer
        The plot's title, and what it shows, in one sentence.
    draw
        Returns the axes that it is drawn into.
    claims
        What the answer asserts.
    """

    name: str
    question: str
    answer: str
    draw: Callable[[], Axes]
    claims: tuple[Claim, ...] = ()

    @functools.cached_property
    def ax(self) -> Axes:
        """The axes that it was drawn into."""
        return self.draw()

    @functools.cached_property
    def words(self) -> str:
        """Everything that is written in it, in one line."""
        figure = self.ax.get_figure(root=True)
        texts = figure.findobj(Text) if figure is not None else []
        return " ".join(" ".join(text.get_text() for text in texts if isinstance(text, Text)).split())

    @functools.cached_property
    def svg(self) -> bytes:
        """The plot as SVG."""
        return svg_bytes(self.ax)
