"""A replicate with a limited page cache that was not steady is named wherever the figures of its cell stand."""

import csv
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from storebench.accelerators import find_accelerator
from storebench.report.build import write_report
from storebench.results import Record
from storebench.results.parts import STEADY_DRIFT
from tests.support.planted import make_record, portion_of, write_run
from tests.support.thinning import some

ROUNDS = 5
NAMES = {"png": "PNG files", "lmdb": "LMDB", "lmdb:direct": "LMDB (direct)", "hdf5": "HDF5"}

pytestmark = pytest.mark.usefixtures("without_pictures")


def limited(
    backend: str,
    wait_ms: float,
    drifts: list[float | str | None],
    compute: str = "none",
    *,
    ahead: int | None = None,
) -> list[Record]:
    """Plant two epochs of a limited cell per drift; the last one has a steady part with it, or none for a word."""
    records = []
    for number, drift in enumerate(drifts):
        settings: dict[str, Any] = {"cache": "limited", "memory_bytes": 128 << 20, "compute": compute}
        settings |= {} if ahead is None else {"readahead_kib": ahead}
        planted: dict[str, Any] = {"replicate": number, "wait_ms": wait_ms, "portion": None, **settings}
        planted |= {"compute_ms": 0.0} if compute == "none" else {}
        first, last = (make_record(backend, epoch=epoch, **planted) for epoch in (0, 1))
        part = None if isinstance(drift, str) else portion_of(last, drift=drift)
        records += [first, dataclasses.replace(last, portion=part)]
    return records


def page_of(folder: Path, records: list[Record]) -> tuple[str, list[dict[str, str]]]:
    """Return the page as Markdown, and the rows of its tables as written for programs."""
    write_report(write_run(folder / "run", records), folder / "report", allow_invalid=True)
    (table,) = (folder / "report").glob("table-*.csv")
    with table.open(encoding="utf-8") as file:
        return (folder / "report" / "report.md").read_text(encoding="utf-8"), list(csv.DictReader(file))


def outside(rng: random.Random) -> float | str | None:
    """Return a drift that no steady rate has: too small, too large, unknown, or of a cache that did not fill."""
    low, high = STEADY_DRIFT
    return rng.choice([rng.uniform(0.01, low * 0.99), rng.uniform(high * 1.01, 50.0), None, "not filled"])


@pytest.mark.parametrize("case", range(some(16)))
def test_one_unsteady_replicate_of_five_is_never_hidden(case: int, tmp_path: Path) -> None:
    rng = random.Random(case)
    backends = ["png", *rng.sample(["lmdb", "lmdb:direct", "hdf5"], rng.randint(1, 3))]
    moving, place = rng.choice(backends), rng.randrange(ROUNDS)
    records = []
    for backend in backends:
        drifts: list[float | str | None] = [rng.uniform(*STEADY_DRIFT) for _ in range(ROUNDS)]
        if backend == moving:
            drifts[place] = outside(rng)
        records += limited(backend, rng.uniform(5, 50), drifts)
    page, rows = page_of(tmp_path, records)
    name = NAMES[moving]
    caption = next(line for line in page.splitlines() if line.startswith("**ImageNet"))
    assert f"NOT STEADY: 1 of 5 replicates of {name}" in caption
    assert f"\n| {name} (cache state not verified; 1 of 5 replicates not steady) |" in page
    first_screen = page.partition("\n## ")[0]
    assert f"NOT STEADY: 1 of 5 replicates of {name}" in first_screen
    assert {row["backend"]: row["unsteady_replicates"] for row in rows} == {
        backend: "1" if backend == moving else "0" for backend in backends
    }


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"readahead_kib": 8192}, "read-ahead 128 KiB"),
        ({"readahead_kib": None}, "read-ahead 128 KiB"),
        ({"memory_bytes": 64 << 20}, "limited to 128 MiB"),
        ({"workers": 2}, "0 workers"),
        ({"batch_size": 20}, "batch 32"),
    ],
)
def test_replicates_of_different_settings_are_not_added_up(
    other: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """The banner once did: 1 of 14, where the headline said 1 of 7."""
    still: list[float | str | None] = [1.0] * ROUNDS
    files = limited("png", 40.0, still, ahead=128)
    calm = limited("lmdb", 9.0, still, ahead=128)
    records = [
        *files,
        *limited("lmdb", 9.0, [1.0, 1.0, 5.0, 1.0, 1.0], ahead=128),
        *(
            dataclasses.replace(record, cell=dataclasses.replace(record.cell, **other))
            for record in (*files, *calm)
        ),
    ]
    page, rows = page_of(tmp_path, records)
    assert f"NOT STEADY: 1 of 5 replicates of LMDB ({words})" in page
    assert "of 10 replicates" not in page
    assert sorted(row["unsteady_replicates"] for row in rows) == ["0", "0", "0", "1"]


def test_the_answer_names_those_of_the_other_read_ahead_that_it_tells(tmp_path: Path) -> None:
    still: list[float | str | None] = [1.0] * ROUNDS
    moving: list[float | str | None] = [1.0, 1.0, 5.0, 1.0, 1.0]
    records = [
        *limited("png", 40.0, still, ahead=128),
        *limited("lmdb", 9.0, still, ahead=128),
        *limited("png", 40.0, moving, ahead=8192),
        *limited("lmdb", 90.0, moving, ahead=8192),
    ]
    page, _ = page_of(tmp_path, records)
    answer = next(line for line in page.splitlines() if " (if the disk reads ahead " in line)
    assert "(NOT STEADY: 1 of 5 replicates of LMDB (read-ahead 8192 KiB))" in answer
    assert "of PNG files" not in answer.partition(": PNG files feed")[0], "its other figure is not told"


def test_steady_replicates_are_not_remarked(tmp_path: Path) -> None:
    page, rows = page_of(
        tmp_path,
        [*limited("png", 40.0, [0.81, 1.0, 1.24, 1.0, 0.9]), *limited("lmdb", 9.0, [1.0] * ROUNDS)],
    )
    assert "not steady" not in page.lower()
    assert {row["unsteady_replicates"] for row in rows} == {"0"}


def test_the_filling_epoch_and_other_cache_states_are_not_judged(tmp_path: Path) -> None:
    filling = [
        dataclasses.replace(record, portion=portion_of(record, drift=6.0)) if record.epoch == 0 else record
        for backend, wait_ms in (("png", 40.0), ("lmdb", 9.0))
        for record in limited(backend, wait_ms, [1.0] * ROUNDS)
    ]
    cold = [
        dataclasses.replace(record, portion=portion_of(record, drift=2.0))
        for backend in ("png", "lmdb")
        for record in (make_record(backend, replicate=number) for number in range(ROUNDS))
    ]
    write_report(write_run(tmp_path / "run", [*filling, *cold]), tmp_path / "report", allow_invalid=True)
    assert "not steady" not in (tmp_path / "report" / "report.md").read_text(encoding="utf-8").lower()


def test_the_table_of_starving_points_names_them_too(tmp_path: Path) -> None:
    records = [
        *limited("png", 40.0, [1.0] * ROUNDS),
        *limited("lmdb", 9.0, [1.0, 1.0, 5.0, 1.0, 0.5]),
    ]
    run = write_run(tmp_path / "run", records)
    write_report(run, tmp_path / "report", allow_invalid=True, accelerators=[find_accelerator("a100")])
    page = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    starving = page[page.index("the fastest accelerator that each store feeds") :]
    assert "NOT STEADY: 2 of 5 replicates of LMDB" in starving.partition("\n")[0]
    assert "| LMDB (cache state not verified; 2 of 5 replicates not steady) |" in starving
