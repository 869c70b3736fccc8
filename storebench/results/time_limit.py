"""The message of a replicate that was killed at its time limit."""

NO_ANSWER_AFTER = "no answer after"
"""Followed by the time limit in seconds."""


def ran_out_of_time(failure: str) -> bool:
    """Return True if a failure means that the process was killed at its time limit."""
    return NO_ANSWER_AFTER in failure
