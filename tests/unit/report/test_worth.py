"""Whether converting is worth it, from planted rates of the files as they are and of other stores."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storebench.accelerators import find_accelerator
from storebench.cli.first import reading_lines
from storebench.report.build import page_content
from storebench.report.cells import summarise
from storebench.report.facts import PageFacts, derive_page
from storebench.report.frame import to_frame
from storebench.report.plots.roofline import grouped
from storebench.report.roofline_tables import starving_table
from storebench.report.texts.method import disturbance_sentence
from storebench.report.texts.worth import Worth, worth
from storebench.results import Conditions, Record, Status
from storebench.runs.manifest import Whole
from tests.support.planted_roofline import loader_records

GIB = 2**30
SPREAD = (0.99, 1.0, 1.01, 0.995, 1.005)
FITS = Whole(count=40_000, total_bytes=5 * GIB, memory_bytes=24 * GIB, fits=True)
LARGER = Whole(count=400_000, total_bytes=50 * GIB, memory_bytes=24 * GIB, fits=False)
FITS_TOO, LARGER_TOO = (dataclasses.replace(one, total_bytes=one.total_bytes - 1) for one in (FITS, LARGER))
"""What another run of the same dataset tells: bytes are estimated from a few files."""

NO_LONGER_FITS = dataclasses.replace(FITS, memory_bytes=GIB, fits=False)


LIMITED: dict[str, Any] = {"cache": "limited", "memory_bytes": 100 << 20}


def loaders(rates: dict[str, float], **changes: Any) -> list[Record]:
    return [
        record
        for backend, rate in rates.items()
        for record in loader_records(backend, rate, **({"workers": 2, "spread": SPREAD} | changes))
    ]


def answer(
    records: list[Record],
    whole: Whole | None = FITS,
    invalid: tuple[str, ...] = (),
    accelerators: tuple[str, ...] = (),
) -> Worth:
    page = page_of(records, whole, invalid)
    [facts] = page.told.datasets.values()
    found = worth(facts, page.unsound, [find_accelerator(accelerator) for accelerator in accelerators])
    assert found is not None
    return found


def page_of(records: list[Record], whole: Whole | None, invalid: tuple[str, ...] = ()) -> PageFacts:
    table = to_frame((record, Path("run/records.jsonl")) for record in records)
    wholes: list[Any] = [whole] * len(table)
    table["whole"] = wholes
    findings = {
        record.cell.cell_id: "a finding"
        for record in records
        if {record.cell.backend.name, f"{record.cell.backend.name}, {record.cell.cache}"} & set(invalid)
    }
    return derive_page(summarise(table, findings))


def test_it_is_not_worth_it_where_no_store_is_faster() -> None:
    found = answer(loaders({"original": 1000.0, "lmdb+original": 1010.0, "lmdb": 900.0}))
    assert found.sentences[0] == (
        "Not worth it at any speed of training (read from memory, 2 workers): every other store (LMDB, LMDB+original) is"
        " proven to be within 10% of your files as they are, or slower."
    )
    assert found.store == ""


def test_below_the_starving_point_of_the_files_training_will_not_notice() -> None:
    found = answer(loaders({"original": 900.0, "lmdb+original": 905.0, "lmdb": 9000.0}))
    assert found.sentences[0].startswith(
        "Not worth it for training below 990 images/s (read from memory, 2 workers)"
    )
    assert "up to 1,000 [990, 1,010] images/s" in found.sentences[0]
    assert found.sentences[1].startswith("Above that, LMDB helps: up to 10,000 [9,900, 10,100] images/s.")
    assert "10 times" in found.sentences[1]
    assert found.store == "lmdb"


def test_files_whose_handoff_was_measured_alone_may_feed_as_much() -> None:
    """Their loader is proven to be slower, but their handoff, measured with nothing to compute, may be shorter in training."""
    files = loaders({"original": 5000.0}, handoff_ms=4.0)
    found = answer(files + loaders({"lmdb": 10_000.0}, handoff_ms=2.0))
    assert "up to 889 [889, 889] images/s" in found.sentences[0]
    assert found.sentences[1].startswith(
        "For faster training LMDB may help, but the intervals overlap: up to 1,780"
    )
    slow = answer(loaders({"original": 1000.0}, handoff_ms=4.0) + loaders({"lmdb": 10_000.0}, handoff_ms=2.0))
    assert slow.sentences[1].startswith("Above that, LMDB helps: up to 1,780")


def test_stores_that_may_do_as_well_as_the_named_one_are_named() -> None:
    """One that is not compared decidedly with the best is named; one that is slower, or proven equal, is not."""
    noisy = loaders({"original": 900.0, "leveldb": 2000.0, "lmdb": 8500.0}, spread=(0.8, 1.0, 1.2, 0.9, 1.1))
    found = answer(noisy + loaders({"hdf5": 9000.0}, spread=(1.1, 1.2, 0.9, 1.0, 0.8)))
    assert found.sentences[2] == "Whether LMDB would do as well is undecided: the intervals overlap."
    for rate in (8950.0, 6000.0):
        steady = answer(loaders({"original": 900.0, "leveldb": 2000.0, "lmdb": rate, "hdf5": 9000.0}))
        assert not any("would do as well" in line for line in steady.sentences)


def test_a_store_of_unchanged_files_that_helps_is_named_as_well() -> None:
    found = answer(loaders({"original": 900.0, "lmdb+original": 1800.0, "lmdb": 9000.0}))
    assert any(
        line.startswith("With the files unchanged, LMDB+original: up to 2,000") for line in found.sentences
    )
    assert any(
        "no longer possible, and part of the gain comes from leaving them out" in line
        for line in found.sentences
    )


def test_the_reader_of_the_verdict_is_named_beside_the_store() -> None:
    found = answer(loaders({"original": 900.0, "lmdb": 1800.0, "lmdb:direct": 9000.0}))
    assert (found.store, found.backend) == ("lmdb", "lmdb:direct")
    [line] = reading_lines(found)
    assert "lmdb:direct" in line
    assert line.endswith("storebench.StoreDataset(STORE, 'direct')")
    assert reading_lines(answer(loaders({"original": 900.0, "lmdb": 9000.0}))) == []


def test_of_equals_the_smallest_is_converted_to() -> None:
    records = loaders({"original": 900.0})
    records += loaders({"lmdb": 9000.0}, bytes_on_disk=800_000_000)
    records += loaders({"hdf5": 8990.0}, bytes_on_disk=700_000_000)
    assert answer(records).store == "hdf5"


def test_what_is_not_decided_is_not_advised() -> None:
    wide = {"spread": (0.5, 1.0, 1.6, 0.7, 1.4)}
    records = loaders({"original": 900.0}) + loaders({"lmdb": 1000.0}, **wide)
    found = answer(records)
    assert found.sentences[0].startswith("Not worth it for training below 990 images/s")
    assert "it cannot be told yet whether another store helps (LMDB; " in found.sentences[0]
    assert found.store == ""


def test_a_store_that_failed_is_not_called_slower() -> None:
    records = loaders({"original": 1000.0, "lmdb": 900.0, "hdf5": 3000.0})
    records = [
        dataclasses.replace(record, status=Status.FAILED, failure="it failed")
        if record.cell.backend.format == "hdf5"
        else record
        for record in records
    ]
    found = answer(records)
    assert "every other measured store (LMDB) is proven" in found.sentences[0]
    assert found.sentences[0].endswith("HDF5 failed.")


def test_stores_whose_figures_do_not_validate_are_named() -> None:
    rates = {"original": 1000.0, "lmdb": 900.0, "hdf5": 3000.0}
    found = answer(loaders(rates), invalid=("hdf5",))
    assert "every other measured store (LMDB) is proven" in found.sentences[0]
    assert found.sentences[1] == "HDF5: the figures do not validate, and the answer does not cover them."
    assert found.sentences[2].startswith("All 40,000 images")
    found = answer(loaders(rates), invalid=tuple(rates))
    assert found.sentences[1].endswith("the figures do not validate, and the answer uses them.")
    assert found.store == ""


def test_a_state_that_does_not_validate_is_told_from_one_that_does() -> None:
    records = loaders({"original": 900.0, "lmdb": 9000.0})
    records += loaders({"original": 90.0, "lmdb": 300.0}, cache="cold")
    found = answer(records, invalid=("lmdb, cold",))
    assert found.sentences[1].startswith("LMDB from a cold start: the figures do not validate")
    assert found.store == "lmdb"


def test_a_named_accelerator_is_told_what_each_store_delivers_to_it() -> None:
    records = loaders({"original": 970.0, "lmdb": 1970.0, "hdf5": 90_000.0})
    records += loaders({"original": 90.0, "lmdb": 300.0, "hdf5": 900.0}, cache="cold")
    first, second, third = answer(records, accelerators=("a100",)).named
    assert first.startswith("A100 80 GB, ResNet-50 (2,470 images/s, mixed precision; NVIDIA ")
    assert first.endswith(
        "would train this many images/s by the roofline's model (read from memory, 2 workers): from original files"
        " 970 [961, 980] (busy 39%), HDF5 2,470 (busy 100%), LMDB 1,970 [1,950, 1,990] (busy 80%)."
    )
    assert second == "It is kept busy at least 90% of its time by HDF5; starved by original files and LMDB."
    assert third == (
        "Converting is worth it for this accelerator: from HDF5 it would train 2.55 times as many images/s."
    )


def test_an_accelerator_that_the_files_feed_needs_no_conversion() -> None:
    *_, last = answer(loaders({"original": 970.0, "lmdb": 1970.0}), accelerators=("k40=100",)).named
    assert last == ("Converting is not worth it for this accelerator: your files as they are keep it busy.")


def test_an_accelerator_near_the_limit_of_the_files_is_undecided() -> None:
    wide = {"spread": (0.5, 1.0, 1.6, 0.7, 1.4)}
    records = loaders({"original": 900.0, "lmdb": 1500.0}, **wide)
    *_, last = answer(records, accelerators=("k40=1100",)).named
    assert last.startswith(
        "Whether converting is worth it for this accelerator cannot be told yet: from LMDB"
    )


def test_an_accelerator_that_no_store_feeds_is_told_so() -> None:
    first, *_ = answer(loaders({"original": 970.0, "lmdb": 1970.0}), accelerators=("a100",)).named
    assert first.endswith(
        "(busy 80%). By these figures none keeps it busy 90% of its time, and LMDB comes closest."
    )


@pytest.mark.parametrize(("disturbed", "warned"), [(2, False), (3, True)])
def test_a_run_on_a_busy_machine_is_told_as_one(disturbed: int, warned: bool) -> None:
    idle = Conditions(wall_s=1.0, cores=2, others_cpu_s=0.0)
    busy = dataclasses.replace(idle, others_cpu_s=1.0, disturbed="other work", attempt=2)
    records = [
        dataclasses.replace(one, conditions=busy if number < disturbed else idle)
        for number, one in enumerate(loaders({"original": 900.0, "lmdb": 9000.0}))
    ]
    cells = summarise(to_frame((record, Path("run/records.jsonl")) for record in records))
    said = disturbance_sentence(cells)
    assert said == (
        "Other work took more than 20% of the cores during 3 of 10 replicates: run this again on an idle machine before"
        " you decide."
        if warned
        else ""
    )


def test_a_named_accelerator_is_told_of_sound_figures_only() -> None:
    found = answer(
        loaders({"original": 970.0, "lmdb": 1970.0}), invalid=("lmdb",), accelerators=("a100", "k40")
    )
    assert len(found.named) == 4
    assert not any("LMDB" in said for said in found.named)


def test_without_sound_figures_of_the_files_nothing_is_told() -> None:
    found = answer(loaders({"original": 1000.0, "lmdb": 900.0}), invalid=("original",))
    assert found.sentences == ("It cannot be told: the figures of original files do not validate.",)


def test_starving_points_that_overlap_do_not_hide_a_proven_gain() -> None:
    wide = {"spread": (0.5, 1.0, 1.6, 0.7, 1.4)}
    found = answer(loaders({"original": 900.0, "lmdb": 1500.0}, **wide))
    assert found.store == "lmdb"
    assert found.sentences[1].startswith("For faster training LMDB helps: up to")


@pytest.mark.parametrize(
    ("order", "ranks"), [((1, 2), "2 workers"), ((2, 4), "2 ranks together, 2 workers each")]
)
def test_the_fewest_ranks_answer_and_several_are_named(order: tuple[int, int], ranks: str) -> None:
    records = [
        one
        for count in order
        for one in loaders({"original": 900.0 * count, "lmdb": 890.0 * count}, ranks=count)
    ]
    assert f"(read from memory, {ranks})" in answer(records).sentences[0]


def test_one_round_tells_nothing() -> None:
    records = loaders({"original": 900.0, "lmdb": 9000.0}, spread=(1.0,))
    found = answer(records)
    assert found.sentences[0].startswith("It cannot be told yet (read from memory, 2 workers) up to which")
    assert found.store == ""


@pytest.mark.parametrize(("lmdb", "spread"), [(900.0, (30.0, 0.2, 1.0)), (90_000.0, (0.2, 1.0, 30.0))])
def test_an_unknown_starving_point_promises_nothing(lmdb: float, spread: tuple[float, ...]) -> None:
    records = loaders({"original": 900.0}, spread=(0.2, 1.0, 30.0)) + loaders({"lmdb": lmdb}, spread=spread)
    first = answer(records).sentences[0]
    assert first.startswith("It cannot be told yet ")
    assert ("up to 1,000 [too few rounds] images/s" in first) == (lmdb > 1000)


@pytest.mark.parametrize(
    ("whole", "state", "memory"),
    [
        (FITS, "read from memory", "All 40,000 images, 5.0 GiB, fit into this machine's memory (24.0 GiB)"),
        (
            LARGER,
            "larger than memory",
            "All 400,000 images, 50.0 GiB, do not fit into this machine's memory",
        ),
    ],
)
def test_memory_decides_which_state_of_the_cache_is_told(whole: Whole, state: str, memory: str) -> None:
    rates = {"original": 900.0, "lmdb": 9000.0}
    limited = {"original": 90.0, "lmdb": 300.0}
    records = loaders(rates) + loaders(limited, **LIMITED)
    found = answer(records, whole)
    assert state in found.sentences[0]
    assert any(line.startswith(memory) for line in found.sentences)


@pytest.mark.parametrize(("whole", "cache"), [(FITS, "warm"), (LARGER, "limited"), (None, "limited")])
def test_the_report_leads_with_what_the_terminal_says(whole: Whole | None, cache: str) -> None:
    records = loaders({"original": 900.0, "lmdb": 9000.0})
    records += loaders({"original": 90.0, "lmdb": 300.0}, **LIMITED)
    page = page_of(records, whole)
    content = page_content(page, accelerators=[find_accelerator("a100")])
    assert page.told.rooflines[0].first.cell.cache == cache
    assert content.headline.panel is not None
    assert content.headline.panel.first.cell.cache == cache
    table = starving_table(page.told.rooflines)
    assert cache in table.rows[0][0]
    [drawn] = grouped(page.told.rooflines)
    assert [one.first.cell.cache for one in drawn] == [cache, "limited" if cache == "warm" else "warm"]
    told = answer(records, whole, accelerators=("a100",))
    begins = tuple(sentence.text for sentence in content.headline.sentences)[
        : len(told.named + told.sentences)
    ]
    assert (begins == told.named + told.sentences) == (whole is not None)


@pytest.mark.parametrize(
    ("whole", "state", "where"),
    [(LARGER, "limited", "larger than memory"), (FITS, "warm", "read from memory")],
)
def test_the_state_decides_although_one_store_alone_is_valid_in_it(
    whole: Whole, state: str, where: str
) -> None:
    records = loaders({"original": 900.0, "lmdb": 9000.0})
    records += loaders({"original": 90.0, "lmdb": 300.0}, **LIMITED)
    found = answer(records, whole, invalid=(f"lmdb, {state}",), accelerators=("a100",))
    assert where in found.named[0]
    assert found.sentences[0] == "Nothing to compare your files as they are with was measured."
    assert not any("which was not measured" in line for line in found.sentences)
    assert found.store == ""


def test_a_limited_page_cache_reads_from_the_disk_as_well() -> None:
    records = loaders({"original": 90.0, "lmdb": 300.0}, cache="cold")
    records += loaders({"original": 80.0, "lmdb": 200.0}, cache="limited", memory_bytes=100 << 20)
    found = answer(records, LARGER)
    assert any(line.endswith("so that every epoch reads from the disk.") for line in found.sentences)


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        (FITS, FITS_TOO, "warm"),
        (LARGER, LARGER_TOO, "limited"),
        (FITS, LARGER, "limited"),
        (FITS, NO_LONGER_FITS, "limited"),
    ],
)
def test_two_runs_lead_with_what_they_agree_on_in_any_order(first: Whole, second: Whole, state: str) -> None:
    records = loaders({"original": 900.0, "lmdb": 9000.0})
    records += loaders({"original": 90.0, "lmdb": 300.0}, **LIMITED)
    told = []
    for wholes in ((first, second), (second, first)):
        tables = [to_frame((record, Path("run/records.jsonl")) for record in records) for _ in wholes]
        for run, (table, whole) in enumerate(zip(tables, wholes, strict=True)):
            described: list[Any] = [whole] * len(table)
            table["whole"], table["run_id"] = described, f"run {run}"
        told.append(page_content(derive_page(summarise(pd.concat(tables)))).headline)
    assert told[0].answer == told[1].answer
    assert told[0].panel is not None
    assert told[0].panel.first.cell.cache == state
    assert ("Not worth it for training below" in told[0].answer) == (first.fits == second.fits)


def test_converting_everything_is_priced_from_the_part_that_was_measured() -> None:
    found = answer(loaders({"original": 900.0, "lmdb": 9000.0}, build_s=10.0, bytes_on_disk=2 * GIB))
    assert any(
        line
        == "Converting all 40,000 images takes about 100 s and 20.0 GiB of disk. This is scaled from one conversion of 4,000 images,"
        " so the time has no interval."
        for line in found.sentences
    )


def test_training_alone_gives_no_such_answer() -> None:
    records = loaders({"original": 900.0, "lmdb": 9000.0}, compute="real", model="resnet50", compute_ms=5.0)
    table = to_frame((record, Path("run/records.jsonl")) for record in records)
    [facts] = derive_page(summarise(table)).told.datasets.values()
    assert worth(facts) is None
