"""Merge the step tables and counters of the ranks of a job, and take a job's table apart again."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from storebench.errors import CellFailedError, CorruptDataError
from storebench.record.schema import Counters
from storebench.record.steps import StepTable, step_ends

# The column of a job's step table that holds the rank.
RANK = "rank"

_MEANS = ("data_wait_ns", "h2d_ns", "compute_ns", "fetch_ns", "decode_ns", "prep_ns")
_SUMS = ("samples", "payload_bytes")

# Columns that are equal in the rows of a step.
_FIRST = ("step", "warmup", "loss")


def set_to_first_node(
    tables: Sequence[StepTable], nodes: Sequence[int], barriers_ns: Sequence[int]
) -> list[StepTable]:
    """Return the tables of ranks with the clocks of all nodes aligned at one barrier."""
    left_ns: dict[int, int] = {}
    for node, barrier_ns in zip(nodes, barriers_ns, strict=True):
        left_ns[node] = min(barrier_ns, left_ns.get(node, barrier_ns))
    origin_ns = left_ns[nodes[0]]
    clocks = ("start_ns", "fetch_start_ns", "ready_ns")
    return [
        table | {name: table[name] - left_ns[node] + origin_ns for name in clocks if name in table}
        for table, node in zip(tables, nodes, strict=True)
    ]


def merged_table(tables: Sequence[StepTable]) -> StepTable:
    """Return the step table of a job."""
    steps = [len(table["step"]) for table in tables]
    if len(set(steps)) > 1:
        raise CellFailedError(
            f"the ranks of the job ran {', '.join(map(str, steps))} steps, not the same number"
        )
    names = [name for name in tables[0] if all(name in table for table in tables)]
    stacked = {name: np.stack([table[name] for table in tables], axis=1) for name in names}
    count = len(tables)
    warm_up = stacked["warmup"]
    # The epoch of a rank whose batches were begun ahead is timed whole, and with it that of all ranks.
    all_warm_up = warm_up.any(axis=0).all()
    stacked["warmup"] = np.repeat(warm_up.any(axis=1, keepdims=True) & all_warm_up, count, axis=1)
    losses = stacked["loss"].astype(np.float64).sum(axis=1) / stacked["samples"].sum(axis=1)
    stacked["loss"] = np.repeat(losses.astype(np.float32)[:, None], count, axis=1)
    merged: StepTable = {name: np.ascontiguousarray(column).reshape(-1) for name, column in stacked.items()}
    return merged | {RANK: np.tile(np.arange(count, dtype=np.int64), steps[0])}


def rank_count(table: StepTable) -> int:
    """Return the number of ranks of a step table; 1 for that of a process that is alone."""
    if RANK not in table or not len(table[RANK]):
        return 1
    ranks = int(table[RANK].max()) + 1
    steps, more = divmod(len(table[RANK]), max(1, ranks))
    in_turn = not more and np.array_equal(table[RANK], np.tile(np.arange(ranks), steps))
    if not in_turn or ("step" in table and (table["step"] != np.repeat(table["step"][::ranks], ranks)).any()):
        raise CorruptDataError(f"a step table whose rows are not those of {ranks} ranks in turn")
    return ranks


def rank_tables(table: StepTable) -> list[StepTable]:
    """Return the table of each rank, without the column `rank`; a table that has none is returned alone."""
    ranks = rank_count(table)
    columns = {name: column for name, column in table.items() if name != RANK}
    return [{name: column[rank::ranks] for name, column in columns.items()} for rank in range(ranks)]


def job_steps(table: StepTable) -> StepTable:
    """Return one row per step of a job, with the means of its ranks; a table without ranks is unchanged."""
    ranks = rank_count(table)
    if RANK not in table:
        return table
    rows = {name: column.reshape(-1, ranks) for name, column in table.items()}
    ends = step_ends(rows)
    folded: StepTable = {name: rows[name][:, 0] for name in _FIRST if name in rows}
    folded |= {name: rows[name].sum(axis=1) for name in _SUMS if name in rows}
    folded |= {name: rows[name].mean(axis=1) for name in _MEANS if name in rows}
    folded |= {name: rows[name].min(axis=1) for name in ("start_ns", "paused_ns") if name in rows}
    folded |= {name: rows[name].max(axis=1) for name in ("fetch_start_ns", "ready_ns") if name in rows}
    return folded | {"end_ns": ends.max(axis=1)}


def waits_for_slowest_s(table: StepTable, trainers: int = 1) -> list[float]:
    """Return the seconds for which each rank had its batch while another one of its trainer waited for data."""
    ranks = rank_count(table)
    shape = (-1, trainers, ranks // trainers)
    ready = (table["start_ns"] + table["data_wait_ns"]).reshape(shape)
    late = ready.max(axis=2, keepdims=True) - ready
    waited = np.minimum(late, (table["h2d_ns"] + table["compute_ns"]).reshape(shape))
    return [int(column.sum()) / 1e9 for column in waited.reshape(-1, ranks).T]


def rate_until_first_end(table: StepTable) -> float:
    """Return the samples per second of a job until its first rank had ended its last step."""
    parts = rank_tables(table)
    # The ends of a rank's steps without the pauses before them.
    clocks = [step_ends(part) - np.cumsum(part["paused_ns"]) + part["paused_ns"] for part in parts]
    start = min(int(part["start_ns"][0]) for part in parts)
    end = min(float(ends[-1]) for ends in clocks)
    done = 0.0
    for part, ends in zip(parts, clocks, strict=True):
        times = np.concatenate([[part["start_ns"][0]], ends]).astype(np.float64)
        done += float(np.interp(end, times, np.concatenate([[0], np.cumsum(part["samples"])])))
    return done / ((end - start) / 1e9)


def merged_counters(counters: Sequence[Counters], nodes: Sequence[int], payload_bytes: int) -> Counters:
    """Return the counters of a job: sums over its ranks, and bytes that devices delivered to all processes."""
    summed: dict[str, Any] = {}
    for name in {field.name for field in dataclasses.fields(Counters)} - {"reasons", "read_amplification"}:
        values = [getattr(rank_counters, name) for rank_counters in counters]
        summed[name] = None if None in values else sum(values)
    for name in ("block_device_read_bytes", "block_device_reads"):
        if summed[name] is not None:
            # Every rank counts what the devices of its node delivered.
            by_node: dict[int, int] = {}
            for node, rank_counters in zip(nodes, counters, strict=True):
                by_node[node] = max(getattr(rank_counters, name) or 0, by_node.get(node, 0))
            summed[name] = sum(by_node.values())
    delivered = summed["device_read_bytes"]
    return Counters(
        **summed,
        read_amplification=delivered / payload_bytes if delivered is not None and payload_bytes else None,
        reasons={
            name: reason
            for rank_counters in reversed(counters)
            for name, reason in rank_counters.reasons.items()
        },
    )


def ideal_ring_s(size: int, ranks: int, bytes_per_s: float, latency_s: float) -> float:
    """Return the seconds of an ideal ring all-reduce."""
    return 2 * (ranks - 1) * (size / ranks / bytes_per_s + latency_s)
