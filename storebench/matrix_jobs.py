"""The rules for jobs of several ranks in a matrix, and the settings that apply to a cell."""

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import pydantic

from storebench.formats.registry import parse_backend, traits_of
from storebench.settings.words import (
    CacheState,
    Compute,
    ComputeKind,
    Fill,
    LoaderKind,
    Share,
    Sync,
    TrainerData,
)
from storebench.units import parse_bytes

_ONE_RANK: dict[str, Any] = {
    "global_batch_size": None,
    "pad": False,
    "sync": Sync.OVERLAPPED,
    "share": Share.NONE,
}
"""The settings of jobs of several ranks, with their values in a cell of one rank."""

_NO_DATA_STORE: dict[str, Any] = {
    "store_fill": Fill.PRELOAD,
    "store_memory_bytes": None,
}
"""The settings of a data store, with their values in a cell without one."""

_ONE_TRAINER: dict[str, Any] = {"trainer_data": TrainerData.PARTITIONED, "tournament_steps": 0}
"""The settings of jobs of several trainers, with their values in a cell of one trainer."""


class JobKeys(pydantic.BaseModel):
    """The rules for the keys of jobs; the matrix defines the keys."""

    if TYPE_CHECKING:
        # Keys that are checked here.
        backends: list[str]
        compute: list[Compute]
        cache: list[CacheState]
        loader: list[LoaderKind]
        workers: list[int]
        batch_size: list[int] | None
        max_steps: int | None
        epochs: int | None
        ranks: list[int]
        global_batch_size: int | None
        pad: bool
        sync: list[Sync]
        share: list[Share]
        store_fill: list[Fill]
        store_memory: str | None
        trainers: list[int]
        trainer_data: list[TrainerData]
        tournament_steps: list[int]

    @pydantic.field_validator("store_memory", check_fields=False)
    @classmethod
    def _a_size(cls, value: str | None) -> str | None:
        if value is not None:
            parse_bytes(value)
        return value

    @pydantic.model_validator(mode="after")
    def _for_ranks(self) -> Self:
        whole = self.global_batch_size
        if max(self.ranks, default=1) == 1:
            given = {
                "global_batch_size": whole is not None,
                "pad": self.pad,
                "sync": self.sync != [Sync.OVERLAPPED],
                "share": self.share != [Share.NONE],
            }
            _refuse(given, "is for jobs of several ranks: set ranks as well")
        if whole is None:
            return self
        if self.batch_size is not None:
            raise ValueError(
                "batch_size is that of one rank, and follows from global_batch_size: set one of them"
            )
        uneven = [ranks for ranks in self.ranks if whole % ranks]
        if uneven:
            raise ValueError(f"global_batch_size {whole} cannot be divided among {uneven[0]} ranks")
        return self

    @pydantic.model_validator(mode="after")
    def _one_reader(self) -> Self:
        workers = max(self.workers, default=0)
        by_thread = workers == 1 and set(self.loader) == {LoaderKind.THREADS}
        if Share.NODE in self.share and workers and not by_thread:
            raise ValueError(
                "share 'node' has one reader per node, in the loop of its first rank or in one thread: set workers to 0, "
                "or to 1 with loader 'threads'"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _held(self) -> Self:
        filling = Fill.FIRST_EPOCH in self.store_fill
        if Share.STORE not in self.share:
            given = {
                "store_fill": filling,
                "store_memory": self.store_memory is not None,
            }
            _refuse(given, "is for the data store of a job: add 'store' to share")
            return self
        if max(self.workers, default=0):
            raise ValueError("share 'store' exchanges samples in the loop of each rank, so workers must be 0")
        if CacheState.LIMITED in self.cache:
            raise ValueError("share 'store' has no limited cell, because it holds the samples in memory")
        if filling and self.epochs == 1:
            raise ValueError(
                "a data store that the first epoch fills needs a second epoch to serve: set epochs to 2 or more"
            )
        if filling and self.max_steps is not None:
            raise ValueError(
                "max_steps would leave samples out of a data store that the first epoch fills: use 'preload'"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _trained_apart(self) -> Self:
        several = max(self.trainers, default=1) > 1
        if not several:
            given = {
                "trainer_data": self.trainer_data != [TrainerData.PARTITIONED],
                "tournament_steps": self.tournament_steps != [0],
            }
            _refuse(given, "is for jobs of several trainers: set trainers as well")
        for ranks, trainers in itertools.product(self.ranks, self.trainers):
            if ranks % trainers:
                raise ValueError(f"{ranks} ranks cannot be divided among {trainers} trainers")
        if several and Sync.NONE in self.sync:
            raise ValueError("the ranks of a trainer train one network: with trainers, sync cannot be 'none'")
        if several and set(self.share) != {Share.NONE}:
            raise ValueError("each trainer has its own samples: with trainers, share must be 'none'")
        return self

    @pydantic.model_validator(mode="after")
    def _scored(self) -> Self:
        if not any(self.tournament_steps):
            return self
        if any(compute.kind is not ComputeKind.REAL for compute in self.compute):
            raise ValueError("a tournament scores trained networks: tournament_steps needs compute 'real'")
        unread = next((name for name in self.backends if traits_of(parse_backend(name)).ready_made), None)
        if unread is not None:
            raise ValueError(
                f"{unread} has no samples on which a tournament could score networks: leave it out"
            )
        return self


def job_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell; those that do not apply to its job have their defaults."""
    settled = dict(settings)
    if settled["ranks"] == 1:
        settled |= _ONE_RANK
    elif settled["compute"].kind is ComputeKind.NONE or settled["ranks"] == settled["trainers"]:
        settled["sync"] = Sync.OVERLAPPED  # no gradients are exchanged
    if settled["share"] is not Share.STORE:
        settled |= _NO_DATA_STORE
    elif settled["store_memory_bytes"] is not None:
        settled["store_memory_bytes"] = parse_bytes(settled["store_memory_bytes"])
    if settled["trainers"] == 1:
        settled |= _ONE_TRAINER
    return settled


def _refuse(given: Mapping[str, bool], why: str) -> None:
    """Refuse the first of some keys, if there is any."""
    unused = next((key for key, is_given in given.items() if is_given), None)
    if unused is not None:
        raise ValueError(f"{unused} {why}")
