"""The plots that a report makes of a dataset, in the order of the page.

A plot is a module in `storebench.report.plots` with its question, its answer and its drawing, and a line here.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from storebench.accelerators import Accelerator
from storebench.report.facts import Facts
from storebench.report.plots import (
    amplification,
    cold_curve,
    container_codec,
    ladder,
    left_out,
    loss,
    overlap,
    rank_steps,
    ranks,
    roofline,
    size,
    steady_state,
    step_time,
    throughput,
    tournament,
    wait_distribution,
    wait_over_epoch,
    workers,
)
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.texts.labels import file_name

PLOTS: tuple[Callable[[Selection], Iterator[Plot]], ...] = (
    roofline.drawn,
    tournament.drawn,
    throughput.drawn,
    step_time.drawn,
    container_codec.drawn,
    ladder.drawn,
    workers.drawn,
    ranks.drawn,
    rank_steps.drawn,
    overlap.drawn,
    amplification.drawn,
    size.drawn,
    cold_curve.drawn,
    steady_state.drawn,
    wait_over_epoch.drawn,
    wait_distribution.drawn,
    loss.drawn,
)
"""Each yields its plots, or none if the dataset's results are not sufficient; the first one leads the page."""


def plots(facts: Facts, slug: str, accelerators: Sequence[Accelerator] = ()) -> list[Plot]:
    """Return every plot that the facts of one dataset can make, the most telling one first; none is drawn yet.

    Parameters
    ----------
    facts
        The facts of all cells of one dataset on one machine.
    slug
        End of the name of every file: the dataset.
    accelerators
        Named accelerators that the storage roofline marks.
    """
    selection = Selection(facts=facts, accelerators=tuple(accelerators))
    drawn = (plot for draw in PLOTS for plot in draw(selection))
    return [dataclasses.replace(plot, name=f"{file_name(plot.name)}-{slug}") for plot in drawn]


def not_drawn(facts: Facts) -> list[str]:
    """Return a sentence for each plot that the facts of one dataset cannot carry: why, and what would make it."""
    return list(left_out.left_out(Selection(facts=facts)))
