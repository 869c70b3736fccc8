"""The assertions of a page's sentences as data, so that tests and simulated pages can check them without the wording."""

import enum
from dataclasses import dataclass

from storebench.report.cells import CellSummary
from storebench.report.intervals import Interval


class Says(enum.StrEnum):
    """The kind of an assertion about a subject and, in some kinds, an object."""

    FASTER = "faster"
    EQUAL = "equal"
    """The two differ by less than 10%, proven."""
    FED = "fed"
    """The loop waits less than 10% of its time."""
    UNDECIDED = "undecided"
    PAYS = "pays"
    """Converting the object's store into the subject's has paid for itself after `figure` epochs."""
    SHARE = "share"
    """A part of the work explains a share of the difference."""
    CONTENTION = "contention"
    """Loading through the subject slows down the network's computing."""
    AMPLIFIED = "amplified"


@dataclass(frozen=True, kw_only=True, eq=False)
class Conclusion:
    """One assertion.

    Attributes
    ----------
    figure
        The figure that stands in the sentence, with the interval that carries the assertion; None without one.
    """

    says: Says
    subject: CellSummary
    object: CellSummary | None = None
    figure: Interval | None = None
    part: str = ""

    def contradicts(self, other: "Conclusion") -> bool:
        """Whether both cannot be true: one way round and the other, or a proven thing that is called undecided."""
        pair, theirs = (_pair(self), _pair(other))
        if None in (*pair, *theirs) or set(pair) != set(theirs):
            return False
        if self.says is other.says is Says.FASTER:
            return pair != theirs
        return Says.UNDECIDED in (self.says, other.says) and bool({self.says, other.says} & _PROVEN)


_PROVEN = {Says.FASTER, Says.EQUAL}


def _pair(one: Conclusion) -> tuple[object, object]:
    return one.subject.key, None if one.object is None else one.object.key
