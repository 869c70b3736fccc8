"""Tournaments between the trainers of a job (LTFB), in the pauses after steps of an epoch; and who won."""

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from storebench.formats.base import Indices, Reader
from storebench.loading.proof import opened_again
from storebench.ranks.trainers import partner_of, tournaments_in
from storebench.record.schema import Game, TrainerFacts, TrainersFacts
from storebench.training.compute import CpuStep
from storebench.training.evaluate import count_right
from storebench.worker.setup import Setup
from storebench.worker.sharding import Sampling


@dataclass(kw_only=True)
class Played:
    """The tournaments of an epoch on one rank: games, times and samples that games read."""

    games: list[Game] = field(default_factory=list)
    tournament_s: list[float] = field(default_factory=list)
    wait_s: float = 0.0
    samples: int = 0


class HeldOut:
    """The held-out samples, on which a trainer scores networks. Each of its ranks reads a part of them."""

    def __init__(self, setup: Setup) -> None:
        trainer = setup.trainer
        held_out = setup.sampling.parts[trainer.number].held_out
        self._setup = setup
        self._reader: Reader | None = None
        self.samples, self.read = len(held_out), 0
        self.own: Indices = np.array_split(held_out, trainer.ranks)[trainer.rank]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def right(self, step: CpuStep) -> int:
        """Return the number of samples classified correctly. All ranks of the trainer call it together."""
        # It imports torch.distributed, which a single process does not need.
        from storebench.ranks.games import summed

        setup = self._setup
        if self._reader is None:
            self._reader = opened_again(setup.job.store, setup.cell.backend)
        right = count_right(step, setup.augment, self._reader, self.own, after_batch=setup.progress.batch)
        self.read = self._reader.asked_samples
        with setup.progress.waiting():
            return summed(right, setup.trainer, setup.trainer_group)


class Tournament:
    """The tournaments of one epoch, on one rank."""

    def __init__(self, setup: Setup, epoch: int) -> None:
        self._setup, self._epoch = setup, epoch
        every = setup.cell.tournament_steps if isinstance(setup.step, CpuStep) else 0
        steps = len(setup.sampling.global_sizes())
        # Step of the epoch -> the tournament after it.
        self.due = {
            (number + 1) * every - epoch * steps: number for number in tournaments_in(epoch, steps, every)
        }
        self._held_out = HeldOut(setup) if self.due else None
        self._steps = 0
        self.played = Played()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._held_out is not None:
            self._held_out.close()
            self.played.samples = self._held_out.read

    def __call__(self) -> bool:
        """Count a step, and play the tournament after it, if any; return True if there was one."""
        self._steps += 1
        number, step = self.due.get(self._steps), self._setup.step
        if number is None or self._held_out is None or not isinstance(step, CpuStep):
            return False
        setup = self._setup
        setup.progress.begin(f"tournament {number}")
        arrived = time.perf_counter()
        setup.group.barrier()
        begun = time.perf_counter()
        partner = partner_of(
            setup.trainer.number, number, trainers=setup.trainer.trainers, seed=setup.cell.seed
        )
        if partner is not None:
            self.played.games.append(self._game(number, partner, step, self._held_out))
        setup.group.barrier()
        self.played.tournament_s.append(time.perf_counter() - begun)
        self.played.wait_s += begun - arrived
        setup.progress.begin(f"epoch {self._epoch}")
        return True

    def _game(self, number: int, partner: int, step: CpuStep, held_out: HeldOut) -> Game:
        from storebench.ranks.games import exchanged, packed, unpack

        start = time.perf_counter()
        setup, trainer, state = self._setup, self._setup.trainer, step.state()
        score = held_out.right(step)
        mine = packed(state)
        with setup.progress.waiting():
            theirs = exchanged(mine, trainer.peer(partner))
        unpack(theirs, state)
        others = held_out.right(step)
        if others <= score:
            unpack(mine, state)
        return Game(
            number=number,
            step=self._steps,
            trainer=trainer.number,
            partner=partner,
            samples=held_out.samples,
            own_score=score / held_out.samples,
            partner_score=others / held_out.samples,
            winner=partner if others > score else trainer.number,
            sent_bytes=mine.nbytes * trainer.ranks,
            seconds=time.perf_counter() - start,
        )


def held_out_score(setup: Setup) -> float | None:
    """Return the share of a trainer's held-out samples that its network classifies correctly."""
    if setup.cell.trainers == 1 or not isinstance(setup.step, CpuStep) or setup.traits.ready_made:
        return None
    with contextlib.closing(HeldOut(setup)) as held_out:
        return held_out.right(setup.step) / held_out.samples


def trainer_facts(
    sampling: Sampling, held_out_score: float | None, test_accuracy: float | None
) -> TrainerFacts | None:
    """Return the facts of this rank's trainer in an epoch; None if all ranks train one network."""
    if not sampling.parts:
        return None
    part = sampling.parts[sampling.trainer.number]
    return TrainerFacts(
        training_samples=len(part.training),
        held_out_samples=len(part.held_out),
        held_out_score=held_out_score,
        test_accuracy=test_accuracy,
    )


def trainers_facts(leading: Sequence[TrainerFacts], played: Sequence[Played]) -> TrainersFacts:
    """Return the facts about the trainers of a job, from those of each one's first rank and the games of all ranks."""
    scores = [trainer.held_out_score for trainer in leading]
    measured = [score for score in scores if score is not None]
    by_rank = [tournaments.tournament_s for tournaments in played]
    return TrainersFacts(
        per_trainer=tuple(leading),
        # The first one in a tie.
        best_trainer=scores.index(max(measured)) if measured and len(measured) == len(scores) else None,
        tournaments=len(played[0].tournament_s),
        games=tuple(_games(played)),
        tournament_s=math.fsum(max(seconds) for seconds in zip(*by_rank, strict=True)),
        tournament_wait_s=statistics.fmean(tournaments.wait_s for tournaments in played),
        tournament_samples=sum(tournaments.samples for tournaments in played),
    )


def _games(played: Sequence[Played]) -> Iterator[Game]:
    """Yield every side of every game, with the seconds of the slowest rank, by tournament and trainer."""
    sides = [game for tournaments in played for game in tournaments.games]
    sides.sort(key=lambda game: (game.number, game.trainer))
    for _, game_sides in itertools.groupby(sides, key=lambda game: (game.number, game.trainer)):
        of_ranks = list(game_sides)
        yield dataclasses.replace(of_ranks[0], seconds=max(game.seconds for game in of_ranks))
