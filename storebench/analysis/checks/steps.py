"""The rules for a record and its step table: every figure follows from the steps, and producers keep to their epoch."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.analysis.checks.findings import Finding, Rule, agree, finding
from storebench.analysis.checks.rules import decodes
from storebench.errors import CorruptDataError
from storebench.record.figures import epoch_record, portion_sums, with_cold_rates
from storebench.record.merging import RANK, job_steps, rank_count
from storebench.record.schema import Record
from storebench.record.steps import StepTable, step_columns

# Decoding a sample takes as long in each epoch and pass of a process; a busy machine explains less than this.
DECODE_MOST_RATIO, DECODE_LEAST_S = 5.0, 0.1

PASS_MOST_RATIO = 20.0
"""The quickest of a few batches varies more on a busy machine, and with the number of workers that share a core.

A copy of kept pixels takes a hundredth of decoding.
"""

# Figures of a record that its steps determine.
_FOLLOWS = (
    "samples", "steps", "epoch_s", "timed_samples", "timed_steps", "timed_s", "samples_per_s", "payload_bytes",
    "payload_bytes_per_s", "data_wait_s", "h2d_s", "compute_s", "overhead_s", "data_wait_frac", "accelerator_util_frac",
    "fetch_s", "decode_s", "prep_s", "handover_s", "time_to_first_batch_s", "prefetched_samples",
)  # fmt: skip


def check_steps(record: Record, run: Path) -> list[Finding]:
    """Return the findings about a usable record and its step table in a run's folder."""
    if record.steps_file is None:
        none = "nothing shows the steps that the sums are of"
        return [finding(Rule.STEPS, record, "steps_file", none)] if record.steps and record.code else []
    try:
        return list(_table(record, step_columns(run, record.steps_file)))
    except (CorruptDataError, KeyError, ValueError, IndexError) as error:
        what = error.what if isinstance(error, CorruptDataError) else repr(error)
        return [finding(Rule.STEPS, record, "steps_file", f"{record.steps_file} cannot be read: {what}")]


def _table(record: Record, table: StepTable) -> Iterator[Finding]:
    if (ranks := rank_count(table)) != record.cell.ranks:
        message = f"its steps are those of {ranks} ranks, not of {record.cell.ranks}"
        yield finding(Rule.STEPS, record, "steps_file", message)
        return
    for name, recorded, computed in differences(record, figures(record, table)):
        yield finding(Rule.STEPS, record, name, f"{recorded}, but its steps give {computed}")
    yield from _producers(record, table)
    yield from _passes(record, table)


def figures(record: Record, table: StepTable) -> Record:
    """Return a record with every figure that follows from its steps, as the worker that wrote it computes them."""
    right = epoch_record(record, table)
    whole = job_steps(table) if RANK in table else table
    right = with_cold_rates(dataclasses.replace(right, cold_rates=()), whole)
    part = record.portion
    if part is not None:
        cut = slice(part.first_step, part.first_step + part.steps)
        sums = portion_sums({key: column[cut] for key, column in whole.items()}, part.edge_steps)
        right = dataclasses.replace(right, portion=dataclasses.replace(part, **sums))
    return right


def differences(record: Record, right: Record) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, recorded, computed) for each figure of a record that its steps contradict."""
    for name in _FOLLOWS:
        if not agree(getattr(record, name), getattr(right, name)):
            yield name, getattr(record, name), getattr(right, name)
    if record.data_wait_ns != right.data_wait_ns:
        yield "data_wait_ns", record.data_wait_ns, right.data_wait_ns
    pairs = list(zip(record.cold_rates, right.cold_rates, strict=False))
    same = all(all(map(agree, dataclasses.astuple(a), dataclasses.astuple(b))) for a, b in pairs)
    if len(record.cold_rates) != len(right.cold_rates) or not same:
        yield "cold_rates", record.cold_rates, right.cold_rates
    if record.portion is not None and right.portion is not None:
        for field in dataclasses.fields(record.portion):
            recorded, computed = getattr(record.portion, field.name), getattr(right.portion, field.name)
            if recorded is not computed and not agree(recorded, computed):
                yield f"portion.{field.name}", recorded, computed


def _producers(record: Record, table: StepTable) -> Iterator[Finding]:
    """Find batches that were made before the epoch, or were not ready when the loop had them."""
    asked_ns = table["start_ns"]
    if not len(asked_ns):
        return
    late_ns = table["ready_ns"] - asked_ns - table["data_wait_ns"]
    yield from _first(record, "ready_ns", late_ns, "was ready {} after the loop had it")
    early_ns = asked_ns.min() - table["fetch_start_ns"]
    yield from _first(record, "fetch_start_ns", early_ns, "was begun {} before the epoch")


def _first(record: Record, figure: str, excess_ns: npt.NDArray[np.int64], message: str) -> Iterator[Finding]:
    rows = np.flatnonzero(excess_ns > 0)
    if len(rows):
        words = message.format(f"{int(excess_ns[rows[0]]) / 1e6:.3g} ms")
        yield finding(Rule.STEPS, record, figure, f"the batch in row {rows[0]} of its steps {words}")


def _passes(record: Record, table: Mapping[str, npt.NDArray[Any]]) -> Iterator[Finding]:
    """Find a pass over the samples whose pixels an earlier pass of the same epoch had decoded."""
    passes = record.cell.passes or 1
    if passes == 1 or record.cell.ranks > 1 or not decodes(record) or len(table["decode_ns"]) % passes:
        return
    sharing = record.cell.workers / record.conditions.cores if record.conditions is not None else 1.0
    samples = table["samples"].reshape(passes, -1)
    full = samples[0] == samples.max()  # a few images are decoded between two interruptions, or not
    of_pass, payload = (table[name].reshape(passes, -1)[:, full] for name in ("decode_ns", "payload_bytes"))
    # Other work slows down many batches of a pass, but not its quickest ones.
    quick_ns, quick_per_byte = (
        np.quantile(costs, 0.1, axis=1, method="lower")
        for costs in (of_pass, of_pass / np.maximum(payload, 1))
    )
    slowest, fastest = int(quick_per_byte.argmax()), int(quick_per_byte.argmin())
    enough = of_pass[slowest].sum() / 1e9 >= DECODE_LEAST_S
    most = PASS_MOST_RATIO * max(1.0, sharing)
    # A pass may have all the large files: a reader that keeps pixels is quicker per batch and per byte.
    if enough and all(quick[slowest] > most * quick[fastest] for quick in (quick_ns, quick_per_byte)):
        message = (
            f"the quickest batches took {quick_ns[slowest] / 1e6:.3g} ms to decode in pass {slowest} of the epoch and"
            f" {quick_ns[fastest] / 1e6:.3g} ms in pass {fastest}: the reader keeps decoded pixels"
        )
        yield finding(Rule.ARITHMETIC, record, "decode_s", message)
