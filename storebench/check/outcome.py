"""From cell verdicts to one exit code and one line."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from storebench import errors
from storebench.check.judge import CellResult, State
from storebench.check.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a whole check says.

    Attributes
    ----------
    exit_code
        As in the design's table: integrity (5) before regression (1) before not comparable (3)
        before inconclusive (4).
    line
        The reason for the exit code, in one line.
    """

    exit_code: int
    line: str
    counts: dict[str, int]


def outcome(results: Sequence[CellResult], policy: Policy, *, strict: bool = False) -> Outcome:
    """Return the exit code that the results of all cells add up to.

    Cells that the baseline lacks, single inconclusive ones and (in a run of only some
    cells) missing ones are told but pass; `strict` lets none of them pass.
    """
    code, line = _decide(results, policy, strict=strict)
    counts = Counter(str(one.state) for one in results)
    return Outcome(
        exit_code=code, line=line, counts={str(state): counts[state] for state in State if counts[state]}
    )


def _decide(results: Sequence[CellResult], policy: Policy, *, strict: bool) -> tuple[int, str]:
    by_state = {state: [one for one in results if one.state is state] for state in State}
    measured = len(results) - len(by_state[State.MISSING])
    compared = measured - len(by_state[State.NEW])
    undecided = by_state[State.INCONCLUSIVE]
    wide = len(undecided) > policy.max_inconclusive_frac * compared
    missing = by_state[State.MISSING] if strict else []
    new = by_state[State.NEW] if strict or not compared else []
    complaints = (
        (errors.EXIT_INTEGRITY, "failed", by_state[State.FAILED]),
        (errors.EXIT_INTEGRITY, "not measured", missing if measured else by_state[State.MISSING]),
        (errors.EXIT_REGRESSION, "regression", by_state[State.WORSE]),
        (errors.EXIT_NOT_COMPARABLE, "not comparable", by_state[State.NOT_COMPARABLE]),
        (errors.EXIT_NOT_COMPARABLE, "the baseline lacks", new),
        (errors.EXIT_INCONCLUSIVE, "inconclusive", undecided if strict or wide else []),
    )
    for code, what, cells in complaints:
        if cells:
            return code, f"{what}, {len(cells)} of {len(results)} cells: {_named(cells)}"
    return errors.EXIT_OK, f"no regression in {compared} cells{_remarks(by_state)}"


def _remarks(by_state: dict[State, list[CellResult]]) -> str:
    told = (State.INCONCLUSIVE, State.MISSING, State.NEW)
    parts = [f"{len(by_state[state])} {state}" for state in told if by_state[state]]
    return f" ({', '.join(parts)})" if parts else ""


def _named(results: Sequence[CellResult]) -> str:
    """Name the first cells, each with its reason."""
    shown = [f"{one.label} ({one.reason})" if one.reason else one.label for one in results[:3]]
    more = len(results) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
