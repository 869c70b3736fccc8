"""Stores in several places and on several machines, side by side, from planted records."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import storebench
from storebench.analysis.checks.records import Results, read_results
from storebench.analysis.frame import Sourced, sourced, to_frame
from storebench.analysis.sharing import share
from storebench.analysis.table import Table
from storebench.probes.machine import disk_number
from storebench.record.schema import Ceilings, Environment, Record
from storebench.report.build import write_content
from storebench.report.content import Content, content_of
from tests.support.harness_tools import SMALL
from tests.support.planted import ENVIRONMENT, make_record, write_run

SPREAD = (1.0, 1.01, 0.99, 1.02, 0.98)


def measured(
    waits_ms: Mapping[str, float], where: str = "e1", cores: int = 2, host: str = "h", **changes: Any
) -> list[Record]:
    """Return five rounds of stores on a machine, or in a place of one that has facts of its own."""
    facts = {**ENVIRONMENT.match, "cpu_count": cores}
    fixed = {"compute": "none", "model": "none", "compute_ms": 0.0, **changes}
    fixed["environment"] = Environment(key=where, match=facts, notes={"host": host})
    return [
        make_record(backend, replicate=number, wait_ms=wait * spread, **fixed)
        for backend, wait in waits_ms.items()
        for number, spread in enumerate(SPREAD)
    ]


def content(records: list[Record]) -> Content:
    return content_of(Results(records=tuple((record, Path("run/records.jsonl")) for record in records)))


def rows_of(records: list[Record]) -> list[Sourced]:
    return sourced((record, Path("run/records.jsonl")) for record in records)


def lines(table: Table) -> dict[tuple[str, str], dict[str, Any]]:
    rows = [dict(zip(table.raw_head, row, strict=True)) for row in table.raw]
    return {(row["store"], row["figure"]): row for row in rows}


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_places_of_a_run_are_compared_round_by_round(cache: str) -> None:
    fast, slow = (Ceilings(single_requests={"read_1_p50_s": seconds}) for seconds in (1e-4, 3e-4))
    records = measured({"png": 10, "lmdb": 4}, cache=cache, place="/a", ceilings=fast)
    records += measured({"png": 20, "lmdb": 4}, "e2", cache=cache, place="/b", ceilings=slow)
    [table] = content(records).beside
    rows = lines(table)
    png = rows["PNG files", "images/s"]
    assert png["/b (None), times"] == pytest.approx(0.5)
    assert (png["/b (None), verdict"], rows["LMDB", "images/s"]["/b (None), verdict"]) == ("slower", "equal")
    assert rows["PNG files", "first batch, ms"]["/b (None), verdict"] == "slower", "a longer wait is worse"
    read = rows["PNG files", "read p50, µs"]
    assert read["/b (None), times"] == pytest.approx(3)
    assert read["/b (None), verdict"] == "undecided", "it was measured once, and repeated in later rounds"


@pytest.mark.parametrize("given", [("/b", "/a"), ("/b", "/a", "local")])
def test_places_are_compared_with_the_local_disk_or_the_first_given(
    given: tuple[str, ...], tmp_path: Path
) -> None:
    records = [record for place in given for record in measured({"png": 10, "lmdb": 4}, place=place)]
    run = write_run(tmp_path / "run", records[::-1])
    cells = [{"cell_id": record.cell.cell_id, "place": record.cell.place} for record in records]
    (run / "run.json").write_text(json.dumps({"run_id": records[0].run_id, "cells": cells}))
    (shared := tmp_path / "run.json.xz").write_bytes(share(run)[1])
    places = ["local"] * ("local" in given) + ["/b", "/a"]
    of_shared = [{"/a": "/place-0", "/b": "/place-1"}.get(place, place) for place in places]
    for path, names in ((run, places), (shared, of_shared)):
        [table] = content_of(read_results(path)).beside
        assert [head for head in table.head if head.endswith("(None)")] == [
            f"{name} (None)" for name in names
        ]


ON_A, ON_B = {"png": 20.0, "lmdb": 4.0, "hdf5": 8.0}, {"png": 20.0, "lmdb": 16.0, "hdf5": 8.0}


def machines() -> list[Record]:
    return measured(ON_A, run_id="a") + measured(ON_B, "e2", cores=16, run_id="b")


def test_ranks_within_machines_are_said_first_and_rates_are_not_paired() -> None:
    page = content(machines())
    within, facts, rates = page.beside
    assert "LMDB over HDF5" in page.answer.sentence
    assert {name: told.choice and told.choice.backend for name, told in page.answer.machines.items()} == {
        "A": "lmdb",
        "B": "hdf5",
    }
    assert all(
        f"{name}: use {told.best.label}" in page.answer.sentence
        for name, told in page.answer.machines.items()
        if told.best
    )
    first, *others = within.raw
    row = dict(zip(within.raw_head, first, strict=True))
    assert row["store"] == "LMDB over HDF5", "the changed rank is the first row"
    assert (row["A, verdict"], row["B, verdict"]) == ("faster", "slower")
    assert {row[0] for row in others} == {"LMDB over PNG files", "HDF5 over PNG files"}
    assert ("cpu_count", "2", "16") in facts.rows
    lmdb = lines(rates)["LMDB", "images/s"]
    assert lmdb["B, times"] == pytest.approx(1 / 4)
    assert lmdb["B, times_lo"] < 1 / 4 < lmdb["B, times_hi"]
    assert lmdb["B, verdict"] == "different machines"


def test_a_machine_that_gains_nothing_keeps_its_files() -> None:
    alike = dict.fromkeys(ON_A, 20.0)
    told = content(measured(ON_A, run_id="a") + measured(alike, "e2", cores=16, run_id="b")).answer.machines
    assert {name: (each.is_taken, each.keeps) for name, each in told.items()} == {
        "A": (True, False),
        "B": (False, True),
    }


@pytest.mark.parametrize(
    ("other", "letters"),
    [
        ({"run_id": "b"}, {""}),
        ({"where": "e2", "place": "/b"}, {""}),
        ({"where": "e2", "run_id": "b"}, {"A", "B"}),
        ({"host": "other", "run_id": "b"}, {""}),
    ],
)
def test_machines_are_told_apart_by_facts_and_not_by_host(other: dict[str, Any], letters: set[str]) -> None:
    assert {row.machine for row in rows_of(measured(ON_A) + measured(ON_A, **other))} == letters


def test_equal_machines_are_joined_and_named() -> None:
    page = content(measured(ON_A) + measured(ON_A, host="other", run_id="b"))
    assert any("h, other" in caveat for caveat in page.caveats)
    assert page.answer.ratio
    assert page.answer.ratio.rounds == 2 * len(SPREAD)
    assert not page.answer.machines


def test_machines_without_a_common_setting_have_a_choice_each(
    tmp_path: Path, cli: Callable[..., Any]
) -> None:
    runs = {"a": measured(ON_A, run_id="a"), "b": measured(ON_B, "e2", cores=16, run_id="b", workers=2)}
    for name, records in runs.items():
        write_run(tmp_path / name, records)
    done = cli("report", "a", "b", "--out", "page", "--allow-invalid", "--json")
    machines = json.loads(done.stdout)["machines"]
    assert {name: told["choice"] for name, told in machines.items()} == {"A": "lmdb", "B": "hdf5"}


def test_compare_in_python_says_the_same() -> None:
    table = to_frame(rows_of(machines()))
    within = storebench.compare(table, baseline="hdf5").query("backend == 'lmdb'")
    assert dict(zip(within.machine, within.verdict, strict=True)) == {"A": "faster", "B": "slower"}
    across = storebench.compare(table, by="machine", baseline="A").query("backend == 'lmdb'")
    assert across.ratio.item() == pytest.approx(1 / 4)
    assert across.verdict.item() == "different machines"


def test_the_page_and_its_files_have_the_tables(tmp_path: Path) -> None:
    page = content(machines())
    write_content(page, tmp_path)
    for name in ("report.html", "report.md"):
        assert all(table.rows[0][0] in (tmp_path / name).read_text() for table in page.beside)
    assert "different machines" in (tmp_path / "beside-2.csv").read_text()


def test_a_run_keeps_its_command_and_the_places_that_hold_a_state(
    cli: Callable[..., Any], in_memory: Path, tmp_path: Path
) -> None:
    if in_memory == tmp_path or disk_number(tmp_path) is None:
        pytest.skip("needs a disk and a folder in memory")
    (shared := tmp_path / "share").mkdir()
    words = [
        "run",
        "png",
        *SMALL,
        "--compute",
        "none",
        "--place",
        f"{shared},copy:{in_memory}",
        "--cache",
        "warm,cold",
    ]
    done = cli(*words, "--out", "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["argv"] == [*words, "--out", "run"]
    places = {(cell["place"], cell["cache"]) for cell in about["cells"]}
    assert places == {(str(shared), "warm"), (str(shared), "cold"), (f"copy:{in_memory}", "warm")}
    assert f"1 cell left out: no cell can be cold at copy:{in_memory}" in done.stderr
    assert (any(shared.iterdir()), any(in_memory.iterdir())) == (True, False), "copies end with the run"
    cli("report", "run", "--out", "page", "--allow-invalid")
    assert shlex.join(["storebench", *about["argv"]]) in (tmp_path / "page" / "report.md").read_text()
