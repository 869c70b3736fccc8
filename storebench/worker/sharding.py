"""Which samples each rank serves: the order of an epoch, dealt to trainers, ranks and batches."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from storebench.formats.base import Indices
from storebench.loading.batch import EpochPlan
from storebench.loading.order import pass_orders
from storebench.ranks.membership import dealt
from storebench.ranks.trainers import Trainer, TrainerSamples, parts_of, seed_of
from storebench.record.schema import Cell
from storebench.settings.words import Share


@dataclass(kw_only=True)
class Sampling:
    """The order in which one replicate of a cell serves the `count` samples of its store, as one of `ranks` sees it."""

    cell: Cell
    count: int
    replicate: int
    ranks: int
    trainer: Trainer
    native: Callable[[int], list[Indices]] | None = None  # orders of the passes, where the reader has its own

    def batches(self, epoch: int) -> list[Indices]:
        trainer = self.trainer
        return [
            pieces[trainer.rank]
            for order in self._orders(epoch)
            for pieces in self._dealt(order, trainer.ranks)
        ]

    def plan(self, epoch: int, batches: list[Indices]) -> EpochPlan:
        """Return the plan of an epoch for this rank's `batches` of it."""
        everyone = (pieces for order in self._orders(epoch) for pieces in self._dealt(order, self.ranks))
        shares = self.cell.share is Share.STORE
        return EpochPlan(epoch=epoch, batches=batches, everyone=everyone if shares else None)

    def expected(self, epoch: int) -> list[Indices]:
        """Return the samples that all ranks together should serve in an epoch, one array per trainer and pass."""
        cell, ranks, count = self.cell, self.trainer.ranks, self.samples
        most = None if cell.max_steps is None else cell.max_steps * cell.batch_size * ranks
        whole = -(-count // ranks) * ranks if cell.pad else count
        orders = (order for number in range(cell.trainers) for order in self._orders(epoch, number))
        return [np.resize(order, whole)[:most] for order in orders]

    def global_sizes(self) -> list[int]:
        """Return the number of samples in each step of an epoch, over all ranks of the trainer."""
        order = np.arange(self.samples)
        sizes = [sum(map(len, pieces)) for pieces in self._dealt(order, self.trainer.ranks)]
        return sizes * (self.cell.passes or 1)

    @property
    def samples(self) -> int:
        """Number of samples that a trainer serves in one pass; equal for all trainers."""
        return len(self.parts[0].training) if self.parts else self.count

    @functools.cached_property
    def parts(self) -> list[TrainerSamples]:
        """The samples of each trainer of the job; empty if all ranks train one network."""
        cell = self.cell
        if cell.trainers == 1:
            return []
        return parts_of(self.count, trainers=cell.trainers, data=cell.trainer_data, seed=cell.seed)

    def _orders(self, epoch: int, trainer: int | None = None) -> Iterator[Indices]:
        """Yield the order of each pass of a trainer; None stands for this rank's trainer."""
        cell = self.cell
        if self.native is not None:
            yield from self.native(epoch)
            return
        number = self.trainer.number if trainer is None else trainer
        seed = seed_of(cell.seed, number) if self.parts else cell.seed
        orders = pass_orders(
            self.samples,
            seed=seed,
            epoch=epoch,
            passes=cell.passes or 1,
            replicate=self.replicate,
            shuffle=cell.shuffle,
        )
        for order in orders:
            yield self.parts[number].training[order] if self.parts else order

    def _dealt(self, order: Indices, ranks: int) -> Iterator[list[Indices]]:
        cell = self.cell
        return dealt(order, ranks=ranks, batch_size=cell.batch_size, pad=cell.pad, max_steps=cell.max_steps)
