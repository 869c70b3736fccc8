"""The words of a failure that say that a replicate was killed at its time limit."""

NO_ANSWER_AFTER = "no answer after"
"""They precede the seconds that a replicate was given."""


def ran_out_of_time(failure: str) -> bool:
    """Return whether a failure is that of a process that was killed because of its time limit."""
    return NO_ANSWER_AFTER in failure
