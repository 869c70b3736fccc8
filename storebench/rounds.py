"""When a run gets another round, and of which cells: the rules of scenarios that state the precision or the time that they want."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storebench.stats import MIN_ROUNDS

FEWEST_REPLICATES = 5
"""With fewer first rounds, too many intervals are narrow by chance: 92% of single intervals would hold instead of 93%."""

MIN_REPLICATES = FEWEST_REPLICATES
MAX_REPLICATES = 12
MOST_REPLICATES = 1_000_000
"""Replicates of all cells of a scenario together: at some 3 s each, more than a month."""


class Why(enum.StrEnum):
    """Why a panel gets no further round."""

    PRECISE = "precise"
    """Every ratio that matters is as precise as wanted."""
    UNDECIDABLE = "undecidable"
    """The ratios that are not precise would not be decided by more rounds (an upper bound, training of too few steps)."""
    MAXIMUM = "maximum"
    """The run has as many rounds as the scenario allows."""
    BUDGET = "budget"
    """Another round of the panel would not fit into the time budget."""


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """The precision that a scenario wants, and what it may cost."""

    until: float
    min_replicates: int = MIN_REPLICATES
    max_replicates: int = MAX_REPLICATES
    budget_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PairPrecision:
    """The precision of the ratio of two cells."""

    cell_ids: tuple[str, str]
    half_width_frac: float | None
    decidable: bool = True

    def precise(self, until: float) -> bool:
        """Return whether the interval is as narrow as wanted."""
        return self.half_width_frac is not None and self.half_width_frac <= until


@dataclass(frozen=True, kw_only=True)
class PanelPrecision:
    """The precision of the ratios of a panel that matter."""

    cell_ids: tuple[str, ...]
    pairs: tuple[PairPrecision, ...]

    def wanted(self, until: float) -> tuple[PairPrecision, ...]:
        """Return the ratios for which another round is worth its time."""
        return tuple(pair for pair in self.pairs if pair.decidable and not pair.precise(until))

    def widest(self, pairs: Iterable[PairPrecision]) -> float | None:
        """Return the largest half-width of some of its ratios; None if one has no interval, or there is none."""
        widths = [pair.half_width_frac for pair in pairs]
        known = [width for width in widths if width is not None]
        return max(known) if known and len(known) == len(widths) else None


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Why the cells of a panel are not in the next round."""

    cell_ids: tuple[str, ...]
    why: Why
    widest_frac: float | None


@dataclass(frozen=True, kw_only=True)
class RunRounds:
    """The decisions of a run on its rounds, from its ``run.json``."""

    rule: StoppingRule
    stops: tuple[Stop, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """The cells of the next round, none if the run is over, and why the other panels are not in it."""

    cell_ids: tuple[str, ...]
    stops: tuple[Stop, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The time that the replicates of a run have taken so far."""

    spent_s: float = 0.0
    cell_s: Mapping[str, float]


def next_round(rule: StoppingRule, panels: Sequence[PanelPrecision], done: int, costs: Costs) -> NextRound:
    """Return the cells of the next round."""
    stops: list[Stop] = []
    left_s = None if rule.budget_s is None else rule.budget_s - costs.spent_s
    chosen: list[str] = []
    for panel in sorted(panels, key=lambda panel: _distance(rule, panel)):
        wanted = panel.wanted(rule.until)
        cells = [cell_id for cell_id in panel.cell_ids if any(cell_id in pair.cell_ids for pair in wanted)]
        cost_s = sum(costs.cell_s.get(cell_id, 0.0) for cell_id in cells)
        why = _why_not(rule, panel, done, over_budget=left_s is not None and cost_s > left_s)
        if why is not None:
            stops.append(Stop(cell_ids=panel.cell_ids, why=why, widest_frac=panel.widest(panel.pairs)))
            continue
        chosen += cells
        left_s = None if left_s is None else left_s - cost_s
    return NextRound(cell_ids=tuple(dict.fromkeys(chosen)), stops=tuple(stops))


def _why_not(rule: StoppingRule, panel: PanelPrecision, done: int, *, over_budget: bool) -> Why | None:
    """Return why a panel is not in the next round; None if it is."""
    if not panel.wanted(rule.until):
        precise = all(pair.precise(rule.until) for pair in panel.pairs)
        return Why.PRECISE if precise else Why.UNDECIDABLE
    if done >= rule.max_replicates:
        return Why.MAXIMUM
    return Why.BUDGET if over_budget else None


def _distance(rule: StoppingRule, panel: PanelPrecision) -> float:
    """Return the distance of a panel from the wanted precision: its widest ratio that more rounds can narrow."""
    wanted = panel.wanted(rule.until)
    if not wanted:
        return 0.0
    widest = panel.widest(wanted)
    return float("inf") if widest is None else widest


def has_time(done: int, spent_s: float, next_s: float, budget_s: float | None) -> bool:
    """Return whether the next of a fixed number of rounds fits into a time budget; the first ones run in any case."""
    return budget_s is None or done < FEWEST_REPLICATES or spent_s + next_s <= budget_s


def within_budget(done: int, spent_s: float, budget_s: float | None) -> bool:
    """Return whether a whole round more fits into a time budget; the first `MIN_ROUNDS` run in any case."""
    return budget_s is None or done < MIN_ROUNDS or spent_s * (done + 1) / done <= budget_s
