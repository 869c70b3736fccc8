"""Replicates that do not hold their state are measured again at the end of their round: real runs, really evicted."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storebench.analysis.checks.records import examine
from storebench.record.lines import SUPERSEDED_NAME, read_records
from storebench.record.schema import Conditions, Record
from storebench.run.execute import Silent, execute
from storebench.run.folder import Run
from storebench.run.replicates import MOST_ATTEMPTS, PendingReplicate, unsound, wants_repeat
from storebench.run.scenario import Scenario, make_scenario
from tests.support.findings import validate
from tests.support.harness_tools import Bench
from tests.support.planted import make_record

EVICT = """
import os, sys
from pathlib import Path
print(flush=True)
while True:
    for path in Path(sys.argv[1]).rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
"""


class Evicting(Silent):
    """While a replicate runs, another process evicts the stores; in its first attempts only."""

    def __init__(self, stores: Path, backend: str, replicate: int, attempts: int) -> None:
        self._stores, self._victim, self._attempts = stores, (backend, replicate), attempts
        self._process: subprocess.Popen[bytes] | None = None
        self.order: list[tuple[str, int]] = []

    def started(self, work: PendingReplicate, position: int, total: int) -> None:
        name = (work.cell.backend.name, work.replicate)
        assert position < total
        if name == self._victim and self.order.count(name) < self._attempts:
            command = [sys.executable, "-c", EVICT, str(self._stores)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert self._process.stdout is not None
            self._process.stdout.readline()
        self.order.append(name)

    def finished(self, work: PendingReplicate, records: Sequence[Record]) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def two_stores(**keys: Any) -> Scenario:
    matrix = {
        "dataset": "cifar10", "synthetic": True, "limit": 2000, "batch_size": 100, "model": "none",
        "compute": "none", "threads": 1, "cache": "warm", "backends": ["lmdb", "hdf5"], "passes": 4,
    }  # fmt: skip
    rule = {"name": "held", "test_limit": 0, "ceilings": False, "replicates": 3, "repeat_disturbed": True}
    return make_scenario(rule | keys | {"matrix": [matrix]})


@pytest.mark.quiet  # work of other tests would have other replicates measured again
@pytest.mark.still_pages
@pytest.mark.parametrize("evicted", [1, pytest.param(MOST_ATTEMPTS, marks=pytest.mark.full)])
def test_an_evicted_replicate_is_measured_again_at_the_end_of_its_round(
    evicted: int, on_disk: None, bench: Bench, tmp_path: Path
) -> None:
    scenario = two_stores()
    run = Run.create(scenario, tmp_path / "run", scenario.cells())
    watcher = Evicting(bench.stores, "lmdb", 1, evicted)
    execute(run, bench.stores, watcher=watcher)
    again = min(evicted, MOST_ATTEMPTS - 1)
    assert [number for _, number in watcher.order] == sorted(number for _, number in watcher.order)
    assert watcher.order[4 : 4 + again] == [("lmdb", 1)] * again
    records = {(r.cell.backend.name, r.replicate): r for r in read_records(run.folder)}
    assert len(records) == 6
    conditions = records["lmdb", 1].conditions
    assert conditions is not None
    assert conditions.attempt == 1 + again
    assert (run.folder / SUPERSEDED_NAME).is_file()
    assert bool(unsound([records["lmdb", 1]])) is (evicted == MOST_ATTEMPTS)
    held = {cell.backend: (len(cell.sound), cell.invalid) for cell in examine(run.folder).cells}
    assert held == {"hdf5": (3, ""), "lmdb": (2 if evicted == MOST_ATTEMPTS else 3, "")}
    assert all(finding.of_replicate for finding in validate(run.folder))
    # A finished run has nothing left, whatever did not hold.
    assert Run.resume(run.folder).left() == []


def with_conditions(record: Record, attempt: int = 1, disturbed: str = "") -> Record:
    return dataclasses.replace(
        record, conditions=Conditions(wall_s=1.0, cores=2, attempt=attempt, disturbed=disturbed)
    )


@pytest.mark.parametrize(
    ("attempt", "disturbed", "held", "is_busy", "wanted"),
    [
        (1, "", True, False, False),
        (1, "by others", True, False, True),
        (1, "by others", True, True, False),
        (2, "by others", True, False, True),
        (3, "by others", True, False, False),
        (1, "", False, True, True),
        (2, "", False, True, True),
        (3, "", False, True, False),
    ],
)
def test_what_is_measured_again(
    attempt: int, disturbed: str, held: bool, is_busy: bool, wanted: bool
) -> None:
    record = with_conditions(make_record("lmdb"), attempt, disturbed)
    counters = dataclasses.replace(record.counters, device_read_bytes=0 if held else 1 << 30)
    assert wants_repeat([dataclasses.replace(record, counters=counters)], is_busy=is_busy) is wanted


@pytest.mark.parametrize(("second_is_worse", "stands"), [(True, 4.0), (False, 5.0)])
def test_the_soundest_attempt_stands_with_the_number_of_all(
    second_is_worse: bool, stands: float, tmp_path: Path
) -> None:
    scenario = two_stores()
    run = Run.create(scenario, tmp_path / "run", scenario.cells())
    first, second = (
        with_conditions(make_record("lmdb", wait_ms=wait, cell=scenario.cells()[0]), number, "by others")
        for number, wait in ((1, 4.0), (2, 5.0))
    )
    if second_is_worse:
        counters = dataclasses.replace(second.counters, device_read_bytes=1 << 30)
        second = dataclasses.replace(second, counters=counters)
    before = run.record([first], tmp_path)
    run.record([second], tmp_path, before=before)
    [record] = read_records(run.folder)
    assert record.conditions is not None
    assert (record.time_to_first_batch_s * 1000, record.conditions.attempt) == (pytest.approx(stands), 2)
    assert (run.folder / SUPERSEDED_NAME).stat().st_size
