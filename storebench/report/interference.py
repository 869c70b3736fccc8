"""The interaction of loading data and exchanging gradients: a job with both, with either, and with neither.

The four corners are a job that reads a store and exchanges gradients, the same job with ``sync = "none"``, and the same two
with the backend `null`, which loads nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from storebench.report.cells import CellSummary, ceiling_key, key_without
from storebench.report.factors import difference, interaction_cost, shared_rounds
from storebench.report.intervals import Estimate
from storebench.settings.words import Sync

PARTS = {"step": "timed_s", "data wait": "data_wait_s", "compute": "compute_s"}
"""Part of a step -> the column with its sum. Computing includes the exchange of gradients."""

_FIGURES = 3 * len(PARTS)
"""Number of intervals per job; they share the permitted error."""


@dataclass(frozen=True, kw_only=True)
class Effects:
    """The time that loading and exchanging add to one part of a step, in seconds per step, over rounds.

    Attributes
    ----------
    part
        A key of `PARTS`.
    loading
        The time that loading adds if nothing is exchanged.
    exchange
        The time that the exchange adds if nothing is loaded.
    interaction
        The time that both together add beyond the sum of the two. It is negative if one is hidden behind the other.
    """

    part: str
    loading: Estimate
    exchange: Estimate
    interaction: Estimate


@dataclass(frozen=True, kw_only=True, eq=False)
class Interference:
    """The four corners of a job; the intervals of its effects hold simultaneously.

    Attributes
    ----------
    both
        The cell that loads and exchanges.
    loading
        The cell that loads and does not exchange.
    exchange
        The cell that exchanges; its backend is `null`.
    neither
        The cell that does neither.
    effects
        The effects on the parts of a step, in the order of `PARTS`.
    """

    both: CellSummary
    loading: CellSummary
    exchange: CellSummary
    neither: CellSummary
    effects: tuple[Effects, ...]

    @property
    def step(self) -> Effects:
        """The effects on the whole step."""
        return self.effects[0]


def interferences(cells: Iterable[CellSummary]) -> list[Interference]:
    """Return the four corners of each job of ranks, if all of them were measured in the same rounds."""
    jobs = [cell for cell in cells if cell.cell.ranks > 1 and cell.values("samples_per_s")]
    nulls = {ceiling_key(cell): cell for cell in jobs if cell.is_null}
    stored = [cell for cell in jobs if not cell.is_null]
    silent = {_key(cell): cell for cell in stored if cell.cell.sync is Sync.NONE}
    return [
        interference
        for both in stored
        if both.cell.sync is not Sync.NONE
        for interference in _corners(both, silent.get(_key(both)), nulls)
    ]


def _key(cell: CellSummary) -> tuple[object, ...]:
    """Return the key shared by jobs that differ only in the moment of the exchange."""
    return (cell.backend, *key_without(cell, "sync"))


def _corners(
    both: CellSummary, loading: CellSummary | None, nulls: dict[tuple[object, ...], CellSummary]
) -> Iterator[Interference]:
    exchange = nulls.get(ceiling_key(both))
    neither = None if loading is None else nulls.get(ceiling_key(loading))
    if loading is None or exchange is None or neither is None:
        return
    corners = (both, loading, exchange, neither)
    effects = tuple(_effects(part, column, corners) for part, column in PARTS.items())
    if None not in effects:
        known = tuple(effect for effect in effects if effect is not None)
        yield Interference(both=both, loading=loading, exchange=exchange, neither=neither, effects=known)


def _effects(part: str, column: str, corners: tuple[CellSummary, ...]) -> Effects | None:
    """Return the effects on one part of a step; None if no round has all corners."""
    by_round = [cell.rounds_per_step(column) for cell in corners]
    shared = shared_rounds(by_round)
    if not shared:
        return None
    both, loading, exchange, neither = ([rounds[key] for key in shared] for rounds in by_round)
    return Effects(
        part=part,
        loading=difference(loading, neither, figures=_FIGURES),
        exchange=difference(exchange, neither, figures=_FIGURES),
        interaction=interaction_cost(both, loading, exchange, neither, figures=_FIGURES),
    )
