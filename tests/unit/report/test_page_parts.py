"""The parts of a page and its tables: marks, raw figures, CSV, places, and what contradicts what."""

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest

from storebench.cli.report import print_summary
from storebench.report.build import content_of
from storebench.report.cells import CellSummary, backend_rank, summarise, varying_fields
from storebench.report.claims import Claim, ClaimKind
from storebench.report.decisions import Topic
from storebench.report.frame import to_frame
from storebench.report.intervals import Estimate
from storebench.report.page import RAW_HEAD, alt_text, flags, html, raw_rows
from storebench.report.panels import panels
from storebench.report.places import data_key, distinctions
from storebench.report.tables import Table, mark, to_csv
from storebench.report.texts.method import method
from storebench.report.texts.notes import cache_notes
from storebench.results import CacheVerdict, Conditions, Record, Status
from tests.support.planted import ENVIRONMENT, make_record, replicates, write_run


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def table(**changes: Any) -> Table:
    fields = {
        "caption": "50% & more_of #1",
        "head": ("backend", "samples/s"),
        "rows": (("LMDB|x", "1,230"),),
        "raw_head": ("backend", "samples_per_s"),
        "raw": (("lmdb", 1234.5), ("=png", None)),
        "notes": ("~ 5 µs",),
    }
    return Table(**(fields | changes))


def test_a_bar_in_a_name_is_no_column_of_markdown() -> None:
    lines = table().to_markdown().splitlines()
    head, rule, row = lines[2:5]
    assert rule == "| --- | ---: |"
    assert head.count("|") == 3
    assert row.replace("\\|", "").replace("&#124;", "").count("|") == 3


def test_csv_holds_raw_values_and_nothing_where_there_is_none() -> None:
    rows = list(csv.reader(io.StringIO(to_csv([table(), table()]))))
    assert rows[0] == ["backend", "samples_per_s"]
    assert rows[1] == ["lmdb", "1234.5"]
    assert rows[2][1] == ""
    assert not rows[2][0].startswith("=")
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("disturbed", "told"),
    [
        (0, []),
        (1, ["Other work of the machine disturbed 1 of 10 replicates."]),
        (
            3,
            [
                (
                    "Other work took more than 20% of the cores during 3 of 10 replicates: run this again on an idle machine"
                    " before you decide."
                )
            ],
        ),
    ],
)
def test_first_screen_and_terminal_say_that_replicates_were_disturbed(
    disturbed: int, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        dataclasses.replace(
            one, conditions=Conditions(wall_s=1.0, cores=2, disturbed="other work" * (number < disturbed))
        )
        for number, one in enumerate(replicates("png", [30.0] * 5) + replicates("lmdb", [10.0] * 5))
    ]
    page = content_of([(record, Path("run/records.jsonl")) for record in records])
    assert [flag.text for flag in flags(page) if flag.text.startswith("Other work")] == told
    print_summary(write_run(tmp_path / "run", records))
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("Other work")] == told


def test_the_terminal_tells_a_run_and_not_the_runs_in_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run" / "before", replicates("lmdb", [10.0] * 3))
    print_summary(write_run(tmp_path / "run", replicates("png", [30.0] * 3)))
    told = capsys.readouterr().out
    assert "PNG files" in told
    assert "LMDB" not in told


def test_a_cell_is_marked_by_what_is_worst_about_it() -> None:
    unverified = make_record("lmdb")
    assert unverified.cache is not None
    facts = dataclasses.replace(unverified.cache, verdict=CacheVerdict.UNVERIFIED)
    failed = make_record("png", status=Status.FAILED, failure="no memory")
    (png,), (lmdb,) = cells_of(failed), cells_of(dataclasses.replace(unverified, cache=facts))
    assert mark(dataclasses.replace(png, invalid="wrong")) == "FAILED: no memory"
    assert mark(dataclasses.replace(lmdb, invalid="wrong")) == "INVALID: wrong"
    assert mark(lmdb) == "cache state not verified"
    assert mark(cells_of(make_record("lmdb"))[0]) == ""


