"""The timeline of epochs in Chrome's trace format: the loop and each producer of a cell, on one clock."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, UsageError
from storebench.record.merging import RANK, rank_tables
from storebench.record.schema import Cell, Record
from storebench.record.steps import IO_COLUMNS, MOST_STEPS, step_columns
from storebench.settings.words import Share
from storebench.units import number_of

# Thread number of the training loop. Worker w has number w + 2; the loop's own producer is worker -1 and has 1.
LOOP_TID = 0

MAKING = ("fetch", "decode", "prep")
_LOOP = ("data_wait", "h2d", "compute", "paused")

# Fewest digits of an id that name a cell.
FEWEST_ID_DIGITS = 4

_COLUMNS = (
    *("step", "samples", "payload_bytes", "start_ns", "data_wait_ns", "h2d_ns", "compute_ns"),
    *("worker", "fetch_start_ns", "fetch_ns", "decode_ns", "prep_ns", "queue_depth"),
)
_LATER = ("paused_ns", *IO_COLUMNS, RANK)

# Column of a step table -> name of its counter in the trace, and the unit of its values.
_COUNTERS = {
    "payload_bytes": ("payload per step", "bytes"),
    "device_read_bytes": ("device reads per step", "bytes"),
    "read_calls": ("read calls per step", "calls"),
    "major_faults": ("major faults per step", "faults"),
    "minor_faults": ("minor faults per step", "faults"),
}

_MOST_LISTED = 8

Event = dict[str, Any]


def choose_record(
    records: Sequence[Record], wanted: str | None, *, replicate: int | None = None, epoch: int | None = None
) -> Record:
    """Return the first record with steps of one cell."""
    stepped = [record for record in records if record.steps_file]
    fitting = [record for record in stepped if wanted is None or _fits(record.cell, wanted)]
    cells = {record.cell.cell_id: record.cell for record in fitting}
    if not fitting:
        wanted_ones = [record for record in records if wanted is None or _fits(record.cell, wanted)]
        reason = next((f": it failed ({record.failure})" for record in wanted_ones if record.failure), "")
        suffix = f" for {wanted!r}" if wanted else ""
        names = ", ".join(sorted({record.cell.backend.name for record in stepped}))
        raise UsageError(
            f"no record with steps{suffix}{reason}",
            hint=f"Name one of: {names}." if names else "No record of this run has steps.",
        )
    if wanted is not None and len(cells) > 1:
        raise UsageError(
            f"{len(cells)} cells match {wanted!r}",
            where="--cell",
            hint=f"Name one by its id: {_listed(cells)}.",
        )
    for record in fitting:
        if replicate in (None, record.replicate) and epoch in (None, record.epoch):
            return record
    last = (max(record.replicate for record in fitting), max(record.epoch for record in fitting))
    raise UsageError(
        "no record with steps has this --replicate and --epoch",
        hint=f"Replicates are 0 to {last[0]}, epochs 0 to {last[1]}.",
    )


def _fits(cell: Cell, wanted: str) -> bool:
    by_id = len(wanted) >= FEWEST_ID_DIGITS and cell.cell_id.startswith(wanted)
    return by_id or cell.backend.name == wanted


def _listed(cells: Mapping[str, Cell]) -> str:
    """Return the ids of cells, each with the settings in which the cells differ."""
    fields = {cell_id: cell.fields() for cell_id, cell in cells.items()}
    first = next(iter(fields.values()))
    differing = [name for name in first if any(settings[name] != first[name] for settings in fields.values())]
    labels = [
        f"{cell_id} ({', '.join(f'{name} {settings[name]}' for name in differing)})"
        for cell_id, settings in list(fields.items())[:_MOST_LISTED]
    ]
    more = len(fields) - _MOST_LISTED
    return ", ".join([*labels, *([f"and {more} more"] if more > 0 else [])])


def trace_events(record: Record, run: Path) -> list[Event]:
    """Return the events of an epoch; each rank is a process of its own, and they are numbered from 1 on."""
    ranks = _steps(record, run)
    origin = min(min(step["start_ns"], step["fetch_start_ns"]) for steps in ranks for step in steps)
    cell = record.cell
    loading = f"{number_of(cell.workers, 'worker')} by {cell.loader}" if cell.workers else "no workers"
    loading += f", share {cell.share}" if cell.share is not Share.NONE else ""
    title = (
        f"{cell.data.name} from {cell.backend.name}, {cell.cache}, {loading}, replicate {record.replicate}"
    )
    events: list[Event] = []
    for pid, steps in enumerate(ranks, start=1):
        of_ranks = f", rank {pid - 1} of {len(ranks)}" * (len(ranks) > 1)
        process: Event = {"ph": "M", "name": "process_name", "args": {"name": title + of_ranks}}
        events += [{**event, "pid": pid} for event in (process, *_rank_events(steps, origin, pid))]
    return events


def _rank_events(steps: list[Event], origin: int, pid: int) -> list[Event]:
    names = {LOOP_TID: "training loop"} | {
        worker + 2: "producer (in the loop)" if worker < 0 else f"worker {worker}"
        for worker in sorted({step["worker"] for step in steps})
    }
    events: list[Event] = []
    for tid, name in names.items():
        events.append({"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}})
        events.append({"ph": "M", "name": "thread_sort_index", "tid": tid, "args": {"sort_index": tid}})
    for step in steps:
        events += _in_a_row(_LOOP, LOOP_TID, step["start_ns"] - origin, step)
        events += _in_a_row(MAKING, step["worker"] + 2, step["fetch_start_ns"] - origin, step)
        events += _flow(step, origin, pid) + _counters(step, origin)
    last = steps[-1]
    end = last["start_ns"] + sum(last.get(f"{name}_ns", 0) for name in _LOOP)
    return events + _counters(dict.fromkeys(last, 0) | {"start_ns": end}, origin)


def _steps(record: Record, run: Path) -> list[list[Event]]:
    """Return the steps of each rank, as far as the trace shows them."""
    name = str(record.steps_file)
    table = step_columns(run, name)
    missing = [column for column in _COLUMNS if column not in table]
    if missing or not len(table["step"]):
        wrong = f"a step table without the column {missing[0]}" if missing else "a table of no steps"
        raise CorruptDataError(wrong, where=run / name)
    shown = {column: table[column] for column in (*_COLUMNS, *_LATER) if column in table}
    parts = ({name: values.tolist() for name, values in part.items()} for part in rank_tables(shown))
    return [[dict(zip(part, row, strict=True)) for row in zip(*part.values(), strict=True)] for part in parts]


def _in_a_row(names: tuple[str, ...], tid: int, start_ns: int, step: Event) -> list[Event]:
    """Return the spans of a step on one thread, each from the end of the one before it."""
    events: list[Event] = []
    common = {"ph": "X", "cat": "loop" if tid == LOOP_TID else "producer", "tid": tid}
    for name in names:
        duration = step.get(f"{name}_ns", 0)
        arguments = {"batch": step["step"], "samples": step["samples"]}
        if name == "fetch":
            arguments |= {column: step[column] for column in _COUNTERS if column in step}
        span = {
            "name": name.replace("_", " "),
            "ts": start_ns / 1000,
            "dur": duration / 1000,
            "args": arguments,
        }
        events += [common | span] if duration else []
        start_ns += duration
    return events


def _flow(step: Event, origin: int, pid: int) -> list[Event]:
    """Return the arrow from the end of making a batch to the start of the work on it."""
    making = sum(step[f"{name}_ns"] for name in MAKING)
    if not making:
        return []
    # Ids of arrows count for the whole trace, not per process.
    common = {"name": "batch", "cat": "batch", "id": step["step"] + (pid - 1) * MOST_STEPS}
    made = (step["fetch_start_ns"] + making - 1 - origin) / 1000
    used = (step["start_ns"] + step["data_wait_ns"] - origin) / 1000
    return [
        {**common, "ph": "s", "tid": step["worker"] + 2, "ts": made},
        {**common, "ph": "f", "bp": "e", "tid": LOOP_TID, "ts": used},
    ]


def _counters(step: Event, origin: int) -> list[Event]:
    """Return the values that the counters have from the beginning of a step on."""
    values = [("finished batches", "ready", step["queue_depth"])]
    values += [(name, unit, step[column]) for column, (name, unit) in _COUNTERS.items() if column in step]
    when = (step["start_ns"] - origin) / 1000
    return [{"ph": "C", "name": name, "ts": when, "args": {unit: value}} for name, unit, value in values]
