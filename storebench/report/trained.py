"""The networks that were trained on a machine: accelerators whose ingestion rate was measured."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from storebench.report.cells import CellSummary
from storebench.report.intervals import Estimate, median_interval
from storebench.settings.words import ComputeKind


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network that was trained on this machine: an accelerator whose ingestion rate was measured.

    Attributes
    ----------
    cell
        The cell that gives the compute time; one that loads nothing, if there is one.
    rounds
        Samples per second of each replicate if data took no time: samples over compute time.
    prep_s
        Seconds per sample that producers take for this network's augmentation, the largest of all stores; None if no store
        was read for this network.
    """

    cell: CellSummary
    rounds: tuple[float, ...]
    prep_s: float | None = None

    @functools.cached_property
    def rate(self) -> Estimate:
        """Samples per second if data took no time, with a single interval."""
        return median_interval(self.rounds)


def subject_key(cell: CellSummary) -> tuple[str, str]:
    """Return the machine and the dataset of a cell."""
    return cell.environment_key, cell.cell.data.name


def ingestion_rate(cell: CellSummary) -> Estimate | None:
    """Return the samples per second that a cell would train if data took no time; None if it computes nothing."""
    rounds = _ingestion_rounds(cell)
    return median_interval(rounds) if rounds else None


def _ingestion_rounds(cell: CellSummary) -> tuple[float, ...]:
    copied = cell.rounds_per_sample("h2d_s")
    return tuple(
        1 / (spent + copied.get(key, 0.0))
        for key, spent in cell.rounds_per_sample("compute_s").items()
        if spent > 0
    )


def trained_networks(cells: Iterable[CellSummary]) -> dict[tuple[str, str], list[Trained]]:
    """Return the networks that were trained on each dataset and machine, slowest first.

    A network's rate is that of its fastest cell; cells that load nothing are preferred.
    """
    best: dict[tuple[Any, ...], Trained] = {}
    prep_s: dict[tuple[Any, ...], float] = {}
    for cell in cells:
        rounds = _ingestion_rounds(cell) if cell.cell.compute.kind is ComputeKind.REAL else ()
        if not rounds:
            continue
        made, key = Trained(cell=cell, rounds=rounds), (subject_key(cell), cell.cell.model, cell.cell.device)
        if key not in best or _purer(made) > _purer(best[key]):
            best[key] = made
        if not cell.is_null:
            prep_s[key] = max(prep_s.get(key, 0.0), cell.per_sample("prep_s"))
    networks: dict[tuple[str, str], list[Trained]] = {}
    for key, network in sorted(best.items(), key=lambda pair: pair[1].rate.mid):
        networks.setdefault(key[0], []).append(replace(network, prep_s=prep_s.get(key)))
    return networks


def _purer(network: Trained) -> tuple[bool, bool, float]:
    return network.cell.is_null, network.cell.cell.workers == 0, network.rate.mid
