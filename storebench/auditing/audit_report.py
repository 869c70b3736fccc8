"""The result of an audit: faults, doubts, and what was served."""

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from storebench.errors import EXIT_INCONCLUSIVE


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
    REPEATED = "repeated samples", "let the stream end after one pass", "replacement"
    NEVER_SERVED = "never served", "shuffle, and let each epoch end", "validation", "replacement"
    DROPPED = "dropped samples", "mend or list these samples; raise an error instead of leaving them out"
    SAME_ORDER = "same order in every epoch", "call set_epoch(epoch) before each; seed once", "validation"
    CLUSTERED = (
        "poorly shuffled",
        "a larger shuffle buffer, or shuffle before samples are stored",
        "validation",
    )
    EQUAL_RANDOM = "equal random numbers in workers", "seed from torch.initial_seed()", "validation"
    REPEATED_RANDOM = "equal random numbers in every epoch", "seed once, not per epoch", "validation"
    OVERWRITTEN = "overwritten batches", "copy a batch that is kept, or have the loader make new ones"
    LABELS_CHANGE = "changing labels", "join labels by key, not by position"
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


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What an audit of one loader found; ``print`` shows it.

    Attributes
    ----------
    faults
        What is wrong, each with its kind, which has a remedy, and a sentence.
    doubts
        What could not be told, each with what to do.
    rows
        Coverage, order, epochs and resume, in words.
    name
        The line that iterates the loader, and its dataset; "" of a loader that is no torch ``DataLoader``.
    """

    faults: tuple[Fault, ...] = ()
    doubts: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    name: str = ""

    @property
    def exit_code(self) -> int:
        """0 sound, 1 a fault, 4 cannot be told."""
        return 1 if self.faults else EXIT_INCONCLUSIVE if self.doubts else 0

    def as_dict(self) -> dict[str, Any]:
        faults = [{"kind": kind, "text": text, "remedy": kind.remedy} for kind, text in self.faults]
        return {**dataclasses.asdict(self), "faults": faults, "text": str(self)}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: AuditReport) -> Iterator[str]:
    count = len(report.faults)
    found = f"{count} fault{'s' * (count != 1)}" if count else "cannot be told" if report.doubts else "sound"
    yield f"storebench audit: {found}{f' in {report.name}' if report.name else ''}"
    for number, (kind, text) in enumerate(report.faults, start=1):
        yield f"  {number} {kind}: {text}"
        yield f"      → {kind.remedy}"
    yield from (f"  ? {doubt}" for doubt in report.doubts)
    yield from (f"  {name:<10} {text}" for name, text in report.rows)
