"""Write a report's files from results: tables, plots, the page and its Markdown twin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storebench.accelerators import Accelerator
from storebench.errors import IntegrityError, from_os_error
from storebench.fileio.whole_files import write_all
from storebench.report.analysis import RunFolders
from storebench.report.catalog import not_drawn, plots
from storebench.report.cells import CellSummary
from storebench.report.facts import Facts, PageFacts
from storebench.report.page import Limit, PageContent, Section, html, markdown, page_terms
from storebench.report.plots.style import png_bytes
from storebench.report.rank_tables import rank_tables
from storebench.report.roofline import told_roofline
from storebench.report.roofline_tables import roofline_tables
from storebench.report.shortfall import left_out
from storebench.report.summary import Told, facts_of, incomplete
from storebench.report.tables import dataset_tables, to_csv
from storebench.report.texts.advice import limits, recommend
from storebench.report.texts.caveats import caveats
from storebench.report.texts.decoders import decoder_lines
from storebench.report.texts.headline import headline
from storebench.report.texts.incomplete import left_out_sentence
from storebench.report.texts.labels import (
    backend_label,
    dataset_label,
    dataset_slug,
    number,
    setting_label,
)
from storebench.report.texts.papers import factor_lines, then_and_now
from storebench.report.texts.ranks import interference_lines
from storebench.report.texts.roofline import accelerator_sentence, roofline_answer
from storebench.report.texts.sentence import Sentence
from storebench.report.texts.verdicts import limit_sentence
from storebench.report.validation.findings import Finding
from storebench.report.validation.validate import Sourced, nothing_to_read, read_all, validate_records
from storebench.results import Environment
from storebench.units import number_of

_ROOFLINE_FILES = ("roofline", "roofline-points")
"""Files of the tables of the storage roofline: the starving points, and the measured points."""

_JOB_FILES = ("ranks-communication", "ranks-interference")
"""Names of the tables for jobs of ranks: the cost of communication, and the interaction of loading and exchanging."""


@dataclass(frozen=True, kw_only=True)
class Report(Told):
    """The files of a report, and a summary of it.

    Attributes
    ----------
    feeding
        For each named accelerator and each dataset, one sentence on which stores feed it.
    files
        Every file, the page first.
    failed, invalid
        Cells that failed, and cells that did not validate.
    """

    feeding: tuple[str, ...]
    files: tuple[Path, ...]
    failed: int
    invalid: int


def write_report(
    results: RunFolders, out: Path, *, allow_invalid: bool = False, accelerators: Sequence[Accelerator] = ()
) -> Report:
    """Write the report of `results` into the folder `out`: all of its files, or none.

    Where one cannot be written, a report that was there stays as it was. Other files in `out` always do.

    Raises
    ------
    DataNotFoundError
        There are no whole records.
    IntegrityError
        The results do not validate and `allow_invalid` is not set.
    DiskFullError, OutputError
        A file cannot be written; the error names it.
    """
    records, findings = read_all(results)
    if not records and (allow_invalid or not findings):
        raise nothing_to_read(results)
    findings = [*findings, *validate_records(records)]
    if findings and not allow_invalid:
        raise IntegrityError(
            f"{number_of(len(findings), 'finding')}, the first: {findings[0]}",
            hint="See 'storebench validate', or pass --allow-invalid to have them marked.",
        )
    content = content_of(records, findings, accelerators)
    made = dict(_made(content))
    try:
        files = write_all(out, made)
    except OSError as error:
        raise from_os_error(error, error.filename or out) from error
    return Report(
        answer=content.headline.answer,
        tables=tuple(table for section in content.sections for table in section.tables),
        incomplete=content.incomplete,
        feeding=tuple(sentence for section in content.sections for sentence in section.feeding),
        files=tuple(files),
        failed=sum(1 for cell in content.cells if cell.failure),
        invalid=sum(1 for cell in content.cells if cell.invalid),
    )


def content_of(
    records: Sequence[Sourced], findings: Sequence[Finding] = (), accelerators: Sequence[Accelerator] = ()
) -> PageContent:
    """Return everything that a report of `records` says; its plots are drawn when they are asked for."""
    places = {r.environment.key: r.environment for r, _ in records if r.environment is not None}
    content = page_content(facts_of(records, findings), tuple(places.values()), findings, accelerators)
    omitted = tuple(left_out_sentence(*entry) for entry in left_out(records).items())
    return replace(content, incomplete=incomplete(records), left_out=omitted)


def page_content(
    page: PageFacts,
    environments: Sequence[Environment] = (),
    findings: Sequence[Finding] = (),
    accelerators: Sequence[Accelerator] = (),
) -> PageContent:
    """Return everything that a report says of the facts of a page; plots are drawn when they are asked for."""
    answer = headline(page.told, page.unsound, accelerators)
    roofline = told_roofline(page.told.rooflines)
    panel_lead = answer.panel.first if answer.panel else None
    lead = panel_lead if roofline is None else roofline.first
    parts = sorted(page.shown.datasets.items(), key=lambda part: _weight(part[1].cells[0], lead))
    return PageContent(
        headline=answer,
        sections=tuple(
            _section(part, page.sound_part(key), accelerators, answer.answer) for key, part in parts
        ),
        papers=tuple(then_and_now(page.told)),
        factors=(*factor_lines(page.told), *decoder_lines(page.told)),
        cells=page.shown.cells,
        environments=tuple(environments),
        findings=tuple(findings),
    )


def _weight(first: CellSummary, lead: CellSummary | None) -> tuple[bool, str]:
    """Return a key that puts the dataset first with which the answer begins: its roofline, or else its comparison."""
    return lead is None or first.dataset_key != lead.dataset_key, dataset_label(first)


def _section(shown: Facts, sound: Facts, accelerators: Sequence[Accelerator], answer: str) -> Section:
    """Return the section of one dataset: statements on all its cells, and advice from those that validate."""
    first, slug = shown.cells[0], dataset_slug(shown.cells[0])
    limited = [cell for cell in (shown.main.listed if shown.main else ()) if cell.key in shown.verdicts]
    fed = roofline_answer(sound.rooflines)
    return Section(
        title=dataset_label(first),
        slug=slug,
        environment_key=first.environment_key,
        caveats=tuple(caveats(shown.cells)),
        tables=tuple(dataset_tables(shown)),
        plots=tuple(plots(shown, slug, accelerators)),
        not_drawn=tuple(not_drawn(shown)),
        fed=fed if fed and fed not in answer else "",
        feeding=tuple(_feeding(sound, accelerators)),
        roofline_tables=tuple(roofline_tables(shown.rooflines, accelerators)),
        job_lines=tuple(interference_lines(shown)),
        job_tables=tuple(rank_tables(shown)),
        advice=tuple(recommend(sound)),
        limits=tuple(_limit(cell, shown) for cell in limited),
        ceilings=tuple((name, number(rate)) for name, rate in shown.ceilings.items() if rate),
    )


def _feeding(sound: Facts, accelerators: Sequence[Accelerator]) -> Iterator[str]:
    """Yield one sentence per named accelerator: which stores of a dataset feed it."""
    for roofline in sound.rooflines[:1]:
        yield from (accelerator_sentence(roofline, accelerator) for accelerator in accelerators)


def _limit(cell: CellSummary, facts: Facts) -> Limit:
    verdict = facts.verdicts[cell.key]
    return Limit(
        backend=backend_label(cell.backend),
        setting=setting_label(cell),
        sentence=Sentence(text=limit_sentence(verdict), claims=limits(facts.claims, cell)),
        stalls=verdict.stalls,
    )


def _made(content: PageContent) -> Iterator[tuple[str, str | bytes]]:
    """Yield the name and the content of every file, the page first."""
    explained = page_terms(content)
    yield "report.html", html(content, explained)
    yield "report.md", markdown(content, explained)
    for section in content.sections:
        stem = f"table-{section.slug}"
        yield f"{stem}.csv", to_csv(section.tables)
        yield f"{stem}.md", "\n".join(table.to_markdown() for table in section.tables)
        for name, table in zip(_ROOFLINE_FILES, section.roofline_tables, strict=False):
            yield f"{name}-{section.slug}.csv", to_csv([table])
        for name, table in zip(_JOB_FILES, section.job_tables, strict=False):
            yield f"{name}-{section.slug}.csv", to_csv([table])
        for plot in section.plots:
            yield f"{plot.name}.svg", plot.svg
            yield f"{plot.name}.png", png_bytes(plot.ax)


def feeding_sentences(results: RunFolders, accelerators: Sequence[Accelerator]) -> list[str]:
    """Return one sentence per named accelerator and dataset: which stores feed it; none if no cell only loads.

    Stores whose figures do not validate are left out.
    """
    records, findings = read_all(results)
    facts = facts_of(records, [*findings, *validate_records(records)])
    parts = [facts.sound_part(key) for key in facts.shown.datasets]
    return [sentence for part in parts for sentence in _feeding(part, accelerators)]