def test_the_raw_figures_of_a_cell_stand_below_their_heads() -> None:
    (row,) = raw_rows(cells_of(*replicates("lmdb", [10.0, 30.0, 20.0], cache="warm")))
    told = dict(zip(RAW_HEAD, row[1], strict=True))
    assert row[0] == ""
    assert told["backend"] == "LMDB"
    assert told["data wait, s"] == "2"
    assert told["wait p99, ms"] == "20"
    assert told["test accuracy"] == ""
    assert (told["replicates"], told["state"]) == ("3", "ok")


def test_the_first_screen_names_failed_cells_before_everything_else() -> None:
    records = [
        make_record("lmdb", portion=None, cache="limited", memory_bytes=1 << 27),
        make_record("png", status=Status.FAILED, failure="no memory"),
    ]
    content = content_of([(record, Path("run/records.jsonl")) for record in records])
    found = flags(content)
    assert (found[0].kind, found[0].text) == (
        "bad",
        "1 of 2 cells failed: ImageNet, 4,000 images PNG files warm (no memory).",
    )
    assert any(one.text.startswith("1 cell requested a limited page cache") for one in found)


def test_who_cannot_see_a_plot_is_told_its_question_and_its_answer() -> None:
    content = content_of([(make_record("lmdb"), Path("run/records.jsonl"))])
    plot = content.sections[0].plots[0]
    assert alt_text(plot) == f"Plot: {plot.question} {plot.answer}"


def row(**changes: Any) -> dict[str, Any]:
    fields = {
        "dataset": "imagenet",
        "split": "train",
        "size": 4000,
        "limit": None,
        "data_seed": 0,
        "synthetic": None,
        "image_size": None,
        "skip_unreadable": False,
        "environment_key": "e1",
        "filesystem": "ext4",
        "storage_device": "disk",
        "machine_readahead_kib": 128,
    }
    return fields | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_seed": 1}, ["data seed 0", "data seed 1"]),
        ({"image_size": 64}, ["", "at 64 pixels a side"]),
        (
            {"skip_unreadable": True},
            ["unreadable files left out: False", "unreadable files left out: True"],
        ),
        ({"dataset": "folder:/a/imagenet"}, ["from imagenet", "from folder:/a/imagenet"]),
        ({"dataset": "mnist"}, ["", ""]),
        ({"size": 5000}, ["", ""]),
        ({"size": 5000, "limit": 4000}, ["grown to 4000", "grown to 5000"]),
        ({"environment_key": "e2", "filesystem": "xfs"}, ["on ext4", "on xfs"]),
        (
            {"environment_key": "e2", "machine_readahead_kib": 8192},
            ["read-ahead 128 KiB", "read-ahead 8192 KiB"],
        ),
        ({"environment_key": "e2"}, ["machine e1", "machine e2"]),
        ({"filesystem": "xfs"}, [""]),
    ],
)
def test_the_fewest_words_tell_sets_of_samples_apart(changes: dict[str, Any], words: list[str]) -> None:
    rows = [row(), row(**changes)]
    named = distinctions(rows)
    assert [named[key] for key in dict.fromkeys(map(data_key, rows))] == words


def test_backends_are_listed_as_the_paper_does_and_then_by_name() -> None:
    names = ["lmdb:direct", "lmdb", "png", "hdf5+png"]
    assert sorted(names, key=backend_rank) == ["png", "lmdb", "hdf5+png", "lmdb:direct"]


def test_the_fields_that_vary_are_those_of_the_setting() -> None:
    cells = cells_of(make_record("png"), make_record("lmdb", workers=2, cache="cold"))
    assert varying_fields(cells) == {"workers", "cache"}
    assert varying_fields(cells[:1]) == varying_fields([]) == frozenset()


def test_a_null_cell_stands_beside_the_panels_of_its_model() -> None:
    cells = cells_of(make_record("png"), make_record("null", cache="any"), make_record("lmdb", model="tiny"))
    found = {panel.first.backend: panel for panel in panels(cells)}
    assert set(found) == {"png", "lmdb"}
    assert [cell.backend for cell in found["png"].listed] == ["png", "null"]
    assert [cell.backend for cell in found["lmdb"].listed] == ["lmdb"]


def said(kind: ClaimKind, subject: CellSummary, other: CellSummary | None = None) -> Claim:
    return Claim(kind=kind, subject=subject, object=other, figure=Estimate(mid=2.0, lo=1.9, hi=2.1, n=3))


