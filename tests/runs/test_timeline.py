"""The trace is well-formed Chrome trace format: nothing overlaps, nothing dangles."""

import dataclasses
import functools
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from storebench.errors import UsageError
from storebench.ranks.group import Group
from storebench.record.lines import append_records, read_records
from storebench.record.schema import Record
from storebench.report.trace import choose_record, trace_events
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench, cell_job, only_record, scenario, steps_of
from tests.support.rank_processes import in_ranks

Event = dict[str, Any]
ROUNDING_US = 2e-3


@pytest.fixture(scope="module")
def traced(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    """Run a cell with two workers, with every kind of span: PNG is decoded, and CaffeNet's images are cropped."""
    run = tmp_path_factory.mktemp("traced")
    matrix = {"dataset": "mnist", "synthetic": True, "limit": 96, "batch_size": 8, "model": "tiny"}
    [cell] = scenario(**matrix, backends=["png"], workers=2).cells()
    record = only_record(cell, bench.stores, run)
    append_records(run, [record])
    return run, record


@pytest.fixture(scope="module")
def events(traced: tuple[Path, Record], bench: Bench) -> list[Event]:
    """Return the events that ``storebench trace`` wrote."""
    target = traced[0] / "trace.json"
    done = bench.cli("trace", traced[0], "-o", target, "--cell", "png")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{target}\n"
    document = json.loads(target.read_text())
    assert document["displayTimeUnit"] in ("ms", "ns")
    found: list[Event] = document["traceEvents"]
    return found


def spans(events: list[Event]) -> dict[int, list[Event]]:
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_thread[event["tid"]].append(event)
    return by_thread


def assert_apart(events: list[Event]) -> None:
    """Check that no two spans of one thread of a process overlap."""
    for thread in spans(events).values():
        thread.sort(key=lambda event: event["ts"])
        for one, following in itertools.pairwise(thread):
            assert one["ts"] + one["dur"] <= following["ts"] + ROUNDING_US


def test_every_event_is_of_a_known_phase_with_the_fields_that_it_needs(events: list[Event]) -> None:
    assert {event["ph"] for event in events} == {"M", "X", "C", "s", "f"}
    for event in events:
        assert isinstance(event["name"], str)
        assert event["pid"] == 1
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0


def test_loop_and_workers_are_named_threads_of_one_named_process(events: list[Event]) -> None:
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "training loop", 2: "worker 0", 3: "worker 1"}
    assert set(spans(events)) == set(names)
    [process] = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert "mnist from png" in process


def rank(group: Group, *, job: CellJob) -> list[Record]:
    return run_replicate(Setup.of(job, group=group))


def test_all_ranks_of_a_job_are_in_one_timeline(bench: Bench, run_folder: Path) -> None:
    small = {"dataset": "mnist", "synthetic": True, "limit": 96, "batch_size": 8, "model": "tiny"}
    [cell] = scenario(**small, backends=["lmdb"], ranks=3).cells()
    job = cell_job(cell, bench.stores, run_folder)
    [record], *_ = in_ranks(3, functools.partial(rank, job=job))
    events = trace_events(record, run_folder)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [name.rpartition(", ")[2] for name in names.values()] == [
        f"rank {number} of 3" for number in range(3)
    ]
    ranks = [[event for event in events if event["pid"] == pid] for pid in names]
    of_loops = [[event for event in own if event["name"] == "compute"] for own in ranks]
    assert [len(steps) for steps in of_loops] == [4, 4, 4]
    first, last = ([steps[end]["ts"] for steps in of_loops] for end in (0, -1))
    assert max(first) < min(last), "the ranks train at the same time, by one clock"
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 12
    for own in ranks:
        assert_apart(own)


