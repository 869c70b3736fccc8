"""The one answer: what it chooses, from which figures, and that every door shows the same."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from storebench.accelerators import find_accelerator
from storebench.analysis.answer import Answer, decide, disturbed
from storebench.analysis.checks.findings import Rule, finding
from storebench.analysis.checks.records import Results, read_results
from storebench.analysis.choices import Choice, TrainingChange
from storebench.analysis.comparison import Ratio, Verdict
from storebench.analysis.frame import sourced
from storebench.analysis.summary import CellSummary, summarise
from storebench.cli.main import app
from storebench.cli.results import as_dict, print_summary, put_content
from storebench.codecs.registry import get_codec
from storebench.record.schema import Conditions, Counters, Record
from storebench.report.build import Report
from storebench.report.content import content_of
from storebench.report.page import html, markdown
from tests.support.planted import make_record, replicates, write_run
from tests.support.planted_roofline import loader_records

REFERENCE = Path(__file__).parents[3] / "results" / "reference"
NONE: dict[str, Any] = {"compute": "none", "model": "none", "compute_ms": 0.0}
FIVE = (0.99, 1.0, 1.01, 1.0, 1.0)
FOLDER: dict[str, Any] = {"dataset": "folder:/photos", "image_size": 224}
# The verdict of a sign, and the upper end of its interval: "<" is undecided, but not 10% faster.
VERDICTS = {
    "+": (Verdict.FASTER, 9.9),
    "=": (Verdict.EQUAL, 1.05),
    "-": (Verdict.SLOWER, 0.85),
    "<": (Verdict.UNDECIDED, 1.06),
    "?": (Verdict.UNDECIDED, 9.9),
}


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(sourced((record, Path("run/records.jsonl")) for record in records))


CELL = cells_of(make_record("lmdb", **NONE))[0]
FILES = Choice(label="your files", cell=CELL)


def choice(loss: TrainingChange, told: str, *, feeds: bool = False, spread: float = 0.01) -> Choice:
    """Return a choice from its ratio and the sign of its verdict, "3.1+"."""
    verdict, high = VERDICTS[told[-1]]
    ratio = Ratio(mid=float(told[:-1]), rounds=5, high=high, verdict=verdict, spread=spread)
    return Choice(label=f"a store, {loss}", loss=loss, ratio=ratio, feeds=feeds, cell=CELL)


SAME, PIXELS, OUTER, CROPS = (
    TrainingChange.NOTHING,
    TrainingChange.PIXELS,
    TrainingChange.OUTER_CROPS,
    TrainingChange.CROPS,
)
DECIDED: dict[str, tuple[list[Choice], TrainingChange | None, bool]] = {
    "equal augmentation comes first": ([choice(SAME, "1.3+"), choice(OUTER, "4+"), choice(CROPS, "9+")], SAME, True),
    "the fastest with crops": ([choice(PIXELS, "1.4+"), choice(OUTER, "4+")], OUTER, True),
    "the least change that feeds": (
        [choice(PIXELS, "1.4+", feeds=True), choice(OUTER, "4+", feeds=True)], PIXELS, True,
    ),
    "raw pixels if nothing else was measured": ([choice(CROPS, "9+")], CROPS, True),
    "a loss is not taken beside an equal one": ([choice(SAME, "1.0="), choice(OUTER, "4+")], OUTER, False),
    "nor beside an undecided one": ([choice(SAME, "1.2?"), choice(CROPS, "9+")], CROPS, False),
    "nothing is faster": ([choice(SAME, "1.0="), choice(OUTER, "0.8-")], SAME, False),
    "nothing is decided": ([choice(SAME, "1.2?"), choice(OUTER, "1.0=")], SAME, False),
    "an equal one is named first": ([choice(SAME, "1.1?"), choice(OUTER, "1.4?")], SAME, False),
    "nothing else": ([], None, False),
}  # fmt: skip


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("name", DECIDED)
def test_the_choice_that_the_sentence_names(name: str, busy: bool) -> None:
    others, loss, taken = DECIDED[name]
    sentence, best, is_taken, keeps = decide(FILES, others, busy=busy)
    assert not (is_taken and keeps)
    assert (best and best.loss, is_taken) == (loss, taken)
    assert not taken or (best is not None and best.label in sentence)
    assert len(sentence.split()) <= 20
    assert sentence.startswith("On a busy machine: ") == busy


@pytest.mark.parametrize(("told", "named"), [("6.8?", True), ("2.8?", False), ("6.8-", False)])
def test_a_store_that_may_be_faster_than_the_choice_is_named(told: str, named: bool) -> None:
    rival = dataclasses.replace(choice(SAME, told), label="the rival")
    decision = decide(FILES, [first := choice(SAME, "2.9+"), rival])
    assert (decision.best, decision.is_taken) == (first, True)
    assert ("the rival" in decision.sentence) == named


@pytest.mark.parametrize(
    ("signs", "all_decided"),
    [("=-", True), ("<=", True), ("=?", False), ("??", False)],
)
def test_no_store_is_within_ten_percent_where_one_may_be_faster(signs: str, all_decided: bool) -> None:
    decision = decide(FILES, [choice(SAME, f"0.95{sign}") for sign in signs])
    assert (" 10% " in decision.sentence, decision.is_taken, decision.keeps) == (all_decided, False, True)


@pytest.mark.parametrize(
    ("times", "spread", "rounds"),
    [("1.2?", 0.1, "13"), ("1.5?", 0.1, None), ("1.1?", 0.3, None)],
)
def test_the_rounds_that_decide_are_those_that_tell_it_from_ten_percent(
    times: str, spread: float, rounds: str | None
) -> None:
    decision = decide(FILES, [choice(SAME, times, spread=spread)])
    found = re.search(r"(\d+) rounds", decision.sentence)
    assert (found and found[1]) == rounds


@pytest.mark.parametrize(("sign", "for_now"), [("<", False), ("?", True)])
def test_files_are_kept_for_now_if_the_same_in_another_store_may_be_faster(sign: str, for_now: bool) -> None:
    decision = decide(FILES, [choice(SAME, f"0.97{sign}"), choice(OUTER, "4+")])
    assert ("your files for now;" in decision.sentence, decision.is_taken, decision.keeps) == (
        for_now,
        False,
        True,
    )


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("others", "words", "taken"),
    [
        (
            [choice(SAME, "1.0="), choice(OUTER, "4+"), choice(CROPS, "9+", feeds=True)],
            "only a store, no random",
            False,
        ),
        ([choice(OUTER, "4+", feeds=True), choice(CROPS, "9+", feeds=True)], "only a store, central", True),
        ([choice(SAME, "2+", feeds=True), choice(CROPS, "9+", feeds=True)], "use a store, nothing", True),
        (
            [choice(SAME, "1.0="), choice(OUTER, "4+")],
            "no store is fast enough for A100 80 GB, ResNet-50",
            False,
        ),
    ],
)
def test_an_accelerator_that_the_files_starve_decides(
    others: list[Choice], words: str, taken: bool, busy: bool
) -> None:
    sentence, _, is_taken, _ = decide(FILES, others, accelerator="A100 80 GB, ResNet-50", busy=busy)
    assert words in sentence[:1].lower() + sentence[1:]
    assert (is_taken, len(sentence.split()) <= 24) == (taken, True)


def test_files_that_feed_the_accelerator_are_kept() -> None:
    base = dataclasses.replace(FILES, feeds=True)
    assert decide(base, [choice(SAME, "4+")], accelerator="A100 80 GB, ResNet-50").keeps
    assert decide(base, [choice(SAME, "4+")]).is_taken
    assert decide(FILES, [choice(SAME, "4+")], accelerator="A100", workers=4).keeps


def loaded(
    backend: str, rate: float, cpu_ms: float = 1.0, cores: int | None = None, **changes: Any
) -> list[Record]:
    """Return five replicates that load at a rate with two workers, and take CPU time for each sample."""
    records = loader_records(backend, rate, **{"workers": 2, "spread": FIVE} | changes)
    more: dict[str, Any] = {"conditions": Conditions(cores=cores, wall_s=1.0)} if cores else {}
    return [
        dataclasses.replace(
            record,
            counters=Counters(
                cpu_user_s=record.samples * cpu_ms / 1000, cpu_system_s=0.0, read_amplification=0.0
            ),
            **more,
        )
        for record in records
    ]


def answered(*parts: Iterable[Record], accelerators: tuple[str, ...] = ()) -> Answer:
    records = [(record, Path("run/records.jsonl")) for records in parts for record in records]
    return content_of(
        Results(records=tuple(records)), [find_accelerator(name) for name in accelerators]
    ).answer


def chosen(*parts: Iterable[Record], accelerators: tuple[str, ...] = ()) -> str:
    choice = answered(*parts, accelerators=accelerators).choice
    return choice.backend if choice else ""


def rows(told: Answer) -> list[tuple[str, ...]]:
    return list(told.table.rows) if told.table else []


def waits(backend: str, ms: float, rounds: int = 5, **changes: Any) -> list[Record]:
    return replicates(backend, [ms * (1 + 0.01 * (n % 3 - 1)) for n in range(rounds)], **(NONE | changes))


CASES: dict[str, tuple[list[Record], str, Verdict]] = {
    "a faster store": ([*waits("png", 40), *waits("lmdb", 10)], "lmdb", Verdict.FASTER),
    "an equal store": ([*waits("png", 10), *waits("lmdb", 9.9)], "", Verdict.EQUAL),
    "a slower store": ([*waits("png", 10), *waits("lmdb", 40)], "", Verdict.SLOWER),
    "too few rounds": ([*waits("png", 40, 3), *waits("lmdb", 10, 3)], "", Verdict.UNDECIDED),
    "rounds that differ": (
        [*replicates("png", [10, 20, 10, 40, 10], **NONE), *replicates("lmdb", [10, 5, 20, 4, 6], **NONE)],
        "",
        Verdict.UNDECIDED,
    ),
    "one store": (waits("lmdb", 10), "", Verdict.UNDECIDED),
    "memory is no store": ([*waits("png", 40), *waits("memory:native", 1)], "", Verdict.UNDECIDED),
    "a cold start": (
        [*waits("png", 40, cache="cold"), *waits("lmdb", 10, cache="cold")], "", Verdict.UNDECIDED,
    ),
    "a cold start beside one in memory": (
        [*waits("png", 40), *waits("png", 40, cache="cold"), *waits("lmdb", 10, cache="cold")],
        "",
        Verdict.UNDECIDED,
    ),
    "too little training": (
        [
            *waits("png", 40, steps=10, compute="real", model="lenet"),
            *waits("lmdb", 10, steps=10, compute="real", model="lenet"),
        ],
        "",
        Verdict.UNDECIDED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_store_that_the_answer_chooses(name: str) -> None:
    records, store, verdict = CASES[name]
    found = answered(records)
    assert (found.choice.backend if found.choice else "", found.verdict) == (store, verdict)
    assert found.base is not None
    assert found.base.cell.cache == ("cold" if name == "a cold start" else "warm")
    assert len(found.sentence.split()) <= 20
    assert bool(found.command) == bool(store)


def test_what_another_machine_had_installed_is_not_needed_to_report_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    get_codec.cache_clear()
    assert "convert lmdb+qoi --dataset" in answered(waits("png", 40), waits("lmdb+qoi", 10)).command
    plugged = [
        dataclasses.replace(record, cell=dataclasses.replace(record.cell, backend=elsewhere))
        for record in waits("lmdb", 10)
        for elsewhere in [dataclasses.replace(record.cell.backend, name="elsewhere", format="elsewhere")]
    ]
    assert answered(waits("png", 40), plugged).choice
    get_codec.cache_clear()


@pytest.mark.parametrize(("trains", "tables"), [(False, 1), (True, 0)])
def test_only_a_run_that_only_loads_ends_with_what_the_storage_delivers(trains: bool, tables: int) -> None:
    records = [*waits("png", 40), *waits("lmdb", 10)]
    records += waits("png", 40, compute="real", model="lenet") if trains else []
    content = content_of(Results(records=tuple((record, Path("run/records.jsonl")) for record in records)))
    assert len(content.io) == tables


def test_of_several_places_the_store_where_it_is_is_the_answer_and_columns_name_each() -> None:
    there, here = (
        [*waits("png", 40, place=place), *waits("lmdb", 10, place=place)] for place in ("copy:/b", "local")
    )
    records = tuple((record, Path("run/records.jsonl")) for record in (*there, *here))
    content = content_of(Results(records=records))
    assert content.answer.choice
    assert "copied" not in content.answer.conditions
    assert content.overview
    assert content.overview.head[1:] == ("in memory, copied below /b, loading", "in memory, loading, local")


@pytest.mark.parametrize(
    ("backends", "changes", "base"),
    [
        (("png", "original", "lmdb"), FOLDER, "original"),
        (("original:simplejpeg", "lmdb"), FOLDER, "original:simplejpeg"),
        (("container", "original", "lmdb+original"), {"dataset": "container:/a.tar"}, "container"),
        (("lmdb", "jpeg", "memory:native"), {}, "jpeg"),
        (("memory:native", "lmdb"), {}, "lmdb"),
    ],
)
def test_the_base_is_what_the_user_has(backends: tuple[str, ...], changes: dict[str, Any], base: str) -> None:
    found = answered(*(waits(name, 10.0 + n, **changes) for n, name in enumerate(backends)))
    assert found.base is not None
    assert found.base.backend == base


def test_an_invalid_base_keeps_its_place_and_allows_no_answer(tmp_path: Path) -> None:
    broken = [dataclasses.replace(record, overhead_s=1.0) for record in waits("original", 40, **FOLDER)]
    stores = [*waits("lmdb+original", 20, **FOLDER), *waits("lmdb", 10, **FOLDER)]
    content = content_of(read_results(write_run(tmp_path / "run", [*broken, *stores]), allow_invalid=True))
    assert content.answer.base is not None
    assert (content.answer.base.backend, content.answer.choice) == ("original", None)
    assert rows(content.answer)[0][0] == "your files"


def test_a_setting_whose_base_is_sound_answers_before_one_whose_base_is_not() -> None:
    broken = waits("png", 40, workers=1)
    records = [(record, Path("run/records.jsonl")) for record in (*broken, *waits("lmdb", 10, workers=1))]
    records += [
        (r, Path("run/records.jsonl")) for r in (*waits("png", 40, workers=2), *waits("lmdb", 10, workers=2))
    ]
    wrong = [finding(Rule.SCHEMA, broken[0], "overhead_s", "planted")]
    told = [
        content_of(Results(records=tuple(records), findings=tuple(found))).answer.base
        for found in ([], wrong)
    ]
    assert [base.cell.workers for base in told if base] == [1, 2]


def test_jpegs_of_another_size_are_compared_with_the_files_and_their_loss_is_named() -> None:
    found = answered(
        waits("original", 40, **FOLDER), waits("lmdb+jpeg", 10, **(FOLDER | {"image_size": 256})),
        waits("lmdb", 5, **FOLDER),
    )  # fmt: skip
    assert found.choice is not None
    assert (found.choice.backend, found.ratio and round(found.ratio.mid or 0)) == ("lmdb+jpeg", 4)
    assert [row[-1] for row in rows(found)] == [SAME, OUTER, CROPS]
    assert "--image-size 256" in found.command
    smaller = answered(
        waits("original", 40, **FOLDER), waits("lmdb+jpeg", 1, **(FOLDER | {"image_size": 64}))
    )
    assert smaller.choice is None


def test_a_row_per_choice_with_intervals_and_the_cores_that_it_needs() -> None:
    found = answered(
        loaded("original", 100.0, 2.0, image_size=224, workers=0),
        loaded("lmdb", 2000.0, 0.2, image_size=224, workers=0),
        loaded("lmdb", 4000.0, 0.2, image_size=224),
        loaded("lmdb+jpeg", 900.0, 0.6, image_size=256),
        loaded("original:simplejpeg", 400.0, 1.5, image_size=224),
        loaded("lmdb+original", 300.0, 2.0, image_size=224),
        loaded("original", 300.0, 2.0, image_size=224),
        accelerators=("slow=1000",),
    )
    assert found.table is not None
    parts = {
        name: found.table.head.index(name) for name in ("images/s, 2 workers", "CPU ms", "cores for slow")
    }
    assert [(row[0], *(row[at] for at in parts.values())) for row in found.table.rows] == [
        ("original files", "300 [297, 303]", "2.00", "2"),
        ("LMDB+original", "300 [297, 303]", "2.00", "2"),
        ("original files (simplejpeg)", "400 [396, 404]", "1.50", "2"),
        ("LMDB+JPEG", "900 [892, 908]", "0.600", "1"),
        ("LMDB", "4,000 [3,960, 4,040]", "0.200", "1"),
    ]
    assert found.table.rows[-1][found.table.head.index("images/s, no workers")].startswith("2,000 [")
    assert [row[found.table.head.index("times")] for row in found.table.rows][1:3] == [
        "1.00 [1.00, 1.00]",
        "1.33 [1.33, 1.33]",
    ]


def test_an_accelerator_that_the_files_feed_keeps_them() -> None:
    parts = loaded("original", 300.0, **FOLDER), loaded("lmdb+original", 900.0, **FOLDER)
    assert chosen(*parts) == "lmdb+original"
    assert chosen(*parts, accelerators=("slow=200",)) == ""
    assert chosen(*parts, accelerators=("fast=2000",)) == "lmdb+original"
    assert chosen(*parts, accelerators=("slow=200", "fast=2000")) == "lmdb+original"


@pytest.mark.parametrize(
    ("cores", "changes", "store"),
    [(4, {}, "lmdb"), (8, {}, ""), (8, {"cache": "limited", "memory_bytes": 1 << 28}, "lmdb")],
)
def test_more_workers_come_before_converting_where_cores_are_what_is_missing(
    cores: int, changes: dict[str, Any], store: str
) -> None:
    parts = loaded("png", 300.0, 6.0, cores, **changes), loaded("lmdb", 900.0, 2.0, cores, **changes)
    assert chosen(*parts, accelerators=("fast=1000",)) == store


@pytest.mark.parametrize(("workers", "rate"), [(2, "300"), (0, "33.0")])
def test_the_base_is_enough_below_the_lower_of_its_supply_and_its_starving_point(
    workers: int, rate: str
) -> None:
    parts = loaded("png", 300.0, workers=workers), loaded("lmdb", 900.0, workers=workers)
    told = [line for line in answered(*parts).changes if "PNG files" in line and "below" in line]
    assert [re.findall(r"[\d.]+ ", line) for line in told] == [[f"{rate} "]]


def test_stores_that_are_not_told_apart_from_the_best_are_named() -> None:
    wide = replicates("hdf5", [10, 8, 14, 9, 11], **NONE)
    found = answered(waits("png", 40), waits("lmdb", 10), wide, waits("leveldb", 20))
    told = [line for line in found.changes if "HDF5" in line]
    assert told
    assert "LevelDB" not in told[0]


def test_another_state_with_another_store_would_change_it() -> None:
    limited: dict[str, Any] = {"cache": "limited", "memory_bytes": 1 << 28}
    found = answered(
        waits("png", 40), waits("lmdb", 10), waits("hdf5", 20),
        waits("png", 80, **limited), waits("lmdb", 400, **limited), waits("hdf5", 20, **limited),
    )  # fmt: skip
    assert found.choice is not None
    assert found.choice.backend == "hdf5"
    assert any("LMDB" in text for text in found.changes)


@pytest.mark.parametrize("origin", ["synthetic", "derived"])
def test_what_is_not_real_stands_in_the_conditions_and_nowhere_else(origin: str) -> None:
    records = [
        (r, Path("run/records.jsonl"))
        for r in (*waits("png", 40, origin=origin), *waits("lmdb", 10, origin=origin))
    ]
    content = content_of(Results(records=tuple(records)))
    assert origin.upper() in content.answer.conditions
    assert not any(origin.upper() in text for text in content.caveats)


@pytest.mark.parametrize(("count", "warned", "busy"), [(1, False, False), (2, True, False), (3, True, True)])
def test_other_work_beside_many_replicates_is_a_warning(count: int, warned: bool, busy: bool) -> None:
    records = [
        dataclasses.replace(
            record,
            conditions=Conditions(
                cores=2,
                wall_s=1.0,
                others_cpu_s=2.0 * (n % 5 < count),
                disturbed="other work" * (n % 5 < count),
            ),
        )
        for n, record in enumerate([*waits("png", 40), *waits("lmdb", 10)])
    ]
    assert bool(disturbed(cells_of(*records))[1]) is warned
    assert answered(records).sentence.startswith("On a busy machine: ") is busy


def first_run(folder: Path) -> Path:
    """Write the records of a run that chose its backends for a folder of photographs."""
    cold: dict[str, Any] = FOLDER | {"cache": "cold"}
    run = write_run(
        folder,
        [
            *loaded("original", 100.0, 8.0, 2, **FOLDER), *loaded("lmdb+original", 104.0, 8.0, 2, **FOLDER),
            *loaded("lmdb+jpeg", 260.0, 3.0, 2, **(FOLDER | {"image_size": 256})),
            *loaded("lmdb", 900.0, 0.5, 2, **FOLDER), *loaded("original", 90.0, 8.0, 2, **cold),
        ],
    )  # fmt: skip
    whole = {"count": 9000, "total_bytes": 1 << 30, "memory_bytes": 8 << 30, "fits": True}
    cells = [{"cell_id": record.cell.cell_id} for record in loaded("original", 100.0, **FOLDER)]
    about = {"run_id": "run-a", "cells": cells, "scenario": {"name": "first"}, "whole": whole}
    (run / "run.json").write_text(json.dumps(about))
    return run


def test_a_first_run_ends_with_the_answer_of_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = first_run(tmp_path / "run")
    print_summary(read_results(run))
    printed = capsys.readouterr().out
    command = ["report", str(run), "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert printed.splitlines()[0] == told["answer"]
    assert "To convert all the same: storebench convert lmdb+jpeg --dataset /photos" in " ".join(
        printed.split()
    )
    assert (told["base"], told["choice"], told["best"]) == ("original", None, "lmdb+jpeg")
    assert [row["choice"] for row in told["choices"]] == [
        "your files",
        "the same files in LMDB",
        "256-pixel JPEGs in LMDB",
        "raw pixels in LMDB",
    ]
    assert all(row["samples_per_s_lo"] < row["samples_per_s_hi"] for row in told["choices"])


LARGE = ("answer", "lmdbio-ranks", "mounts", "paper", "remote")
RUNS = [
    pytest.param(path.name, marks=[pytest.mark.slow] if path.name in LARGE else [])
    for path in sorted(REFERENCE.iterdir())
]


@pytest.mark.parametrize("name", [*RUNS, "a first run"])
def test_every_door_shows_the_same_answer(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = read_results(REFERENCE / name if name != "a first run" else first_run(tmp_path / "run"))
    for named in ([], [find_accelerator("mine=500")]):
        content = content_of(results, named)
        put_content(content)  # what 'run', 'bench' and 'report' print
        printed = capsys.readouterr().out
        told = as_dict(Report(content=content))
        page = html(content, {plot.name: b"" for section in content.sections for plot in section.plots})
        first, command = content.answer.sentence, told["command"]
        assert printed.splitlines()[0] == told["answer"] == first
        assert (f">{first}</h1>" in page, first in markdown(content).replace("\\", "")) == (True, True)
        assert len(first.split()) <= 20
        assert command in page
        assert command in printed
        assert told["choice"] is None or (told["choice"], told["verdict"]) == (told["best"], "faster")