def test_sentences_contradict_each_other_where_both_cannot_be_true() -> None:
    png, lmdb = cells_of(make_record("png"), make_record("lmdb"))
    faster = said(ClaimKind.FASTER, lmdb, png)
    assert faster.contradicts(said(ClaimKind.FASTER, png, lmdb))
    assert faster.contradicts(said(ClaimKind.UNDECIDED, png, lmdb))
    assert not faster.contradicts(said(ClaimKind.FASTER, lmdb, png))
    assert not faster.contradicts(said(ClaimKind.EQUAL, png, lmdb)), "one may be faster by less than a tenth"
    assert faster.contradicts(said(ClaimKind.FED, png)), "a loop that hardly waits gains nothing"
    assert not faster.contradicts(said(ClaimKind.FED, lmdb))
    assert not faster.contradicts(said(ClaimKind.SHARE, lmdb, png))
    pays = said(ClaimKind.PAYS, lmdb, png)
    assert pays.contradicts(said(ClaimKind.EQUAL, png, lmdb))
    assert pays.contradicts(said(ClaimKind.FED, png))
    assert pays.contradicts(said(ClaimKind.FASTER, png, lmdb))
    assert not pays.contradicts(faster)
    assert not pays.contradicts(said(ClaimKind.LARGER, lmdb, png))


def test_the_sides_of_a_claim_differ_in_its_topic_and_in_lost_pixels_only() -> None:
    png, jpeg, cold, busy = cells_of(
        make_record("png"),
        make_record("jpeg"),
        make_record("png", cache="cold"),
        make_record("png", workers=2),
    )
    cells = {
        (cell.backend, str(cell.cell.cache), cell.cell.workers): cell for cell in (png, jpeg, cold, busy)
    }
    base = cells["png", "warm", 0]
    found = {
        name: said(ClaimKind.FASTER, cells[key], base)
        for name, key in (
            ("loss", ("jpeg", "warm", 0)),
            ("cache", ("png", "cold", 0)),
            ("workers", ("png", "warm", 2)),
        )
    }
    assert {name: set(one.differs) for name, one in found.items()} == {name: {name} for name in found}
    assert [name for name, one in found.items() if one.fair] == ["loss"]
    assert dataclasses.replace(found["cache"], topic=Topic.CACHE).fair
    assert dataclasses.replace(found["workers"], topic=Topic.WORKERS).fair


def statements(*records: Record) -> dict[str, str]:
    return dict(method(cells_of(*records)))


def test_the_method_counts_this_reports_own_replicates_and_samples() -> None:
    told = statements(*replicates("lmdb", [4.0, 4.0], cache="warm"), make_record("png", cache="warm"))
    assert "Every cell ran in 1 to 2 fresh processes" in told["Replicates"]
    assert "Of 3 epochs with a requested cache state: 3 verified (by fadvise+cachestat)" in told["Cache"]
    assert "9,600 samples were served" in told["Same work"]
    assert "0 were wrong" in told["Same work"]


def test_where_no_cache_state_was_asked_for_the_method_says_so() -> None:
    assert statements(make_record("lmdb", cache="any"))["Cache"].startswith("No cache state was requested")
    assert "ran in 1 fresh process, interleaved" in statements(make_record("lmdb"))["Replicates"]


def test_one_more_table_is_not_called_tables() -> None:
    def page(*states: str) -> str:
        records = [make_record("lmdb", cache=state) for state in states]
        return html(content_of([(record, Path("run/records.jsonl")) for record in records]))

    assert "<summary>1 more table</summary>" in page("cold", "warm")
    assert "<summary>2 more tables</summary>" in page("cold", "warm", "any")


def test_a_warm_cell_is_explained_and_a_cell_in_any_state_is_not() -> None:
    assert any(
        note.startswith("Warm = ") for note in cache_notes(cells_of(make_record("lmdb", cache="warm")))
    )
    assert cache_notes(cells_of(make_record("lmdb", cache="any"))) == []


def test_the_environment_of_a_page_is_listed_once() -> None:
    records = [make_record("png"), make_record("lmdb")]
    content = content_of([(record, Path("run/records.jsonl")) for record in records])
    assert content.environments == (ENVIRONMENT,)
