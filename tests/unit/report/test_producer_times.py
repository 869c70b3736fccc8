"""Producers make a batch between the first request of the epoch and the moment at which the loop gets it."""

from typing import Any

import numpy as np
import pytest

from storebench.report.validation.producers import check_producers
from storebench.training.step_table import StepTable
from tests.support.planted import make_record

STEPS, STEP_NS, WAIT_NS, WORK_NS = 4, 10_000_000, 4_000_000, 3_000_000


def table(workers: int = 0, ranks: int = 1, rank_later_ns: int = 0) -> StepTable:
    """Return the steps of each rank; the loop waits 4 ms for each batch, which is begun 1 ns later and takes 3 ms."""
    step, rank = np.divmod(np.arange(STEPS * ranks), ranks)
    asked = 1_000_000_000 + step * STEP_NS + rank * rank_later_ns
    columns: dict[str, Any] = {
        "start_ns": asked,
        "data_wait_ns": np.full(len(asked), WAIT_NS),
        "fetch_start_ns": asked + 1,
        "ready_ns": asked + 1 + WORK_NS,
        "worker": step % workers if workers else np.full(len(asked), -1),
    }
    if ranks > 1:
        columns["rank"] = rank
    return columns


def told(steps: StepTable, **cell: Any) -> list[tuple[str, str]]:
    """Return figure and words of each finding."""
    record = make_record("lmdb", cache="warm", steps=STEPS, **cell)
    return [(found.figure, str(found)) for found in check_producers(record, steps)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("ranks", "share"), [(1, "none"), (2, "none"), (2, "node")])
def test_batches_made_on_request_have_no_finding(workers: int, ranks: int, share: str) -> None:
    steps = table(workers, ranks, rank_later_ns=50)
    assert told(steps, workers=workers, ranks=ranks, share=share) == []


def test_an_epoch_without_steps_has_no_finding() -> None:
    assert told({name: values[:0] for name, values in table().items()}) == []


@pytest.mark.parametrize(("late_ns", "found"), [(0, False), (1_500_000, True)])
def test_the_first_batch_that_was_not_ready_is_named(late_ns: int, found: bool) -> None:
    steps = table()
    steps["ready_ns"][2:] = steps["start_ns"][2:] + WAIT_NS + late_ns
    words = "the batch in row 2 of its steps was ready 1.5 ms after the loop had it"
    findings = told(steps)
    assert [figure for figure, _ in findings] == ["ready_ns"] * found
    assert all(words in text for _, text in findings)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("early_ns", "found"), [(0, False), (2_000_000, True)])
def test_work_before_the_first_request_is_found(workers: int, early_ns: int, found: bool) -> None:
    steps = table(workers)
    steps["fetch_start_ns"][0] = steps["start_ns"][0] - early_ns
    findings = told(steps, workers=workers)
    assert [figure for figure, _ in findings] == ["fetch_start_ns"] * found
    assert all("row 0 of its steps was begun 2 ms before the epoch" in text for _, text in findings)


@pytest.mark.parametrize(
    ("workers", "share", "found"), [(0, "none", True), (2, "none", False), (0, "node", False)]
)
def test_the_loop_makes_no_batch_in_a_pause(workers: int, share: str, found: bool) -> None:
    """A worker may begin one ahead of its request, and so may the loop of another rank that shares its reader."""
    steps = table(workers, ranks=2)
    steps["fetch_start_ns"][4] = steps["start_ns"][4] - 1_000_000
    findings = told(steps, workers=workers, ranks=2, share=share)
    assert [figure for figure, _ in findings] == ["fetch_start_ns"] * found
    words = "row 4 of its steps was made by the loop, but begun 1 ms before it was requested"
    assert all(words in text for _, text in findings)


@pytest.mark.parametrize(("share", "found"), [("none", True), ("node", False)])
def test_each_rank_has_its_own_beginning_unless_one_reads_for_all(share: str, found: bool) -> None:
    steps = table(workers=2, ranks=2, rank_later_ns=500_000)
    steps["fetch_start_ns"][1] = steps["start_ns"][0] + 1
    findings = told(steps, workers=2, ranks=2, share=share)
    assert [figure for figure, _ in findings] == ["fetch_start_ns"] * found


@pytest.mark.parametrize(
    ("workers", "share", "found"), [(2, "none", True), (3, "none", False), (2, "node", False)]
)
def test_a_producer_that_the_cell_does_not_have_is_found(workers: int, share: str, found: bool) -> None:
    steps = table(workers=3, ranks=2)
    findings = told(steps, workers=workers, ranks=2, share=share)
    assert [figure for figure, _ in findings] == ["worker"] * found
    assert all("producer 2 made a batch, but the cell has 2 workers" in text for _, text in findings)


def test_the_loop_makes_no_later_batch_with_the_first_request() -> None:
    steps = table()
    steps["fetch_start_ns"][2] = steps["start_ns"][0]
    [(figure, text)] = told(steps)
    assert figure == "fetch_start_ns"
    assert "begun 20 ms before it was requested" in text
