"""Say what rates of rounds show."""

from collections.abc import Sequence

from storebench.analysis.comparison import Ratio, compare


def ratio_words(found: Ratio, digits: int = 2) -> str:
    """Return the ratio with its interval; "[-]" where one round shows no spread."""
    if found.mid is None:
        return "no ratio"
    if found.low is None or found.high is None:
        return f"{found.mid:.{digits}f} [-]"
    return f"{found.mid:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def claim_line(
    words: str, contender: Sequence[float], baselines: Sequence[Sequence[float]], least: float | None = None
) -> str:
    """Return a line with the ratio to each baseline, and whether the intervals show at least `least`."""
    found = [compare(baseline, contender) for baseline in baselines]
    line = f"{words}: {' and '.join(map(ratio_words, found))}"
    if least is None:
        return line
    if any(one.high is not None and one.high < least for one in found):
        return f"{line} (asked: {least:g}) missed"
    met = all(one.low is not None and one.low >= least for one in found)
    return f"{line} (asked: {least:g}) {'met' if met else 'undecided'}"
