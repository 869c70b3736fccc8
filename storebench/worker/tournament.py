"""Tournaments between the trainers of a job, in the pauses after steps of an epoch, and scores on held-out samples."""

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from storebench.formats.base import Indices, Reader
from storebench.loading.evidence import opened_again
from storebench.probes.spending import Spending
from storebench.ranks.trainers import partner_of, tournaments_in
from storebench.results import Game
from storebench.training.evaluate import count_right
from storebench.training.steps import CpuStep
from storebench.worker.setup import Setup


@dataclass(frozen=True, kw_only=True)
class Played:
    """The tournaments of an epoch on one rank: games, times and reads."""

    games: tuple[Game, ...] = ()
    tournament_s: tuple[float, ...] = ()
    wait_s: float = 0.0
    samples: int = 0
    device_read_bytes: int | None = None


class HeldOut:
    """The held-out samples, on which a trainer scores networks. Each of its ranks reads a part of them."""

    def __init__(self, setup: Setup) -> None:
        trainer = setup.trainer
        held_out = setup.parts[trainer.number].held_out
        self._setup = setup
        self._reader: Reader | None = None
        self._read_before = 0
        self.samples = len(held_out)
        self.own: Indices = np.array_split(held_out, trainer.ranks)[trainer.rank]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the reader if it is open."""
        if self._reader is not None:
            self._read_before = self.read
            self._reader.close()
            self._reader = None

    @property
    def read(self) -> int:
        """Samples requested from the reader, which counts them."""
        return self._read_before + (self._reader.asked_samples if self._reader else 0)

    def right(self, step: CpuStep) -> int:
        """Return the number of samples that the network classifies correctly. All ranks of the trainer call it together."""
        # It imports torch.distributed, which a single process does not need.
        from storebench.ranks.games import summed

        setup = self._setup
        if self._reader is None:
            self._reader = opened_again(setup.job.store, setup.cell.backend)
        own = count_right(step, setup.augment, self._reader, self.own, after_batch=setup.progress.batch)
        with setup.progress.waiting():
            return summed(own, setup.trainer, setup.trainer_group)


class Tournament:
    """The tournaments of one epoch, on one rank."""

    def __init__(self, setup: Setup, epoch: int) -> None:
        self._setup, self._epoch = setup, epoch
        every = setup.cell.tournament_steps if isinstance(setup.step, CpuStep) else 0
        steps = len(setup.global_sizes())
        # Step of the epoch -> the tournament after it.
        self._due = {
            (number + 1) * every - epoch * steps: number for number in tournaments_in(epoch, steps, every)
        }
        self._held_out = HeldOut(setup) if self._due else None
        self._spending = Spending()
        self._steps = 0
        self._games: list[Game] = []
        self._tournament_s: list[float] = []
        self._wait_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held_out is not None:
            self._held_out.close()

    def __call__(self) -> bool:
        """Count a step, and play the tournament after it, if any; return True if there was one."""
        self._steps += 1
        number, step = self._due.get(self._steps), self._setup.step
        if number is None or self._held_out is None or not isinstance(step, CpuStep):
            return False
        self._play(number, step, self._held_out)
        return True

    @property
    def due(self) -> bool:
        """Whether the epoch has a tournament."""
        return bool(self._due)

    @property
    def spending(self) -> Spending:
        """Resources that this process used for games."""
        return self._spending

    @property
    def played(self) -> Played:
        """Games and times so far."""
        return Played(
            games=tuple(self._games),
            tournament_s=tuple(self._tournament_s),
            wait_s=self._wait_s,
            samples=self._held_out.read if self._held_out else 0,
            device_read_bytes=self._spending.device_read_bytes,
        )

    def _play(self, number: int, step: CpuStep, held_out: HeldOut) -> None:
        setup = self._setup
        setup.progress.begin(f"tournament {number}")
        arrived = time.perf_counter()
        setup.group.barrier()
        begun = time.perf_counter()
        partner = partner_of(
            setup.trainer.number, number, trainers=setup.trainer.trainers, seed=setup.cell.seed
        )
        if partner is not None:
            with self._spending.counted():
                self._games.append(self._game(number, partner, step, held_out))
        setup.group.barrier()
        self._tournament_s.append(time.perf_counter() - begun)
        self._wait_s += begun - arrived
        setup.progress.begin(f"epoch {self._epoch}")

    def _game(self, number: int, partner: int, step: CpuStep, held_out: HeldOut) -> Game:
        """Play this trainer's side of a game."""
        from storebench.ranks.games import exchanged, packed, unpack

        start = time.perf_counter()
        setup, trainer, state = self._setup, self._setup.trainer, step.state()
        own = held_out.right(step)
        mine = packed(state)
        with setup.progress.waiting():
            theirs = exchanged(mine, trainer.peer(partner))
        unpack(theirs, state)
        others = held_out.right(step)
        if others <= own:
            unpack(mine, state)
        return Game(
            number=number,
            step=self._steps,
            trainer=trainer.number,
            partner=partner,
            samples=held_out.samples,
            own_score=own / held_out.samples,
            partner_score=others / held_out.samples,
            winner=partner if others > own else trainer.number,
            sent_bytes=mine.nbytes * trainer.ranks,
            seconds=time.perf_counter() - start,
        )


def held_out_score(setup: Setup) -> float | None:
    """Return the share of a trainer's held-out samples that its network classifies correctly."""
    if setup.cell.trainers == 1 or not isinstance(setup.step, CpuStep) or setup.traits.ready_made:
        return None
    with HeldOut(setup) as held_out:
        return held_out.right(setup.step) / held_out.samples
