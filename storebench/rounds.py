"""When a run gets another round, and of which cells: the rules of scenarios that state the precision or the time that they want.

Pure functions. `storebench.report.precision` says how wide each interval is, by the definitions of a page;
`storebench.runner` runs the rounds. docs/statistics.md holds the simulations of the rule.

The rule looks at widths, never at a verdict: rounds that stop when a difference is
"significant" would find differences where there are none.
"""

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
    """The precision that a scenario wants, and what it may cost.

    Attributes
    ----------
    until
        Wanted half-width of the interval of each ratio that matters, as a share: 0.1 for an interval within 10%.
    min_replicates
        Rounds that every cell runs, before any interval is looked at.
    max_replicates
        Most rounds.
    budget_s
        Seconds for all replicates together, beyond which no round is added; None for no limit.
    """

    until: float
    min_replicates: int = MIN_REPLICATES
    max_replicates: int = MAX_REPLICATES
    budget_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PairPrecision:
    """The precision of the ratio of two cells.

    Attributes
    ----------
    cell_ids
        The two cells.
    half_width_frac
        Half-width of its interval as a share; None while there is no interval.
    decidable
        Whether more rounds can decide it.
    """

    cell_ids: tuple[str, str]
    half_width_frac: float | None
    decidable: bool = True

    def precise(self, until: float) -> bool:
        """Return whether the interval is as narrow as wanted."""
        return self.half_width_frac is not None and self.half_width_frac <= until


@dataclass(frozen=True, kw_only=True)
class PanelPrecision:
    """The precision of the ratios of a panel that matter.

    Attributes
    ----------
    cell_ids
        All cells of the panel.
    pairs
        The ratios that matter.
    """

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
    """Why the cells of a panel are not in the next round.

    Attributes
    ----------
    cell_ids
        All cells of the panel.
    widest_frac
        Largest half-width of its ratios that matter, as a share; None if one has no interval, or none matters.
    """

    cell_ids: tuple[str, ...]
    why: Why
    widest_frac: float | None


@dataclass(frozen=True, kw_only=True)
class RunRounds:
    """The decisions of a run on its rounds, from its ``run.json``.

    Attributes
    ----------
    stops
        The reason why each panel got no further round; empty while the run goes on.
    """

    rule: StoppingRule
    stops: tuple[Stop, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """The cells of the next round, none if the run is over, and why the other panels are not in it."""

    cell_ids: tuple[str, ...]
    stops: tuple[Stop, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The time that the replicates of a run have taken so far.

    Attributes
    ----------
    spent_s
        Seconds of all replicates, including repeated ones.
    cell_s
        Cell id -> median seconds of a replicate.
    """

    spent_s: float = 0.0
    cell_s: Mapping[str, float]


def next_round(rule: StoppingRule, panels: Sequence[PanelPrecision], done: int, costs: Costs) -> NextRound:
    """Return the cells of the next round.

    Intervals are paired by round, so a ratio gains only from rounds in which both of its cells run. The round has both
    cells of each ratio that is not precise yet, and no others: what is steady is not repeated. If not all panels fit
    into the budget, those nearest to the wanted precision come first, so that the time settles as many as it can.

    Parameters
    ----------
    panels
        The precision after `done` rounds.
    done
        Rounds so far.
    """
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
    """Return whether the next of a fixed number of rounds fits into a time budget; the first ones run in any case.

    Parameters
    ----------
    done
        Rounds so far.
    spent_s, next_s
        Seconds that they took together, and that the next one will take.
    budget_s
        Seconds for all rounds; None for no limit.
    """
    return budget_s is None or done < FEWEST_REPLICATES or spent_s + next_s <= budget_s


def within_budget(done: int, spent_s: float, budget_s: float | None) -> bool:
    """Return whether a whole round more fits into a time budget; the first `MIN_ROUNDS` run in any case.

    It looks at the clock alone, so the number of rounds says nothing about the results.

    Parameters
    ----------
    done
        Rounds so far.
    spent_s
        Seconds that they took together.
    budget_s
        Seconds for all rounds; None for no limit.
    """
    return budget_s is None or done < MIN_ROUNDS or spent_s * (done + 1) / done <= budget_s