def test_the_spans_are_the_times_of_the_steps(events: list[Event], traced: tuple[Path, Record]) -> None:
    run, record = traced
    steps = steps_of(record, run)
    for name in ("data_wait", "compute", "fetch", "decode"):
        durations = [event["dur"] for event in events if event["name"] == name.replace("_", " ")]
        assert sum(durations) == pytest.approx(steps[f"{name}_ns"].sum() / 1000), name
    assert {event["args"]["batch"] for event in events if event["name"] == "compute"} == set(range(12))


def enclosing(event: Event, events: list[Event]) -> list[str]:
    return [
        span["name"]
        for span in spans(events)[event["tid"]]
        if span["ts"] <= event["ts"] + ROUNDING_US / 2 and event["ts"] < span["ts"] + span["dur"]
    ]


def test_an_arrow_leads_from_the_making_of_each_batch_to_its_use(events: list[Event]) -> None:
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert set(starts) == set(ends) == set(range(12))
    for batch, start in starts.items():
        end = ends[batch]
        assert start["tid"] == 2 + batch % 2
        assert end["tid"] == 0
        assert start["ts"] <= end["ts"]
        assert (start["cat"], start["name"]) == (end["cat"], end["name"])
        # Perfetto and Chrome tie an arrow to the slice that encloses its end, and drop it where there is none.
        assert enclosing(start, events), start
        assert "compute" in enclosing(end, events), end


def test_no_more_batches_are_ready_than_the_loader_prefetches(
    events: list[Event],
) -> None:
    ready = [event["args"]["ready"] for event in events if event["name"] == "finished batches"]
    assert len(ready) == 12 + 1  # and 0 at the end
    assert min(ready) >= 0
    assert max(ready) <= 2 * 2  # two workers, each two batches ahead


def test_without_workers_the_loops_own_producer_is_a_thread_of_its_own(
    six: tuple[Path, list[dict[str, Any]]],
) -> None:
    run, _ = six
    record = choose_record(read_records(run), "png")
    events = trace_events(record, run)
    found = spans(events)
    assert set(found) == {0, 1}
    assert_apart(events)
    # What the loop makes itself it makes while it waits.
    waits = [event for event in found[0] if event["name"] == "data wait"]
    for event in found[1]:
        assert any(
            wait["ts"] <= event["ts"] and event["ts"] + event["dur"] <= wait["ts"] + wait["dur"] + ROUNDING_US
            for wait in waits
        )


COUNTERS = {
    "payload per step": "payload_bytes",
    "device reads per step": "device_read_bytes",
    "read calls per step": "read_calls",
    "major faults per step": "major_faults",
    "minor faults per step": "minor_faults",
}


def test_counters_beside_the_spans_are_those_of_the_steps(
    events: list[Event], traced: tuple[Path, Record]
) -> None:
    run, record = traced
    steps = steps_of(record, run)
    for name, column in COUNTERS.items():
        found = [event for event in events if event["name"] == name]
        values = [next(iter(event["args"].values())) for event in found]
        assert values == [*steps[column].tolist(), 0], name
        starts = (steps["start_ns"] - min(steps["start_ns"].min(), steps["fetch_start_ns"].min())) / 1000
        assert [event["ts"] for event in found[:-1]] == pytest.approx(starts.tolist()), name
    fetched = [event["args"] for event in events if event["name"] == "fetch"]
    for column in COUNTERS.values():
        assert [one[column] for one in fetched] == steps[column].tolist(), column


def test_a_name_that_several_cells_have_is_refused_with_their_ids(traced: tuple[Path, Record]) -> None:
    _, record = traced
    cells = [dataclasses.replace(record.cell, workers=workers) for workers in (0, 2)]
    records = [dataclasses.replace(record, cell=cell) for cell in cells]
    with pytest.raises(UsageError) as refused:
        choose_record(records, "png")
    for cell in cells:
        assert f"{cell.cell_id} (workers {cell.workers})" in str(refused.value)
        assert choose_record(records, cell.cell_id).cell == cell
        assert choose_record(records, cell.cell_id[:6]).cell == cell
    assert choose_record(records, None).cell == cells[0]
