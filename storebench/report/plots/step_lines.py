"""Lines of single steps, for the plots that draw them."""

from collections.abc import Iterator

import pandas as pd

from storebench.plain_text import plain
from storebench.report.cells import backend_rank
from storebench.report.plots.looks import told_apart
from storebench.report.plots.style import BackendStyle, backend_look
from storebench.report.texts.labels import backend_label

MOST_POINTS = 2000
"""Points drawn per line: more cannot be seen and make the file large."""


def step_lines(steps: pd.DataFrame) -> Iterator[tuple[str, BackendStyle, pd.DataFrame]]:
    """Yield (label, look, steps) for the first replicate and epoch of each cell; of a job, the steps of its rank 0.

    The looks are told apart.
    """
    several = len(steps["cache"].unique()) > 1
    groups = [group for _, group in steps.groupby("cell_id", sort=False)]
    groups = sorted(groups, key=lambda group: backend_rank(group["backend"].iloc[0]))
    firsts = [group.iloc[0] for group in groups]
    looks = told_apart([backend_look(first["backend"], first["format"], first["codec"]) for first in firsts])
    for group, first, style in zip(groups, firsts, looks, strict=True):
        epoch = group[
            (group["replicate"] == first["replicate"])
            & (group["epoch"] == first["epoch"])
            & (group["run_id"] == first["run_id"])
        ]
        ranks = len(epoch["rank"].dropna().unique()) if "rank" in epoch else 0
        epoch = epoch[epoch["rank"] == 0] if ranks else epoch
        label = backend_label(first["backend"]) + (f", {plain(first['cache'])}" if several else "")
        label += ", rank 0" if ranks else ""
        yield label, style, epoch


def some_points(count: int) -> int:
    """Return the distance of marked points on a line of `count` points, so that it has about a dozen markers."""
    return max(1, count // 12)
