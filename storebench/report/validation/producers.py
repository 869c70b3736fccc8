"""Compare the times of producers with those of the loop: a batch is made within its epoch, before the loop has it."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from storebench.ranks.merging import RANK
from storebench.report.validation.findings import Finding, Rule, finding
from storebench.results import Record
from storebench.settings.words import Share
from storebench.training.step_table import StepTable

COLUMNS = ("start_ns", "worker", "fetch_start_ns", "ready_ns")
"""Columns of a step table that are needed besides those of `storebench.report.validation.validate`."""


def check_producers(record: Record, steps: StepTable) -> Iterator[Finding]:
    """Yield a finding for each rule that the producers of one usable record break, with the first step that breaks it.

    Work before the first request of an epoch or in a pause of the loop would be in no rate, and a batch that is not
    ready when the loop gets it was not waited for. Producers and the loop of a node read one clock.

    Parameters
    ----------
    steps
        Columns of its step table, one row per step and rank, warm-up steps included.
    """
    asked_ns, begun_ns, ready_ns = steps["start_ns"], steps["fetch_start_ns"], steps["ready_ns"]
    if not len(asked_ns):
        return
    late_ns = ready_ns - asked_ns - steps["data_wait_ns"]
    yield from _first(record, "ready_ns", late_ns, "was ready {} after the loop had it")
    early_ns = _first_asked_ns(record, steps) - begun_ns
    yield from _first(record, "fetch_start_ns", early_ns, "was begun {} before the epoch")
    if record.cell.share is not Share.NONE:
        return  # a rank may get pieces of batches that the loop of another rank made
    by_loop = steps["worker"] < 0
    unasked_ns = np.where(by_loop & (early_ns <= 0), asked_ns - begun_ns, 0)
    yield from _first(
        record, "fetch_start_ns", unasked_ns, "was made by the loop, but begun {} before it was requested"
    )
    strangers = np.flatnonzero(steps["worker"] >= record.cell.workers)
    if len(strangers):
        message = f"producer {steps['worker'][strangers[0]]} made a batch, but the cell has {record.cell.workers} workers"
        yield finding(Rule.STEPS, record, "worker", message)


def _first_asked_ns(record: Record, steps: StepTable) -> npt.NDArray[np.int64]:
    """Return for each row the time at which its rank requested its first batch; the first rank's where ranks share readers."""
    asked_ns: npt.NDArray[np.int64] = steps["start_ns"]
    if RANK not in steps or record.cell.share is not Share.NONE:
        return np.full(len(asked_ns), asked_ns.min())
    first_ns: npt.NDArray[np.int64] = np.full(int(steps[RANK].max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, steps[RANK], asked_ns)
    return first_ns[steps[RANK]]


def _first(record: Record, figure: str, excess_ns: npt.NDArray[np.int64], message: str) -> Iterator[Finding]:
    """Yield a finding about the first row with an excess, if there is one."""
    rows = np.flatnonzero(excess_ns > 0)
    if len(rows):
        row = int(rows[0])
        words = message.format(f"{int(excess_ns[row]) / 1e6:.3g} ms")
        yield finding(Rule.STEPS, record, figure, f"the batch in row {row} of its steps {words}")
