"""The networks that were trained on a machine: accelerators whose ingestion rate was measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storebench.report.cells import CellSummary
from storebench.report.intervals import Interval, median_interval
from storebench.settings.words import ComputeKind


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network that was trained on this machine: an accelerator whose ingestion rate was measured.

    Attributes
    ----------
    cell
        The cell whose compute time is taken: with nothing to load if there is one.
    rate
        Samples per second if data cost nothing: samples over compute time.
    """

    cell: CellSummary
    rate: Interval


def subject_key(cell: CellSummary) -> tuple[str, str]:
    """Return the machine and the dataset of a cell."""
    return cell.environment_key, cell.cell.data.name


def ingestion_rate(cell: CellSummary) -> Interval | None:
    """Return the samples per second that a cell would train if data cost nothing; None if it computes nothing."""
    copied = cell.rounds_per_sample("h2d_s")
    seconds = [
        spent + copied.get(key, 0.0)
        for key, spent in cell.rounds_per_sample("compute_s").items()
        if spent > 0
    ]
    return median_interval([1 / spent for spent in seconds]) if seconds else None


def trained_networks(cells: Iterable[CellSummary]) -> dict[tuple[str, str], list[Trained]]:
    """Return the networks that were trained on each dataset and machine, the slowest first.

    A network's rate is that of its cells whose loop loads nothing else; of these, that of the fastest.
    """
    best: dict[tuple[Any, ...], Trained] = {}
    for cell in cells:
        rate = ingestion_rate(cell) if cell.cell.compute.kind is ComputeKind.REAL else None
        if rate is None:
            continue
        made, key = Trained(cell=cell, rate=rate), (subject_key(cell), cell.cell.model, cell.cell.device)
        if key not in best or _purer(made) > _purer(best[key]):
            best[key] = made
    found: dict[tuple[str, str], list[Trained]] = {}
    for (subject, _, _), one in sorted(best.items(), key=lambda pair: pair[1].rate.mid):
        found.setdefault(subject, []).append(one)
    return found


def _purer(one: Trained) -> tuple[bool, bool, float]:
    return one.cell.is_null, one.cell.cell.workers == 0, one.rate.mid
