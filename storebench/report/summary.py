"""What a finished run says on a terminal: the answer, tables, limits and advice of its report, without plots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storebench.accelerators import Accelerator
from storebench.report.analysis import RunFolders
from storebench.report.cells import summarise
from storebench.report.facts import Facts, PageFacts, derive_page
from storebench.report.frame import to_frame
from storebench.report.roofline_tables import starving_table
from storebench.report.shortfall import shortfalls
from storebench.report.tables import Table, dataset_tables
from storebench.report.texts.advice import recommend
from storebench.report.texts.headline import headline
from storebench.report.texts.incomplete import incomplete_sentence
from storebench.report.texts.labels import backend_label, setting_label
from storebench.report.texts.method import disturbance_sentence, disturbed_note
from storebench.report.texts.roofline import handoff_sentence
from storebench.report.texts.verdicts import limit_sentence
from storebench.report.texts.worth import Worth, worth
from storebench.report.validation.findings import Finding
from storebench.report.validation.validate import Sourced, read_all, validate_records


@dataclass(frozen=True, kw_only=True)
class Told:
    """What every account of some results says.

    Attributes
    ----------
    answer
        The answer in one sentence.
    tables
        The tables of every dataset, in order.
    incomplete
        What each run that is not complete lacks, in words.
    """

    answer: str
    tables: tuple[Table, ...]
    incomplete: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Summary(Told):
    """The sentences and tables of a report.

    Attributes
    ----------
    limits
        What limits each cell of the main panels, one line per cell.
    advice
        The advice from cells that validate.
    disturbed
        How many of the replicates other work disturbed, and what to do if they are many; "" if none.
    findings
        How many figures do not validate.
    """

    limits: tuple[str, ...]
    advice: tuple[str, ...]
    disturbed: str
    findings: int


def summarise_results(results: RunFolders) -> Summary:
    """Return the statements of a report on `results`. Cells that do not validate are marked, and give no advice.

    Raises
    ------
    DataNotFoundError
        There are no records.
    """
    records, findings = read_all(results)
    findings = [*findings, *validate_records(records)]
    page = facts_of(records, findings)
    parts = page.shown.datasets
    return Summary(
        answer=headline(page.told, page.unsound).answer,
        tables=tuple(table for shown in parts.values() for table in dataset_tables(shown)),
        incomplete=incomplete(records),
        limits=tuple(line for shown in parts.values() for line in _limits(shown)),
        advice=tuple(advice.text for key in parts for advice in recommend(page.sound_part(key))),
        disturbed=disturbed_note(page.shown.cells),
        findings=len(findings),
    )


def facts_of(records: Sequence[Sourced], findings: Sequence[Finding] = ()) -> PageFacts:
    """Return the facts of a page of some records; the first finding about a cell marks it as invalid."""
    invalid = {
        finding.cell_id: f"{finding.figure}: {finding.message}"
        for finding in reversed(findings)
        if finding.cell_id
    }
    return derive_page(summarise(to_frame(records), invalid))


def incomplete(records: Sequence[Sourced]) -> tuple[str, ...]:
    """Return sentences on the missing parts of each run of some records; empty if all are complete."""
    return tuple(incomplete_sentence(shortfall) for shortfall in shortfalls(records))


def _limits(shown: Facts) -> Iterator[str]:
    for cell in shown.main.listed if shown.main else ():
        if cell.key in shown.verdicts:
            sentence = limit_sentence(shown.verdicts[cell.key])
            yield f"{backend_label(cell.backend)}, {setting_label(cell)}: {sentence}"


@dataclass(frozen=True, kw_only=True)
class FirstAnswer:
    """The answer of a run that chose its backends itself.

    Attributes
    ----------
    table
        The supply rate and the starving point of every backend.
    handoff
        Which of them supply more than they feed, and why; "" if none does.
    worth
        Whether converting is worth it.
    incomplete
        Sentences on what the run lacks; empty if it is complete.
    disturbed
        A warning if other work disturbed many of the replicates; "" if not.
    findings
        How many figures do not validate.
    """

    table: Table
    handoff: str
    worth: Worth
    incomplete: tuple[str, ...]
    disturbed: str
    findings: int


def first_answer(results: RunFolders, accelerators: Sequence[Accelerator] = ()) -> FirstAnswer | None:
    """Return whether converting is worth it, from the records of one dataset; None if no cell only loads.

    Parameters
    ----------
    accelerators
        Named accelerators that get a column of the table and a sentence each.

    Raises
    ------
    DataNotFoundError
        There are no records.
    """
    records, findings = read_all(results)
    findings = [*findings, *validate_records(records)]
    page = facts_of(records, findings)
    facts = next(iter(page.told.datasets.values()), None)
    answer = None if facts is None else worth(facts, page.unsound, accelerators)
    if facts is None or answer is None:
        return None
    return FirstAnswer(
        table=starving_table(facts.rooflines, accelerators),
        handoff=handoff_sentence(facts.rooflines),
        worth=answer,
        incomplete=incomplete(records),
        disturbed=disturbance_sentence(facts.cells),
        findings=len(findings),
    )
