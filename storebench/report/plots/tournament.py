"""The games of tournaments: the score of each trainer over the steps, and the network that it continued with."""

import functools
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.style import companion, legend_below, new_axes, styled, title
from storebench.report.states import EpochRow
from storebench.report.texts.labels import common_setting
from storebench.report.texts.tournaments import contest, games_of, tournament_answer
from storebench.results import Game

QUESTION = "Do tournaments make the best trainer better?"

_NOTE = "Below: the network that each trainer continued with, by colour; large marks: its partner's network"
_COLOURS = ("#332288", "#88CCEE", "#44AA99", "#999933", "#CC6677", "#882255", "#DDCC77", "#117733")
"""Paul Tol's muted palette, for trainers."""

_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
_POINTS = 100.0


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if trainers played games."""
    tournaments = contest(selection.facts)
    rows = [row for cell in tournaments.cells for row in cell.usable if games_of(row)] if tournaments else []
    if tournaments is None or not rows:
        return
    first = [row for row in rows if _replicate(row) == _replicate(rows[0])]
    note = f"{common_setting(tournaments.cells[:1])}, seed {rows[0]['seed']}"
    yield Plot(
        name="tournament",
        question=QUESTION,
        answer=tournament_answer(tournaments),
        draw=functools.partial(plot_tournament, first, note),
    )


def plot_tournament(rows: Sequence[EpochRow], note: str = "", *, ax: Axes | None = None) -> Axes:
    """Draw the score of each trainer at each game, and below it the network that the trainer continued with.

    Parameters
    ----------
    rows
        The records of one replicate with games, one per epoch, in order.
    note
        The conditions of the measurement.
    ax
        Axes to draw on; None makes a new figure. Only a new figure has axes for the winners.
    """
    games = [(_steps_before(rows, row) + game.step, game) for row in rows for game in games_of(row)]
    trainers = sorted({game.trainer for _, game in games})
    with styled():
        ax, below = companion(new_axes(4.8, ax), own=ax is None)
        for trainer in trainers:
            mine = [(step, game) for step, game in games if game.trainer == trainer]
            ax.plot(
                [step for step, _ in mine],
                [_POINTS * game.own_score for _, game in mine],
                color=_colour(trainer),
                marker=_MARKERS[trainer % len(_MARKERS)],
                markersize=4,
                linewidth=1.0,
                label=f"trainer {trainer}",
            )
        ax.set_ylabel("score on held-out samples (%)")
        (below or ax).set_xlabel("step")
        (below or ax).xaxis.set_major_locator(MaxNLocator(integer=True))
        if below is not None:
            _draw_winners(below, games, trainers)
        legend_below(ax)
        title(ax, QUESTION, ". ".join(part for part in (note, _NOTE) if part))
    return ax


def _draw_winners(ax: Axes, games: Sequence[tuple[int, Game]], trainers: Sequence[int]) -> None:
    """Draw one row per trainer with a mark per game in the colour of the winner; large marks are networks of partners."""
    for step, game in games:
        moved = game.winner != game.trainer
        ax.plot(
            step,
            game.trainer,
            marker=_MARKERS[game.winner % len(_MARKERS)],
            color=_colour(game.winner),
            markersize=8 if moved else 4,
            linestyle="none",
        )
    ax.set_yticks(trainers)
    ax.set_ylim(trainers[-1] + 0.6, trainers[0] - 0.6)
    ax.set_ylabel("trainer")


def _steps_before(rows: Sequence[EpochRow], row: EpochRow) -> int:
    """Return the number of steps in the epochs before a record's epoch."""
    return sum(int(earlier["steps"]) for earlier in rows if earlier["epoch"] < row["epoch"])


def _replicate(row: EpochRow) -> tuple[object, ...]:
    return row["cell_id"], row["replicate"], row["run_id"]


def _colour(trainer: int) -> str:
    return _COLOURS[trainer % len(_COLOURS)]
