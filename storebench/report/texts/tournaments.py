"""Trainers with tournaments beside the same trainers without: the gain of the games, and their cost."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, key_without
from storebench.report.facts import Facts
from storebench.report.intervals import Estimate, mean_interval
from storebench.report.states import EpochRow
from storebench.report.texts.caveats import caveats
from storebench.report.texts.labels import dataset_label, percent, size
from storebench.report.texts.sentence import Sentence
from storebench.results import Game, TrainersFacts
from storebench.units import number_of

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
    """Return the test accuracy of the best trainer after the last epoch, in percent; the mean over replicates.

    None if no replicate reached that epoch: a shorter training is not comparable.
    """
    last = cell.cell.epochs - 1
    accuracies = [row["test_accuracy"] for row in cell.usable if row["epoch"] == last]
    known = [float(accuracy) for accuracy in accuracies if accuracy is not None]
    return _POINTS * statistics.fmean(known) if known else None


def games_of(row: EpochRow) -> tuple[Game, ...]:
    """Return the sides of games in a record, in order."""
    facts = row["job_trainers"]
    return facts.games if isinstance(facts, TrainersFacts) else ()


def tournament_answer(tournaments: Contest) -> str:
    """Return a sentence on the change of the best trainer's test accuracy by tournaments, over the same seeds."""
    if not tournaments.gains:
        return "Unknown: the same trainers were not measured without tournaments."
    change = f"tournaments change the test accuracy of the best trainer by {_change(tournaments)}."
    gain = tournaments.gain
    if gain.lo is None or gain.hi is None:
        return f"One seed is not enough: with it, {change}"
    answer = "Yes" if gain.lo > 0 else "No, worse" if gain.hi < 0 else "Not shown"
    return f"{answer}: {change}"


def _change(tournaments: Contest) -> str:
    """Return the change of the best trainer's test accuracy with its interval, the number of seeds and both accuracies."""
    gain = tournaments.gain
    figures = f"{tournaments.with_games:.2f}% with, {tournaments.without:.2f}% without"
    if gain.lo is None or gain.hi is None:
        return f"{gain.mid:+.2f} percentage points ({figures})"
    above = "" if gain.lo > 0 or gain.hi < 0 else ", which is not above 0"
    return (
        f"{gain.mid:+.2f} percentage points [{gain.lo:+.2f}, {gain.hi:+.2f}]{above}"
        f" ({number_of(len(tournaments.gains), 'seed')}, paired, a single interval; {figures})"
    )


def tournament_sentences(facts: Facts) -> list[Sentence]:
    """Return sentences on the gain of tournaments and on their cost; none if no games were played."""
    tournaments = contest(facts)
    rows = [row for cell in tournaments.cells for row in cell.usable if games_of(row)] if tournaments else []
    if tournaments is None or not rows:
        return []
    first = tournaments.cells[0]
    caveat = "".join(f" ({note})" for note in caveats(tournaments.cells))
    place = f"{dataset_label(first)}, {first.cell.trainers} trainers{caveat}"
    return [Sentence(text=f"{place}: {_finding(tournaments)}"), Sentence(text=_cost(rows))]


def _finding(tournaments: Contest) -> str:
    if not tournaments.gains:
        return "the same trainers were not measured without tournaments, so their gain is unknown."
    gain = tournaments.gain
    if gain.lo is not None and gain.lo > 0:
        told = "tournaments make the best trainer better"
    elif gain.hi is not None and gain.hi < 0:
        told = "tournaments make the best trainer worse"
    else:
        told = "tournaments are not shown to make the best trainer better"
    return f"{told}; they change its test accuracy by {_change(tournaments)}."


def _cost(rows: Sequence[EpochRow]) -> str:
    """Return a sentence on the samples, messages and time of games, over all epochs that had some."""
    facts = [row["job_trainers"] for row in rows]
    known = [trainers for trainers in facts if isinstance(trainers, TrainersFacts)]
    read = sum(trainers.tournament_samples for trainers in known)
    trained = sum(int(row["samples"]) for row in rows)
    sent = statistics.fmean(game.sent_bytes for trainers in known for game in trainers.games)
    paused_s = sum(trainers.tournament_s for trainers in known)
    share = percent(paused_s / (paused_s + sum(float(row["epoch_s"]) for row in rows)))
    return (
        f"Games read {read / max(1, trained):.2f} held-out samples per training sample, send {size(round(sent))} per trainer"
        f" and game, and take {share} of the time of training and games together."
    )
