"""Figures that are laid out without drawing them."""

import matplotlib.figure
from matplotlib.backend_bases import RendererBase
from matplotlib.layout_engine import ConstrainedLayoutEngine


class Figure(matplotlib.figure.Figure):  # a notebook prints the name of the class
    """A figure with constrained layout that takes less time to save, and is saved as the same bytes.

    To save a figure, matplotlib draws it twice: first with the layout engine and without output, then with output and
    without the engine. The first drawing is for the layout only, so nothing else is done in it.
    """

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure, or only lay it out if it is about to be saved."""
        engine = self.get_layout_engine()
        if self.canvas.is_saving() and isinstance(engine, ConstrainedLayoutEngine):
            engine.execute(self)
        else:
            super().draw(renderer)


def lay_out(figure: matplotlib.figure.Figure) -> None:
    """Put everything in a figure where it will be drawn, so that positions and sizes can be measured."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
    else:
        figure.draw_without_rendering()
