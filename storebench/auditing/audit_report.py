"""The result of an audit: faults, doubts, and what was served."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storebench.arrays import randomness
from storebench.auditing.checks import Fault, Served, doubts_of, epochs_differ, faults_of, mixing, repeated
from storebench.errors import EXIT_INCONCLUSIVE


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What an audit of one loader found; ``print`` shows it.

    Attributes
    ----------
    faults
        What is wrong, each with its kind, a sentence and the remedy.
    doubts
        What could not be told, each with what to do.
    rows
        Coverage, order, epochs and resume, in words.
    name
        The line that iterates the loader, and its dataset; "" of a loader that is no torch ``DataLoader``.
    """

    faults: tuple[Fault, ...] = ()
    doubts: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    name: str = ""

    @property
    def exit_code(self) -> int:
        """0 sound, 1 a fault, 4 cannot be told."""
        return 1 if self.faults else EXIT_INCONCLUSIVE if self.doubts else 0

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "text": str(self)}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: AuditReport) -> Iterator[str]:
    count = len(report.faults)
    found = f"{count} fault{'s' * (count != 1)}" if count else "cannot be told" if report.doubts else "sound"
    yield f"storebench audit: {found}{f' in {report.name}' if report.name else ''}"
    for number, fault in enumerate(report.faults, start=1):
        yield f"  {number} {fault.text}"
        yield f"      → {fault.remedy}"
    yield from (f"  ? {doubt}" for doubt in report.doubts)
    yield from (f"  {name:<10} {text}" for name, text in report.rows)


def report_of(
    served: Served,
    more: Sequence[Fault] = (),
    rows: Sequence[tuple[str, str]] = (),
    doubts: Sequence[str] = (),
) -> AuditReport:
    """Return the report on a loader; `more`, `rows` and `doubts` are what trials of it have found."""
    return AuditReport(
        faults=(*faults_of(served), *more),
        doubts=(*doubts_of(served), *doubts),
        rows=(*_rows(served), *rows),
        name=served.facts.name,
    )


def _rows(served: Served) -> Iterator[tuple[str, str]]:
    for epoch in range(len(served.epochs)):
        yield ("coverage", f"epoch {epoch}: {_coverage(served, epoch)}")
        if epoch == 1:
            break
    if served.epochs:
        yield from _order(served)
        differ = epochs_differ(served)
        told = "one epoch was seen" if len(served.epochs) < 2 else "not known which sample is which"
        yield (
            "epochs",
            told if differ is None else f"0 and 1 {'differ' if differ else 'have the same order'}",
        )


def _coverage(served: Served, epoch: int) -> str:
    numbers, universe = served.numbers(epoch), served.universe
    count = served.facts.count if universe is None else len(universe)
    different = len(np.unique(numbers))
    words = [
        f"{len(numbers):,} served",
        f"{different:,} different{f' of {count:,}' if count is not None else ''}",
    ]
    if twice := len(repeated(numbers)):
        is_padding = twice < served.facts.ranks and served.facts.is_map
        words.append(
            f"{twice:,} twice to give all ranks as many" if is_padding else f"{twice:,} twice or more"
        )
    if served.facts.ranks > 1:
        words.append(f"by {len(served.logs)} ranks")
    if not served.is_whole(epoch):
        words.append("the loop stopped early")
    return ", ".join(words)


def _order(served: Served) -> Iterator[tuple[str, str]]:
    part = served.epochs[0][0]
    if served.facts.is_map and len(part.order) > 1:
        displacement, neighbours = randomness(np.argsort(np.argsort(part.order, kind="stable")))
        yield "order", f"{displacement:.2f} of a uniform shuffle, {neighbours:.0%} of neighbours kept"
    if found := mixing(served):
        classes = (
            f"a batch of {found.batch} has {found.classes:.1f} classes, {found.expected_classes:.1f} expected"
        )
        yield "classes", f"{classes}; runs of one label {found.run:.1f}, {found.expected_run:.1f} expected"
