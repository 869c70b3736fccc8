"""One rank's part in the trainers of a job, and the joined facts about trainers and tournaments."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storebench.ranks.trainers import Trainer
from storebench.results import Game, TrainerFacts, TrainersFacts
from storebench.worker.setup import Setup
from storebench.worker.tournament import Played


@dataclass(frozen=True, kw_only=True)
class TrainerPart:
    """One rank's part in an epoch of its trainer."""

    trainer: Trainer
    facts: TrainerFacts
    played: Played


def trainer_part(
    setup: Setup, played: Played, held_out_score: float | None, test_accuracy: float | None
) -> TrainerPart | None:
    """Return this rank's part in an epoch of its trainer; None if all ranks train one network."""
    if not setup.parts:
        return None
    part = setup.parts[setup.trainer.number]
    facts = TrainerFacts(
        training_samples=len(part.training),
        held_out_samples=len(part.held_out),
        held_out_score=held_out_score,
        test_accuracy=test_accuracy,
    )
    return TrainerPart(trainer=setup.trainer, facts=facts, played=played)


def trainers_facts(parts: Sequence[TrainerPart]) -> TrainersFacts:
    """Return the facts about the trainers of a job in an epoch."""
    played = [part.played for part in parts]
    read_bytes = [
        tournaments.device_read_bytes for tournaments in played if tournaments.device_read_bytes is not None
    ]
    leading = [part.facts for part in parts if part.trainer.leads]
    by_rank = [tournaments.tournament_s for tournaments in played]
    return TrainersFacts(
        per_trainer=tuple(leading),
        best_trainer=best_trainer(leading),
        tournaments=len(played[0].tournament_s),
        games=tuple(_games(parts)),
        tournament_s=math.fsum(max(seconds) for seconds in zip(*by_rank, strict=True)),
        tournament_wait_s=statistics.fmean(tournaments.wait_s for tournaments in played),
        tournament_samples=sum(tournaments.samples for tournaments in played),
        tournament_device_read_bytes=sum(read_bytes) if len(read_bytes) == len(played) else None,
    )


def best_trainer(trainers: Sequence[TrainerFacts]) -> int | None:
    """Return the number of the trainer with the highest held-out score, the first one in a tie."""
    scores = [trainer.held_out_score for trainer in trainers]
    known = [score for score in scores if score is not None]
    return scores.index(max(known)) if known and len(known) == len(scores) else None


def _games(parts: Sequence[TrainerPart]) -> Iterator[Game]:
    """Yield every side of every game, with the seconds of the slowest rank, by tournament and trainer."""
    sides = [game for part in parts for game in part.played.games]
    sides.sort(key=lambda game: (game.number, game.trainer))
    for _, game_sides in itertools.groupby(sides, key=lambda game: (game.number, game.trainer)):
        of_ranks = list(game_sides)
        yield dataclasses.replace(of_ranks[0], seconds=max(game.seconds for game in of_ranks))
