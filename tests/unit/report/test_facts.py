"""What follows from a set of records is derived once, and by one module; parts of it are those of the whole."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from storebench.report.build import content_of
from storebench.report.ceilings import ceilings
from storebench.report.cells import CellSummary, summarise, varying_fields
from storebench.report.claims import claims_of
from storebench.report.decisions import decide, looks_at
from storebench.report.factors import break_evens, squares
from storebench.report.facts import derive, derive_page
from storebench.report.frame import to_frame
from storebench.report.ladder import ladders
from storebench.report.main_panel import ordered
from storebench.report.panels import panels
from storebench.report.texts.advice import recommend
from storebench.report.texts.headline import headline
from storebench.report.validation.findings import Rule, finding
from storebench.report.verdict import cell_verdicts
from storebench.results import Record
from tests.support.planted import make_record, paper_records, replicates, write_run

DERIVATIONS: tuple[Callable[..., Any], ...] = (
    panels, ordered, decide, looks_at, cell_verdicts, ladders, squares, break_evens, claims_of, varying_fields, headline,
    summarise,
)  # fmt: skip


def sourced(records: list[Record], run: Path = Path("run")) -> list[tuple[Record, Path]]:
    return [(record, run / "records.jsonl") for record in records]


def cells_of(records: list[Record], run: Path = Path("run")) -> list[CellSummary]:
    return summarise(to_frame(sourced(records, run)))


def calls_during(action: Callable[[], object]) -> Counter[str]:
    """Return how often each derivation was called, by whatever name it was imported."""
    names: dict[CodeType, str] = {function.__code__: function.__name__ for function in DERIVATIONS}
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


ONCE = {function.__name__: 1 for function in DERIVATIONS}


def test_a_report_derives_each_fact_once() -> None:
    records = paper_records(rounds=3) + replicates("lmdb", [3.0] * 3, workers=2)
    assert dict(calls_during(lambda: content_of(sourced(records)))) == ONCE


def test_cells_that_do_not_validate_decide_nothing() -> None:
    records = [record for name in ("png", "hdf5", "lmdb") for record in replicates(name, [40.0] * 3)]
    wrong = [finding(Rule.ARITHMETIC, record, "samples_per_s", "planted") for record in records[3:4]]
    calls = calls_during(lambda: content_of(sourced(records), wrong))
    assert (calls["decide"], calls["headline"], calls["panels"]) == (1, 1, 2)


def test_the_facts_of_a_dataset_are_those_of_its_cells(tmp_path: Path) -> None:
    small = {"dataset": "mnist", "size": None, "cache": "warm"}
    records = paper_records("cold") + paper_records("warm")
    records += replicates("files+raw", [30.0] * 3, cache="warm")
    records += replicates("lmdb+png", [60.0] * 3, cache="warm")
    records += [record for name in ("png", "lmdb") for record in replicates(name, [20.0] * 3, **small)]
    write_run(tmp_path / "run", records)
    page = derive(cells_of(records, tmp_path / "run"))
    assert len(page.datasets) == 2
    assert [part.decisions for part in page.datasets.values()] == [page.decisions] * 2
    for part in page.datasets.values():
        alone = derive(part.cells, page.decisions)
        assert [panel.cells for panel in part.panels] == [panel.cells for panel in alone.panels]
        assert [panel.cells for panel in part.ordered] == [panel.cells for panel in alone.ordered]
        assert {cell.key: part.verdicts[cell.key].bound for cell in part.cells if not cell.is_null} == {
            key: verdict.bound for key, verdict in alone.verdicts.items()
        }
        assert [square.whole for square in part.squares] == [square.whole for square in alone.squares]
        assert [one.convert_s for one in part.paying] == [one.convert_s for one in alone.paying]
        assert part.claims is page.claims
        assert part.varying == alone.varying
        assert part.ceilings == alone.ceilings == ceilings(part.ordered[0].listed)
    large = next(part for part in page.datasets.values() if part.cells[0].cell.data.name == "imagenet")
    assert large.squares


def test_a_fact_is_not_changed_afterwards() -> None:
    facts = derive(cells_of(paper_records()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.panels = ()  # type: ignore[misc]


def two_cells(*, invalid: set[str]) -> list[CellSummary]:
    cells = cells_of(replicates("png", [50.0] * 3) + replicates("lmdb", [10.0] * 3))
    return [dataclasses.replace(cell, invalid="planted" if cell.backend in invalid else "") for cell in cells]


def test_without_a_wrong_record_what_is_shown_is_what_is_told() -> None:
    page = derive_page(two_cells(invalid=set()))
    assert page.told is page.sound is page.shown


def test_a_cell_that_does_not_validate_is_shown_and_decides_nothing() -> None:
    page = derive_page(two_cells(invalid={"png"}))
    assert [cell.backend for cell in page.told.cells] == ["lmdb"]
    assert [cell.backend for cell in page.shown.cells] == ["png", "lmdb"]
    assert page.shown.decisions is page.told.decisions
    first, second = page.shown.cells
    assert page.shown.decisions.between(first, second) is None


def test_where_no_cell_validates_all_are_told_and_none_is_advised() -> None:
    page = derive_page(two_cells(invalid={"png", "lmdb"}))
    (key,) = page.shown.datasets
    assert page.told is page.shown
    assert "3.0 times" in headline(page.told).answer
    assert recommend(page.shown.datasets[key])
    assert recommend(page.sound_part(key)) == []


def test_nothing_follows_from_nothing() -> None:
    facts = derive([])
    assert (facts.main, facts.paying_panel, facts.paying, dict(facts.datasets)) == (None, None, (), {})
    assert headline(facts).answer == "Nothing was measured: every cell failed."


def test_the_paying_panel_is_the_first_whose_rate_is_that_of_whole_epochs() -> None:
    cold, warm = paper_records("cold"), [make_record(name, cache="warm") for name in ("png", "lmdb")]
    assert derive(cells_of(cold)).paying_panel is None
    panel = derive(cells_of(cold + warm)).paying_panel
    assert panel is not None
    assert panel.first.cell.cache == "warm"


def test_a_dataset_without_a_sound_cell_is_decided_as_the_page_is() -> None:
    cells = cells_of(
        [*replicates("png", [50.0] * 3), *replicates("lmdb", [10.0] * 3, dataset="mnist", size=None)]
    )
    page = derive_page([dataclasses.replace(one, invalid="wrong" * (one.backend == "lmdb")) for one in cells])
    sound, unsound = (next(one for one in cells if one.backend == name) for name in ("png", "lmdb"))
    assert [one.backend for one in page.sound_part(sound.dataset_key).cells] == ["png"]
    assert page.sound_part(unsound.dataset_key).cells == ()
    for cell in (sound, unsound):
        assert page.sound_part(cell.dataset_key).decisions is page.sound.decisions
