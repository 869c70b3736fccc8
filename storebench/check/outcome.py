"""From cell verdicts to one exit code, one line and one table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from storebench import errors
from storebench.analysis.comparison import ALPHA
from storebench.analysis.table import Table
from storebench.check.judge import CellResult, CellState
from storebench.units import number_of

# A larger share of inconclusive cells decides nothing.
MOST_INCONCLUSIVE_FRAC = 0.5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit_code: int
    """Integrity (5) takes precedence over regression (1), not comparable (3) and inconclusive (4), in this order."""
    line: str
    """The reason for the exit code."""
    counts: dict[str, int]

    @property
    def summary(self) -> str:
        """The line with the number of cells in each state, and the exit code."""
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        return f"{self.line} [{'; '.join(filter(None, (counts, f'exit code {self.exit_code}')))}]"


SAME_CODE = Outcome(exit_code=errors.EXIT_OK, line="both sides are the same code: no regression", counts={})


def outcome(results: Sequence[CellResult]) -> Outcome:
    """Return the exit code for the results of cells."""
    code, line = _decide(results)
    if code in (errors.EXIT_OK, errors.EXIT_INCONCLUSIVE):
        visible = [result.visible_frac or 0.0 for result in results if result.state is CellState.INCONCLUSIVE]
        seen = f"; the smallest slow-down that this run can see is {max(visible):.0%}" if any(visible) else ""
        line = f"{line}{seen}"
    counts = Counter(str(result.state) for result in results)
    return Outcome(
        exit_code=code, line=line, counts={str(state): counts[state] for state in CellState if counts[state]}
    )


def _decide(results: Sequence[CellResult]) -> tuple[int, str]:
    by_state = {state: [result for result in results if result.state is state] for state in CellState}
    missing, new = by_state[CellState.MISSING], by_state[CellState.NEW]
    counted = len(results) - len(missing) - len(new)
    undecided = by_state[CellState.INCONCLUSIVE]
    wide = len(undecided) > MOST_INCONCLUSIVE_FRAC * (counted - len(by_state[CellState.NOT_GATED]))
    complaints = (
        (errors.EXIT_INTEGRITY, "failed", by_state[CellState.FAILED]),
        (errors.EXIT_INTEGRITY, "missing", missing),
        (errors.EXIT_REGRESSION, "regression", by_state[CellState.WORSE]),
        (errors.EXIT_NOT_COMPARABLE, "not comparable", by_state[CellState.NOT_COMPARABLE]),
        (errors.EXIT_NOT_COMPARABLE, "the baseline lacks", [] if counted else new),
        (errors.EXIT_INCONCLUSIVE, "inconclusive", undecided if wide else []),
        (
            errors.EXIT_INCONCLUSIVE,
            "perhaps slower",
            [result for result in undecided if result.perhaps_slower],
        ),
    )
    for code, complaint, cells in complaints:
        if cells:
            named = [f"{cell.label} ({cell.reason})" if cell.reason else cell.label for cell in cells[:3]]
            named += [f"and {len(cells) - 3} more"] if len(cells) > 3 else []
            lead = f"{complaint}, {len(cells)} of {number_of(len(results), 'cell')}"
            return code, f"{lead}: {'; '.join(named)}"
    states = (CellState.INCONCLUSIVE, CellState.NOT_GATED, CellState.NEW)
    parts = [f"{len(by_state[state])} {state}" for state in states if by_state[state]]
    remarks = f" ({', '.join(parts)})" if parts else ""
    return errors.EXIT_OK, f"no regression in {number_of(counted, 'cell')}{remarks}"


def verdict_table(results: Sequence[CellResult]) -> Table:
    """Return the cells with their verdicts, the worst first."""
    order = list(CellState)
    rows = []
    for result in sorted(results, key=lambda result: (order.index(result.state), -(result.ratio or 0))):
        interval = ""
        if result.low is not None and result.high is not None:
            interval = f"{result.low:.3f} to {result.high:.3f}"
            interval += f" ({result.level:.0%})" if result.level and result.level > 1 - ALPHA else ""
        rows.append(
            (
                result.label,
                str(result.state),
                "" if result.ratio is None else f"{result.ratio:.3f}",
                interval,
                "" if result.replicates == (0, 0) else f"{result.replicates[0]}/{result.replicates[1]}",
                result.reason,
            )
        )
    return Table(
        caption="The contender's time over the baseline's: above 1 is slower",
        head=("cell", "verdict", "time ratio", "95% interval", "n", "why"),
        rows=tuple(rows),
    )
