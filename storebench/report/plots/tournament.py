"""The games of tournaments: the score of each trainer over the steps, and the network that it continued with."""

import functools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from storebench.report.cells import CellSummary, key_without
from storebench.report.facts import Facts
from storebench.report.intervals import Estimate, mean_interval
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.style import companion, legend_below, new_axes, styled, title
from storebench.report.states import EpochRow
from storebench.report.texts.labels import common_setting
from storebench.results import Game, TrainersFacts
from storebench.units import number_of

QUESTION = "Do tournaments make the best trainer better?"

_NOTE = "Below: the network that each trainer continued with, by colour; large marks: its partner's network"
_COLOURS = ("#332288", "#88CCEE", "#44AA99", "#999933", "#CC6677", "#882255", "#DDCC77", "#117733")
"""Paul Tol's muted palette, for trainers."""

_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
_POINTS = 100.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """Trainers with tournaments, and the same trainers without, for one or several seeds.

    Attributes
    ----------
    cells
        The cells with tournaments, one per seed.
    gains
        Per seed with both measurements: the test accuracy of the best trainer with tournaments less that without, in
        percentage points.
    with_games, without
        The mean accuracies of these seeds, in percent.
    """

    cells: tuple[CellSummary, ...]
    gains: tuple[float, ...]
    with_games: float
    without: float

    @property
    def gain(self) -> Estimate:
        """The mean of the gains with its interval."""
        return mean_interval(self.gains)


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


def contest(facts: Facts) -> Contest | None:
    """Return the contest with most seeds; None without tournaments."""
    groups: dict[object, list[CellSummary]] = {}
    for cell in facts.cells:
        if cell.cell.tournament_steps and cell.usable:
            groups.setdefault(key_without(cell, "seed"), []).append(cell)
    contests = [_contest(cells, facts) for cells in groups.values()]
    return max(contests, key=lambda candidate: len(candidate.gains), default=None)


def _contest(cells: Sequence[CellSummary], facts: Facts) -> Contest:
    controls = {
        _control_key(cell): cell for cell in facts.cells if not cell.cell.tournament_steps and cell.usable
    }
    pairs = [
        (own, other)
        for cell in cells
        if (control := controls.get(_control_key(cell))) is not None
        and (own := _accuracy(cell)) is not None
        and (other := _accuracy(control)) is not None
    ]
    return Contest(
        cells=tuple(cells),
        gains=tuple(own - other for own, other in pairs),
        with_games=statistics.fmean(own for own, _ in pairs) if pairs else 0.0,
        without=statistics.fmean(other for _, other in pairs) if pairs else 0.0,
    )


def _control_key(cell: CellSummary) -> object:
    return key_without(cell, "tournament_steps")


def _accuracy(cell: CellSummary) -> float | None:
    """Return the test accuracy of the best trainer after the last epoch, in percent; the mean over replicates."""
    last = max((row["epoch"] for row in cell.usable), default=0)
    accuracies = [row["test_accuracy"] for row in cell.usable if row["epoch"] == last]
    known = [float(accuracy) for accuracy in accuracies if accuracy is not None]
    return _POINTS * statistics.fmean(known) if known else None


def tournament_answer(tournaments: Contest) -> str:
    """Return a sentence on the change of the best trainer's test accuracy by tournaments, over the same seeds."""
    if not tournaments.gains:
        return "Unknown: the same trainers were not measured without tournaments."
    gain, seeds = tournaments.gain, number_of(len(tournaments.gains), "seed")
    figures = f"{tournaments.with_games:.2f}% with, {tournaments.without:.2f}% without"
    if gain.lo is None or gain.hi is None:
        return (
            f"One seed is not enough: with it, tournaments change the test accuracy of the best trainer by {gain.mid:+.2f}"
            f" percentage points ({figures})."
        )
    span = f"{gain.mid:+.2f} percentage points [{gain.lo:+.2f}, {gain.hi:+.2f}]"
    if gain.lo > 0:
        return f"Yes: tournaments change the test accuracy of the best trainer by {span} ({seeds}, paired, a single interval; {figures})."
    if gain.hi < 0:
        return f"No, worse: tournaments change the test accuracy of the best trainer by {span} ({seeds}, paired, a single interval; {figures})."
    return (
        f"Not shown: tournaments change the test accuracy of the best trainer by {span}, which is not above 0"
        f" ({seeds}, paired, a single interval; {figures})."
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


def games_of(row: EpochRow) -> tuple[Game, ...]:
    """Return the sides of games in a record, in order."""
    facts = row["job_trainers"]
    return facts.games if isinstance(facts, TrainersFacts) else ()


def _steps_before(rows: Sequence[EpochRow], row: EpochRow) -> int:
    """Return the number of steps in the epochs before a record's epoch."""
    return sum(int(earlier["steps"]) for earlier in rows if earlier["epoch"] < row["epoch"])


def _replicate(row: EpochRow) -> tuple[object, ...]:
    return row["cell_id"], row["replicate"], row["run_id"]


def _colour(trainer: int) -> str:
    return _COLOURS[trainer % len(_COLOURS)]
