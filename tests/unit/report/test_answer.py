"""The answer: which store it names, on which figures, and that it stays one short sentence."""

from pathlib import Path
from typing import Any

import pytest

from storebench.comparison import Verdict
from storebench.report.answer import Answer, answer, disturbed
from storebench.report.bottleneck import bottlenecks
from storebench.report.cells import summarise
from storebench.report.frame import to_frame
from storebench.report.panels import ordered, panels
from storebench.report.roofline import rooflines
from storebench.results import Conditions, Record
from tests.support.planted import make_record, paper_records, replicates

NONE: dict[str, Any] = {"compute": "none", "model": "none", "compute_ms": 0.0}
FIVE = (0.99, 1.0, 1.01, 1.0, 1.0)


def cells_of(*records: Record) -> Any:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def answered(*records: Record) -> Answer:
    cells = cells_of(*records)
    return answer(ordered(panels(cells)), rooflines(cells), bottlenecks(cells))


def waits(backend: str, ms: float, rounds: int = 5, **changes: Any) -> list[Record]:
    return replicates(backend, [ms * (1 + 0.01 * (n % 3 - 1)) for n in range(rounds)], **(NONE | changes))


CASES: dict[str, tuple[list[Record], str, Verdict | None]] = {
    "a faster store": ([*waits("png", 40), *waits("lmdb", 10)], "lmdb", Verdict.FASTER),
    "an equal store": ([*waits("png", 10), *waits("lmdb", 9.9)], "png", Verdict.EQUAL),
    "a slower store": ([*waits("png", 10), *waits("lmdb", 40)], "png", None),
    "too few rounds": ([*waits("png", 40, 3), *waits("lmdb", 10, 3)], "png", Verdict.UNDECIDED),
    "rounds that differ": (
        [*replicates("png", [10, 20, 10, 40, 10], **NONE), *replicates("lmdb", [10, 5, 20, 4, 6], **NONE)],
        "png",
        Verdict.UNDECIDED,
    ),
    "one store": (waits("lmdb", 10), "lmdb", None),
    "a cold start": ([*waits("png", 40, cache="cold"), *waits("lmdb", 10, cache="cold")], "png", None),
    "too little training": (
        [*waits("png", 40, steps=10, compute="real", model="lenet"), *waits("lmdb", 10, steps=10, compute="real", model="lenet")],
        "png",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_store_that_the_answer_chooses(name: str) -> None:
    records, choice, verdict = CASES[name]
    found = answered(*records)
    assert found.choice is not None
    assert found.choice.backend == choice
    assert (found.ratio.verdict if found.ratio else None) is verdict
    assert len(found.sentence.split()) <= 20


def test_the_whole_matrix_of_the_paper_has_one_short_answer() -> None:
    found = answered(*paper_records("warm"), *paper_records("cold"))
    assert found.choice is not None
    assert found.choice.backend == "lmdb"
    assert found.ratio is not None
    assert found.ratio.mid == pytest.approx(76 / 13, rel=0.02)
    assert len(found.changes) <= 4


def test_nothing_measured_is_said() -> None:
    found = answered()
    assert found.panel is None
    assert found.sentence


def test_another_state_with_another_store_would_change_it() -> None:
    limited: dict[str, Any] = {"cache": "limited", "memory_bytes": 1 << 28}
    found = answered(
        *waits("png", 40), *waits("lmdb", 10), *waits("hdf5", 20),
        *waits("png", 80, **limited), *waits("lmdb", 400, **limited), *waits("hdf5", 20, **limited),
    )  # fmt: skip
    assert found.choice is not None
    assert found.choice.backend == "hdf5"
    assert any("LMDB" in text for text in found.changes)


@pytest.mark.parametrize(("count", "warned"), [(1, False), (2, True)])
def test_other_work_beside_many_replicates_is_a_warning(count: int, warned: bool) -> None:
    busy = [
        Conditions(cores=2, wall_s=1.0, others_cpu_s=2.0 * (n < count), disturbed="other work" * (n < count))
        for n in range(5)
    ]
    records = [make_record("lmdb", replicate=n, conditions=one) for n, one in enumerate(busy)]
    assert bool(disturbed(cells_of(*records))) is warned
