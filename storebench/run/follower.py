"""Every node of a run but the first: build the stores, then run this node's ranks of each announced job."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import StorebenchError, UsageError
from storebench.ranks.launch import Tell
from storebench.ranks.nodes import Board, NodeAddress
from storebench.record.lines import LOGS_DIR
from storebench.record.schema import Cell
from storebench.run.cell_process import answer_of
from storebench.run.execute import Prepared, Watcher, prepare
from storebench.run.resources import refusals, surroundings
from storebench.run.scenario import Scenario
from storebench.system.scratch import scratch_folder
from storebench.worker.job import read_job


def follow(
    scenario: Scenario,
    cells: Sequence[Cell],
    folder: Path,
    stores: Path,
    place: NodeAddress,
    board: Board,
    watcher: Watcher,
) -> list[str]:
    """Run this node's part of every job until the first node says that the run is over; return the failures."""
    try:
        jobs = [cell for cell in cells if cell.ranks > 1]
        refused = refusals(jobs, stores)  # the first node may leave them out as well, and have other cells
        for cell in refused.keys() - scenario.optional_cells():
            raise refused[cell]
        wanted = dict.fromkeys(cell for cell in jobs if cell not in refused)
        prepared = prepare(wanted, scenario, stores, watcher, nodes=place.nodes, node=place.node)
    except StorebenchError as error:
        board.set(f"ready/{place.node}", {"failure": str(error)})
        raise
    board.set(f"ready/{place.node}", {})
    failures: list[str] = []
    for number in itertools.count():
        announcement = board.get(f"job/{number}") or {}
        if "job" not in announcement:
            board.set(f"left/{place.node}", {})
            return failures
        try:
            answer = _run(announcement["job"], prepared, refused, folder, place, watcher.ranks)
        except StorebenchError as error:
            answer = {"failure": f"node {place.node}: {error}"}
        board.set(f"ended/{number}/{place.node}", answer)
        failures += [answer["failure"]] if "failure" in answer else []
    raise AssertionError


def _run(
    text: str,
    prepared: Mapping[Cell, Prepared],
    refused: Mapping[Cell, UsageError],
    folder: Path,
    place: NodeAddress,
    tell: Tell,
) -> dict[str, Any]:
    """Run this node's ranks of one job; return its failure, if it failed here."""
    with scratch_folder("replicate") as scratch:
        order = scratch / "order.json"
        order.write_text(text, encoding="utf-8")
        job = read_job(order)
        if job.cell in refused:
            raise refused[job.cell]
        stores = prepared[job.cell]
        with surroundings(job.cell, stores.image) as around:
            job = dataclasses.replace(
                job, node=place.node, run=folder.resolve(), tables=scratch, out=scratch / "out.json"
            )
            log = folder / LOGS_DIR / f"{job.cell.cell_id}-r{job.replicate}-node{place.node}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            return answer_of(stores.job(job, around), scratch, log, around, tell)
