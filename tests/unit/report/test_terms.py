"""The list of terms: it explains the terms that a page uses, and no others."""

from pathlib import Path

import pytest

from storebench.formats.lmdb.direct import RUNGS, Rung
from storebench.report.build import content_of
from storebench.report.page import PageContent, html, markdown, page_terms
from storebench.report.texts.terms import TERMS, terms
from storebench.results import Record
from tests.support.planted import make_record, paper_records, replicates


def content(records: list[Record]) -> PageContent:
    return content_of([(record, Path("run/records.jsonl")) for record in records])


@pytest.mark.parametrize("page", [html, markdown])
def test_a_page_explains_its_terms_once(page: object) -> None:
    assert callable(page)
    text = page(content(paper_records()))
    for term in ("PNG files", "warm", "replicate", "handoff"):
        assert text.count(f"<dt>{term}</dt>") + text.count(f"**{term}.**") == 1
    assert 'href="#terms"' in text or page is markdown


def test_a_term_that_a_page_does_not_use_is_not_explained() -> None:
    told = dict(page_terms(content(replicates("png", [30.0] * 3) + replicates("lmdb", [10.0] * 3))))
    assert not {"COAL", "rung", "rank, job", "EMULATED", "exposed communication"} & set(told)
    trained = replicates("png", [30.0] * 3, compute="emulated:5") + replicates(
        "lmdb", [9.0] * 3, compute="emulated:5"
    )
    assert "EMULATED" in dict(page_terms(content(trained)))


def _on_rung(rung: Rung) -> list[Record]:
    options = tuple(sorted(rung.options.items()))
    return replicates(rung.backend.partition("?")[0], [9.0] * 3, compute="none", reader_options=options)


def test_a_term_that_stands_in_a_plot_alone_is_explained() -> None:
    climbed = [rung for rung in RUNGS if rung.key in ("plain", "prov", "coal")]
    page = content([record for rung in climbed for record in _on_rung(rung)])
    assert "DIO" not in markdown(page).partition("## Terms")[0], "no sentence uses it"
    assert {"PROV", "DIO", "COAL"} <= set(dict(page_terms(page)))


def test_backends_are_explained_by_their_formats() -> None:
    records = [make_record(name) for name in ("lmdb", "lmdb+jpeg", "lmdb:direct")]
    told = dict(page_terms(content(records)))
    assert told["LMDB, LMDB+JPEG"].endswith("reader: py-lmdb's get, one call per sample")
    assert told["LMDB (direct)"].endswith("reader: page index, explicit planned reads")


def test_every_term_is_found_by_its_own_name() -> None:
    names = [one.name.partition(",")[0] for one in TERMS]
    assert len(set(names)) == len(names)
    missed = [
        name
        for name, one in zip(names, TERMS, strict=True)
        if name not in ("at most", "rank") and not one.is_in(name)
    ]
    assert missed == []
    assert terms("two 2 ranks; at most 3.1 times", []) == [
        (one.name, one.meaning) for one in TERMS if one.name in ("at most, at least", "rank, job")
    ]
