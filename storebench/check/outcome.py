"""From cell verdicts to one exit code, one line and one table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from storebench import errors
from storebench.analysis.comparison import PRACTICAL_FRAC
from storebench.analysis.labels import with_interval
from storebench.analysis.table import Table
from storebench.check.judge import CellResult, CellState
from storebench.units import number_of

# Most cells that the line names.
MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit_code: int
    """Integrity (5) takes precedence over regression (1), not comparable (3) and inconclusive (4), in this order."""
    line: str
    """The reason for the exit code."""


SAME_CODE = Outcome(exit_code=errors.EXIT_OK, line="both sides are the same code: no regression")


# The states that give an exit code, the gravest first.
_CODES = (
    (errors.EXIT_INTEGRITY, (CellState.FAILED, CellState.MISSING)),
    (errors.EXIT_REGRESSION, (CellState.WORSE,)),
    (errors.EXIT_NOT_COMPARABLE, (CellState.NOT_COMPARABLE,)),
)


def outcome(results: Sequence[CellResult]) -> Outcome:
    """Return the exit code for the results of cells, and the line that says why."""
    states = Counter(result.state for result in results)
    code = next((code for code, of in _CODES if any(states[state] for state in of)), errors.EXIT_OK)
    if code == errors.EXIT_OK and states[CellState.NEW] == len(results):
        code = errors.EXIT_NOT_COMPARABLE
    if code == errors.EXIT_OK and any(result.perhaps_slower for result in results):
        code = errors.EXIT_INCONCLUSIVE
    loud = [result for result in _worst_first(results) if not result.is_quiet]
    told = [result for result in loud if not result.is_apart]
    parts = [_told(result) for result in told[:MOST_NAMED]]
    parts += [f"{len(told) - MOST_NAMED} more"] if len(told) > MOST_NAMED else []
    if apart := [
        result.ratio.mid for result in loud if result.is_apart and result.ratio and result.ratio.mid
    ]:
        ratios = " to ".join(dict.fromkeys((f"{min(apart):.2f}", f"{max(apart):.2f}")))
        parts.append(
            f"{number_of(len(apart), 'cell')} not interleaved, {ratios} times as long: "
            "'storebench bench --against' runs both sides in turn"
        )
    quiet = len(results) - len(loud)
    parts += [f"{number_of(quiet, 'cell')} without a sign of change"] if quiet else []
    by_counters = states[CellState.NOT_GATED]
    parts += [f"{by_counters} of them by their counters alone"] if by_counters else []
    return Outcome(exit_code=code, line="; ".join(parts))


def _worst_first(results: Sequence[CellResult]) -> list[CellResult]:
    order = list(CellState)
    return sorted(
        results, key=lambda result: (order.index(result.state), -((result.ratio and result.ratio.mid) or 0))
    )


def _told(result: CellResult) -> str:
    """Return a cell and its verdict: "LMDB 1.49 times slower [1.18, 1.89]"."""
    mid, low, high = (result.ratio.mid, result.ratio.low, result.ratio.high) if result.ratio else (None,) * 3
    if mid is None or low is None or high is None:
        return f"{result.name}: {result.reason or result.state}"
    interval = f"[{low:.2f}, {high:.2f}]"
    if result.state is CellState.INCONCLUSIVE:
        return f"{result.name} probably slower: {mid:.2f} {interval}"
    if result.state is CellState.WORSE and low > 1 + PRACTICAL_FRAC:
        return f"{result.name} {mid:.2f} times slower {interval}"
    if result.state is CellState.BETTER:
        return f"{result.name} {1 / mid:.2f} times faster [{1 / high:.2f}, {1 / low:.2f}]"
    return f"{result.name}: {result.reason}"


def verdict_table(results: Sequence[CellResult]) -> Table:
    """Return the cells with their verdicts, the worst first."""
    return Table(
        caption="The contender's time over the baseline's, above 1 is slower, with its interval",
        head=("cell", "verdict", "time", "quickest batch", "rounds", "why"),
        rows=tuple(
            (
                result.name,
                str(result.state),
                with_interval(result.time or result.ratio),
                with_interval(result.quickest),
                "" if result.replicates == (0, 0) else f"{result.replicates[0]}/{result.replicates[1]}",
                result.reason,
            )
            for result in _worst_first(results)
        ),
    )
