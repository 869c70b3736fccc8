"""The result of an audit: faults, doubts, and what was served."""

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from storebench.errors import EXIT_INCONCLUSIVE
from storebench.units import number_of


class FaultKind(enum.StrEnum):
    """The kinds of faults, each with its remedy, and the loops in which it is no fault but meant."""

    remedy: str
    meant_by: tuple[str, ...]

    def __new__(cls, value: str, remedy: str, *meant_by: str) -> Self:
        kind = str.__new__(cls, value)
        kind._value_, kind.remedy, kind.meant_by = value, remedy, meant_by
        return kind

    WORKERS_REPEAT = "workers repeat each other", "split by torch.utils.data.get_worker_info()", "replacement"
    RANKS_OVERLAP = "ranks overlap", "DistributedSampler; split a stream by rank", "validation", "replacement"
    RANKS_DIFFER = "ranks differ in length", "give each rank as many samples", "validation", "replacement"
    REPEATED = "repeated samples", "one pass per epoch, and no sample in place of another", "replacement"
    NEVER_SERVED = "never served", "shuffle, and let each epoch end", "validation", "replacement"
    DROPPED = "dropped samples", "mend or list these samples; raise an error instead of leaving them out"
    SAME_ORDER = "same order in every epoch", "call set_epoch(epoch) before each; seed once", "validation"
    CLUSTERED = "poorly shuffled", "a larger buffer, or shuffle before samples are stored", "validation"
    EQUAL_RANDOM = "equal random numbers in workers", "seed from torch.initial_seed()", "validation"
    REPEATED_RANDOM = "equal random numbers in every epoch", "seed once, not per epoch", "validation"
    OVERWRITTEN = "overwritten batches", "copy a batch that is kept, or have the loader make new ones"
    LABELS_CHANGE = "changing labels", "join labels by key, and give no sample in place of another"
    RESUME = "wrong resume", "save the place in the epoch and the state of its shuffle, of each worker"
    OVERLAP = "overlapping datasets", "split the dataset before it is copied, augmented or cut"
    STARTS_DIFFER = "starts that differ", "seed torch, numpy and random, and draw from nothing else"


class Fault(NamedTuple):
    kind: FaultKind
    text: str


class Row(NamedTuple):
    """One of the facts below the faults."""

    name: str
    text: str


Finding = Fault | Row | str
"""A fault, a fact, or a doubt with what to do."""


@dataclass(frozen=True)
class AuditReport:
    """What an audit of one loader found; ``print`` shows it."""

    name: str
    """The line that iterates the loader, and its dataset; "" of a loader that is no torch ``DataLoader``."""
    faults: tuple[Fault, ...]
    """What is wrong, each with its kind, which has a remedy, and a sentence."""
    doubts: tuple[str, ...]
    """What could not be told, each with what to do."""
    rows: tuple[Row, ...]
    """Coverage, order, epochs and resume, in words."""

    @property
    def exit_code(self) -> int:
        """0 sound, 1 a fault, 4 cannot be told."""
        return 1 if self.faults else EXIT_INCONCLUSIVE if self.doubts else 0

    def as_dict(self) -> dict[str, Any]:
        faults = [{"kind": kind, "text": text, "remedy": kind.remedy} for kind, text in self.faults]
        return {**dataclasses.asdict(self), "faults": faults, "exit_code": self.exit_code, "text": str(self)}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        words = {0: "sound", 1: number_of(len(self.faults), "fault"), EXIT_INCONCLUSIVE: "cannot be told"}
        yield f"storebench audit: {words[self.exit_code]}{f' in {self.name}' if self.name else ''}"
        for number, (kind, text) in enumerate(self.faults, start=1):
            yield f"  {number} {kind}: {text}"
            yield f"      → {kind.remedy}"
        yield from (f"  ? {doubt}" for doubt in self.doubts)
        yield from (f"  {name:<10} {text}" for name, text in self.rows)
