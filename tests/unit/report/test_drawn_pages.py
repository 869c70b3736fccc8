"""Pages of 207 drawn record sets: the rules that all their sentences obey, checked by the claims behind the sentences."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storebench.report import claims as claims_module
from storebench.report.build import page_content
from storebench.report.cells import SETTING_COLUMNS, CellSummary, summarise
from storebench.report.claims import Claim, ClaimKind, Claims
from storebench.report.decisions import Decision, Decisions
from storebench.report.facts import derive_page
from storebench.report.frame import to_frame
from storebench.report.places import data_key, distinctions
from storebench.report.plots import ladder, workers
from storebench.report.texts import choosing, headline
from storebench.report.texts.labels import backend_label
from storebench.report.texts.sentence import Sentence
from storebench.results import Record
from tests.support import planted
from tests.support.drawn_records import TRAITS, DrawnSet, drawn_set, traits_of
from tests.support.page_rules import (
    RULES,
    Page,
    Rule,
    contradictions,
    loose_figures,
    nameless,
    strangers,
    two_answers,
    undecided_leads,
    unfair,
    unpaid,
    unproven,
    wrong_rungs,
)

NUMBERS = (*range(207), 283)
"""The seeds of the sets; on the page of the last one a break-even is told."""


def pages_of(sets: Sequence[DrawnSet], folder: Path) -> list[Page]:
    """Return the page of each set; all records become one table, which takes most of the time."""
    sourced: list[tuple[Record, Path]] = []
    for one in sets:
        run = folder / f"run-{one.number}"
        one.write(run)
        for record in one.records:
            assert record.environment is not None
            place = replace(record.environment, key=f"{one.number}-{record.environment.key}")
            sourced.append((replace(record, environment=place), run / "records.jsonl"))
    grouped: dict[int, list[CellSummary]] = {one.number: [] for one in sets}
    for cell in summarise(to_frame(sourced)):
        grouped[int(cell.environment_key.partition("-")[0])].append(cell)
    return [_page(one, grouped[one.number]) for one in sets]


def _page(drawn: DrawnSet, cells: Sequence[CellSummary]) -> Page:
    places = distinctions([cell.rows[0] for cell in cells])
    known = [
        replace(
            cell,
            place=places[data_key(cell.rows[0])],
            invalid="planted" if cell.cell.cell_id in drawn.invalid else "",
        )
        for cell in cells
    ]
    facts = derive_page(known)
    return Page(drawn=drawn, facts=facts, content=page_content(facts))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Page]:
    return pages_of([drawn_set(number) for number in NUMBERS], tmp_path_factory.mktemp("drawn"))


# The rules. Each returns what breaks it.


def broken(rule: Rule, pages: Sequence[Page]) -> list[str]:
    return [f"{page.name}: {text}" for page in pages for text in rule(page)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_page_breaks_the_rule_of(rule: Rule, pages: list[Page]) -> None:
    assert broken(rule, pages)[:5] == []


def test_the_pages_say_enough_for_every_rule_to_be_tried(pages: list[Page]) -> None:
    assert len(pages) >= 200
    said = [(page, claim) for page in pages for claim in page.said()]
    seen = {claim.kind for _, claim in said}
    # Decoders, spikes, contention and jobs of ranks have tests of their own.
    assert seen >= set(ClaimKind) - {
        ClaimKind.SPIKE,
        ClaimKind.CONTENTION,
        ClaimKind.CLOSES,
        ClaimKind.EXPOSED,
    }
    rules = {
        advice.rule[:2] for page in pages for section in page.content.sections for advice in section.advice
    }
    assert rules == {f"R{number}" for number in range(10)}
    assert sum("loss" in claim.differs for _, claim in said) > 10
    assert all(any(trait in page.drawn.traits for page in pages) for trait in TRAITS)


def test_plots_that_the_records_cannot_carry_are_not_on_the_page(pages: list[Page]) -> None:
    for page in pages:
        names = {
            plot.name.partition("-imagenet")[0] for section in page.content.sections for plot in section.plots
        }
        states = {cell.cell.cache for cell in page.facts.shown.cells}
        assert "read-amplification" not in names or states != {"warm"}, page.name
        if page.drawn.conversions and "break-even" not in names:
            told = [text for section in page.content.sections for text in section.not_drawn]
            asked = any(part.paying for part in page.facts.shown.datasets.values())
            assert not asked or any(text.startswith("When a conversion pays") for text in told), page.name


# Faults: each rule sees what it is for.


def never_undecided(one: Decision) -> Claim:
    kind = ClaimKind.FASTER if one.faster or one.slower else ClaimKind.EQUAL
    return Claim(
        kind=kind, subject=one.cell, object=one.base, figure=one.ratio, topic=one.topic, decision=one
    )


def without_workers(cell: CellSummary) -> tuple[object, ...]:
    return tuple(None if name == "workers" else cell.fields[name] for name in SETTING_COLUMNS)


def medians(cells: Sequence[CellSummary], claims: Claims) -> Sentence:
    return Sentence(text="LMDB gains most: 4.00 times with 4 workers.")


FAULTS: dict[str, tuple[Rule, str, Callable[[pytest.MonkeyPatch], None]]] = {
    "an undecided comparison leads": (
        undecided_leads, "mixed", lambda patch: patch.setattr(headline, "leading", lambda asked: next(iter(asked), None)),
    ),
    "what is not refused is equal": (
        unproven, "undecided", lambda patch: patch.setattr(claims_module, "_compared", never_undecided),
    ),
    "every loop is fed": (unproven, "decided", lambda patch: patch.setattr(Decisions, "fed", lambda *_: True)),
    "wide intervals pay": (unpaid, "conversions", lambda patch: patch.setattr(claims_module, "MOST_SPAN", 1e9)),
    "what training does not gain pays": (
        unpaid, "hidden", lambda patch: patch.setattr(claims_module, "_training_gains", lambda *_: True),
    ),
    "lossy stores are not called so": (
        unfair, "lossy", lambda patch: patch.setattr(choosing, "store_label", lambda cell, _: backend_label(cell.backend)),
    ),
    "an answer takes its figure from medians": (
        loose_figures, "workers", lambda patch: patch.setattr(workers, "workers_answer", medians),
    ),
    "two rungs have one name": (
        nameless, "ladder", lambda patch: patch.setattr(planted, "full_name", lambda backend, _: backend),
    ),
    "a loss on a ladder is called a gain": (
        wrong_rungs, "ladder", lambda patch: patch.setattr(ladder, "_is_gain", lambda _, claim: claim.kind is ClaimKind.FASTER),
    ),
    "the answer does not name the fastest store": (
        two_answers, "decided", lambda patch: patch.setattr(headline, "_fastest", lambda *_: None),
    ),
    "different workers are compared": (
        unfair, "workers", lambda patch: patch.setattr(CellSummary, "setting", property(without_workers)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_sees_that(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, trait, plant = FAULTS[name]
    numbers = (number for number in NUMBERS if trait in traits_of(number))
    plant(monkeypatch)
    sets = (drawn_set(number) for number in itertools.islice(numbers, 8))
    assert any(broken(rule, pages_of([one], tmp_path)) for one in sets)


def test_a_contradiction_between_two_claims_of_a_page_is_seen(pages: list[Page]) -> None:
    page = next(page for page in pages if any(one.kind is ClaimKind.FASTER for one in page.said()))
    faster = next(one for one in page.said() if one.kind is ClaimKind.FASTER)
    told = page.content.headline
    assert faster.object is not None
    turned = replace(faster, subject=faster.object, object=faster.subject)
    more = Sentence(text="Both ways.", claims=(faster, turned))
    content = replace(page.content, headline=replace(told, sentences=(*told.sentences, more)))
    assert contradictions(replace(page, content=content))
    assert strangers(replace(page, content=content))
