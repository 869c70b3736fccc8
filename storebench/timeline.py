"""The timeline of one epoch in Chrome's trace format: the loop and each producer, on one clock.

It opens in Perfetto (ui.perfetto.dev) or chrome://tracing. A flow arrow connects
the batch that a producer made with the step that used it, and a counter shows the
number of finished batches in the queue. Format: the "Trace Event Format" document
of the Chromium project.
"""

from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, DataNotFoundError, UsageError
from storebench.formats.earlier_names import renamed_backend
from storebench.results import Record
from storebench.runs.step_files import find_table, read_steps

LOOP_TID = 0
"""Thread number of the training loop; producer w has number w + 2, so the loop's own producer has 1."""

MAKING = ("fetch", "decode", "prep")

_COLUMNS = (
    *("step", "samples", "start_ns", "data_wait_ns", "h2d_ns", "compute_ns"),
    *("worker", "fetch_start_ns", "fetch_ns", "decode_ns", "prep_ns", "queue_depth"),
)
_LATER = ("paused_ns",)

Event = dict[str, Any]


def choose_record(records: list[Record], wanted: str | None) -> Record:
    """Return the record of the cell with this id or backend; None returns the first one that has steps."""
    stepped = [record for record in records if record.steps_file]
    if wanted is not None:
        known = {wanted, renamed_backend(wanted)}
        stepped = [one for one in stepped if known & {one.cell.backend.name, one.cell.cell_id}]
    if not stepped:
        names = ", ".join(sorted({record.cell.backend.name for record in records}))
        raise UsageError(
            "no record with steps" + (f" for {wanted!r}" if wanted else ""), hint=f"Name one of: {names}."
        )
    return stepped[0]


def trace_events(record: Record, run: Path) -> list[Event]:
    """Return the events of one record's epoch.

    Raises
    ------
    DataNotFoundError
        The step table is not in the run's folder.
    CorruptDataError
        The record names a file elsewhere, or the file does not hold a step table.
    """
    name = str(record.steps_file)
    path = find_table(run, name)
    if path is None:
        raise DataNotFoundError(
            "the table of steps is missing", where=run / name, hint="Copy the whole run folder."
        )
    table = read_steps(path, name, _COLUMNS, later=_LATER)
    columns = {column: values.tolist() for column, values in table.items()}
    steps = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not steps:
        raise CorruptDataError("a table of no steps", where=path)
    origin = min(min(step["start_ns"], step["fetch_start_ns"]) for step in steps)
    events = _names(record, sorted({step["worker"] for step in steps}))
    for step in steps:
        events += _loop_events(step, origin) + _producer_events(step, origin) + _flow(step, origin)
        events.append(_counter(step, origin))
    return events


def _names(record: Record, workers: list[int]) -> list[Event]:
    cell = record.cell
    title = f"{cell.data.name} from {cell.backend.name}, {cell.cache}, replicate {record.replicate}"
    names = {LOOP_TID: "training loop"}
    names |= {
        worker + 2: "producer (in the loop)" if worker < 0 else f"worker {worker}" for worker in workers
    }
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": title}}]
    for tid, name in names.items():
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}})
        events.append(
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": tid, "args": {"sort_index": tid}}
        )
    return events


def _span(name: str, tid: int, start_ns: int, duration_ns: int, step: Event) -> Event:
    arguments = {"batch": step["step"], "samples": step["samples"]}
    return {
        "ph": "X",
        "name": name,
        "cat": "loop" if tid == LOOP_TID else "producer",
        "pid": 1,
        "tid": tid,
        "ts": start_ns / 1000,
        "dur": duration_ns / 1000,
        "args": arguments,
    }


def _in_a_row(names: tuple[str, ...], tid: int, start_ns: int, step: Event) -> list[Event]:
    events = []
    for name in names:
        duration = step.get(f"{name}_ns", 0)
        if duration:
            events.append(_span(name.replace("_", " "), tid, start_ns, duration, step))
        start_ns += duration
    return events


def _loop_events(step: Event, origin: int) -> list[Event]:
    return _in_a_row(("data_wait", "h2d", "compute", "paused"), LOOP_TID, step["start_ns"] - origin, step)


def _producer_events(step: Event, origin: int) -> list[Event]:
    return _in_a_row(MAKING, step["worker"] + 2, step["fetch_start_ns"] - origin, step)


def _flow(step: Event, origin: int) -> list[Event]:
    """Return the arrow from the end of making a batch to the start of the work on it.

    An arrow attaches to the slice that encloses its end, so it starts within the
    last slice of the making; a batch that took no time to make has none.
    """
    making = sum(step[f"{name}_ns"] for name in MAKING)
    if not making:
        return []
    common = {"name": "batch", "cat": "batch", "id": step["step"], "pid": 1}
    made = (step["fetch_start_ns"] + making - 1 - origin) / 1000
    used = (step["start_ns"] + step["data_wait_ns"] - origin) / 1000
    return [
        {**common, "ph": "s", "tid": step["worker"] + 2, "ts": made},
        {**common, "ph": "f", "bp": "e", "tid": LOOP_TID, "ts": used},
    ]


def _counter(step: Event, origin: int) -> Event:
    when = (step["start_ns"] - origin) / 1000
    return {
        "ph": "C",
        "name": "finished batches",
        "pid": 1,
        "ts": when,
        "args": {"ready": step["queue_depth"]},
    }
