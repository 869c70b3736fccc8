"""Whole pages whose rounds are added until the ratios are precise enough: how often intervals hold, and what is claimed.

The pages are drawn (`benchmarks.drawn_pages`); the rule and the intervals are those of a real run.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.drawn_pages import Truth, drawn_page, false_claims
from storebench.report.cells import CellSummary
from storebench.report.decisions import Topic
from storebench.report.facts import derive
from storebench.report.precision import page_precision
from storebench.rounds import FEWEST_REPLICATES, Costs, RunRounds, StoppingRule, has_time, next_round
from storebench.stats import ALPHA
from storebench.student_t import t_quantile


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one page.

    Attributes
    ----------
    false
        Claims that are not true, in tables and in sentences.
    held
        Whether every interval of a ratio holds the true one.
    rates
        For each cell, whether the interval of its rate holds the true rate.
    rounds
        Rounds of each cell.
    precise
        For each ratio that matters, whether it is as precise as wanted.
    """

    false: int
    held: bool
    rates: tuple[bool, ...]
    rounds: tuple[int, ...]
    precise: tuple[bool, ...]


def grown_page(
    truth: Truth, rule: StoppingRule, rng: np.random.Generator, *, settings: int = 8
) -> list[CellSummary]:
    """Return the cells of a page with the rounds that the rule gives them; a replicate takes a second."""
    everything = drawn_page(dataclasses.replace(truth, rounds=rule.max_replicates), rng, settings=settings)
    rounds = {cell.cell.cell_id: set(range(rule.min_replicates)) for cell in everything}
    for done in range(rule.min_replicates, rule.max_replicates + 1):
        page = [_cut(cell, rounds[cell.cell.cell_id], rule) for cell in everything]
        spent_s = float(sum(map(len, rounds.values())))
        costs = Costs(spent_s=spent_s, cell_s=dict.fromkeys(rounds, 1.0))
        following = next_round(rule, page_precision(page), done, costs)
        if not following.cell_ids:
            return page
        for cell_id in following.cell_ids:
            rounds[cell_id].add(done)
    raise AssertionError("the rule went on after the largest number of rounds")


def _cut(cell: CellSummary, rounds: Iterable[int], rule: StoppingRule) -> CellSummary:
    """Return a cell with some of its rounds only, as a run with the rule records them."""
    kept, told = set(rounds), {"rounds_rule": RunRounds(rule=rule)}
    rows = tuple({**row, **told} for row in cell.rows if row["replicate"] in kept)
    return dataclasses.replace(cell, rows=rows)


def outcomes(
    truths: Iterable[Truth], rule: StoppingRule, seed: int, *, settings: int = 8
) -> Iterator[Outcome]:
    """Yield what became of one page for each truth."""
    rng = np.random.default_rng(seed)
    for truth in truths:
        page = grown_page(truth, rule, rng, settings=settings)
        pairs = [pair for panel in page_precision(page) for pair in panel.pairs]
        yield Outcome(
            false=len(false_claims(page, truth)),
            held=_held(page, truth),
            rates=tuple(_rate_held(cell, truth) for cell in page if not cell.is_null),
            rounds=tuple(len(cell.rows) for cell in page),
            precise=tuple(pair.precise(rule.until) for pair in pairs),
        )


def _held(page: list[CellSummary], truth: Truth) -> bool:
    found = []
    for one in derive(page).decisions.found.values():
        ratio = 1.0 if one.topic is Topic.COMPUTE else truth.rate(one.cell) / truth.rate(one.base)
        if one.ratio.lo is not None and one.ratio.hi is not None:
            found.append(one.ratio.lo <= ratio <= one.ratio.hi)
    return all(found)


def _rate_held(cell: CellSummary, truth: Truth) -> bool:
    interval = cell.interval("samples_per_s")
    if interval is None or interval.lo is None or interval.hi is None:
        return False
    return interval.lo <= truth.rate(cell) <= interval.hi


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """What became of many ratios of two equal cells, each with rounds of its own.

    Attributes
    ----------
    missed_frac
        Share of the intervals that do not hold the true ratio.
    single_missed_frac
        The same for 95% intervals from the same rounds.
    rounds
        Mean number of rounds.
    precise_frac
        Share of the intervals that are as narrow as wanted.
    """

    missed_frac: float
    single_missed_frac: float
    rounds: float
    precise_frac: float


def sequential_ratios(rule: StoppingRule, spread: float, alpha: float, trials: int, seed: int) -> Ratios:
    """Draw ratios whose rounds end when their own interval is narrow enough; nothing else holds them up or on.

    Parameters
    ----------
    spread
        Standard deviation of the logarithm of a cell's rate, from process to process.
    alpha
        Error of each interval that the rule looks at.
    """
    rng = np.random.default_rng(seed)
    logs = spread * np.sqrt(2) * rng.standard_normal((trials, rule.max_replicates))
    going = np.ones(trials, dtype=bool)
    missed, single, precise = (np.zeros(trials, dtype=bool) for _ in range(3))
    rounds = np.zeros(trials)
    for count in range(rule.min_replicates, rule.max_replicates + 1):
        part = logs[:, :count]
        error, centre = part.std(axis=1, ddof=1) / np.sqrt(count), np.abs(part.mean(axis=1))
        half = t_quantile(1 - alpha / 2, count - 1) * error
        narrow = np.expm1(half) <= rule.until
        ends = going & (narrow | (count == rule.max_replicates))
        missed[ends] = (centre > half)[ends]
        single[ends] = (centre > t_quantile(1 - ALPHA / 2, count - 1) * error)[ends]
        precise[ends], rounds[ends] = narrow[ends], count
        going &= ~ends
    return Ratios(
        missed_frac=float(missed.mean()),
        single_missed_frac=float(single.mean()),
        rounds=float(rounds.mean()),
        precise_frac=float(precise.mean()),
    )


@dataclass(frozen=True, kw_only=True)
class Budgeted:
    """What became of many pairs of equal cells whose rounds a budget cut short.

    Attributes
    ----------
    ratios_missed_frac, rates_missed_frac
        Share of 95% intervals that do not hold the true ratio, and the true rate (its median).
    rounds
        Mean number of rounds.
    """

    ratios_missed_frac: float
    rates_missed_frac: float
    rounds: float


def budgeted_ratios(spread: float, budget_s: float, most: int, trials: int, seed: int) -> Budgeted:
    """Draw pairs of cells whose fixed number of rounds is cut short by a budget; all of their time is measured.

    A replicate takes a second at the cell's median rate, so slow replicates leave time for fewer.

    Parameters
    ----------
    spread
        Standard deviation of the logarithm of a cell's rate, from process to process.
    most
        The fixed number of rounds.
    """
    rng = np.random.default_rng(seed)
    missed = rates_missed = rounds = 0
    for logs in spread * rng.standard_normal((trials, 2, most)):
        took_s = np.exp(-logs)
        spent_s = np.cumsum(took_s.sum(axis=0))
        done = next(
            (
                n
                for n in range(FEWEST_REPLICATES, most)
                if not has_time(n, spent_s[n - 1], np.median(took_s[:, :n], axis=1).sum(), budget_s)
            ),
            most,
        )
        rounds += done
        missed += _missed(logs[0, :done] - logs[1, :done])
        rates_missed += _missed(logs[0, :done])
    return Budgeted(
        ratios_missed_frac=missed / trials, rates_missed_frac=rates_missed / trials, rounds=rounds / trials
    )


def _missed(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Return whether Student's 95% interval of the mean does not hold 0."""
    half = t_quantile(1 - ALPHA / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return bool(abs(logs.mean()) > half)
