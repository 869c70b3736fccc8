"""The progress of a replicate, and a summary of each epoch of a job, on standard error."""

import itertools
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storebench.cli.common import PLAIN_LINE_EVERY_S, say
from storebench.cli.streams import rewrite

if TYPE_CHECKING:
    from storebench.ranks.progress import Position
    from storebench.results import JobFacts, Record

_REWRITE_EVERY_S = 1.0


class ProgressLines:
    """The progress of a running replicate: one rewritten line on a terminal, plain lines otherwise."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = ""
        self._said_s = 0.0

    def began(self) -> None:
        """Note that a replicate starts now."""
        self._said_s = time.monotonic()

    def show(self, text: str) -> None:
        """Show its progress, at a limited rate."""
        now_s = time.monotonic()
        if now_s - self._said_s < (_REWRITE_EVERY_S if self._terminal else PLAIN_LINE_EVERY_S):
            return
        self._said_s, line = now_s, f"    {text}"
        if not self._terminal:
            say(line)
        elif line != self._shown:
            rewrite(line[: shutil.get_terminal_size().columns - 1])
            self._shown = line

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._shown:
            rewrite("")
            self._shown = ""


def progress_line(positions: "Sequence[Position]") -> str:
    """Return the progress of a job's ranks in one line, the ranks that are furthest behind first."""
    if len(positions) == 1:
        [alone] = positions
        return alone.name + (f": {alone.batches:,} of {alone.total:,} batches" if alone.total else "")
    groups = itertools.groupby(
        sorted(positions, key=lambda position: (position.phase, position.rank)),
        lambda position: position.phase,
    )
    return "; ".join(_together(list(group)) for _, group in groups)


def _together(group: "Sequence[Position]") -> str:
    """Return the progress of the ranks in one phase: "ranks 0 to 3: epoch 0, 118 to 121 batches (fewest: rank 2)"."""
    least = min(group, key=lambda position: position.batches)
    most = max(position.batches for position in group)
    line = f"{_numbers([position.rank for position in group])}: {group[0].name}"
    if not most:
        return line
    if least.batches == most:
        return f"{line}, {most:,} {'batch' if most == 1 else 'batches'}"
    return f"{line}, {least.batches:,} to {most:,} batches (fewest: rank {least.rank})"


def _numbers(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def job_line(record: "Record") -> str:
    """Return the rates and waits of a job's ranks in an epoch, in one line; "" for one process, or without steps."""
    job = record.job
    if job is None or not record.timed_steps:
        return ""
    parts = [
        f"{job.ranks} ranks: {job.samples_per_s_min:,.0f} to {job.samples_per_s_max:,.0f} samples/s each",
        f"skew {job.skew:.1%}",
    ]
    if job.wait_for_slowest_s is not None:
        parts.append(
            f"wait for the slowest {1000 * job.wait_for_slowest_s / record.timed_steps:.2f} ms per step"
        )
    return ", ".join([*parts, *_exposed(job)])


def _exposed(job: "JobFacts") -> list[str]:
    if job.exposed_communication_s is None:
        return []
    ring = "" if job.ring_bound_s is None else f" (ideal ring {1000 * job.ring_bound_s:.2f} ms)"
    return [f"exposed communication {1000 * job.exposed_communication_s:.2f} ms per step{ring}"]
