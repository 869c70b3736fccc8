"""What a finished run says on a terminal: the answer, tables, limits and advice of its report, without plots."""

from collections.abc import Iterator
from dataclasses import dataclass

from storebench.report.analysis import Paths
from storebench.report.cells import summarise
from storebench.report.facts import Facts, derive_page
from storebench.report.frame import to_frame
from storebench.report.tables import Table, dataset_tables
from storebench.report.texts.advice import recommend
from storebench.report.texts.headline import headline
from storebench.report.texts.labels import backend_label, setting_label
from storebench.report.texts.verdicts import limit_sentence
from storebench.report.validation.validate import read_all, validate_records


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The sentences and tables of a report.

    Attributes
    ----------
    answer
        The answer in one sentence.
    tables
        The tables of every dataset, in order.
    limits
        What limits each cell of the main panels, one line per cell.
    advice
        The advice from cells that validate.
    findings
        How many figures do not validate.
    """

    answer: str
    tables: tuple[Table, ...]
    limits: tuple[str, ...]
    advice: tuple[str, ...]
    findings: int


def summarise_results(results: Paths) -> Summary:
    """Return what a report of `results` says. Cells that do not validate are marked, and give no advice.

    Raises
    ------
    DataNotFoundError
        There are no records.
    """
    records, findings = read_all(results)
    findings = [*findings, *validate_records(records)]
    invalid = {one.cell_id: f"{one.figure}: {one.message}" for one in reversed(findings) if one.cell_id}
    page = derive_page(summarise(to_frame(records), invalid))
    parts = page.shown.datasets
    return Summary(
        answer=headline(page.told).answer,
        tables=tuple(table for shown in parts.values() for table in dataset_tables(shown)),
        limits=tuple(line for shown in parts.values() for line in _limits(shown)),
        advice=tuple(one.text for key in parts for one in recommend(page.sound_part(key))),
        findings=len(findings),
    )


def _limits(shown: Facts) -> Iterator[str]:
    for cell in shown.main.listed if shown.main else ():
        if cell.key in shown.verdicts:
            sentence = limit_sentence(shown.verdicts[cell.key])
            yield f"{backend_label(cell.backend)}, {setting_label(cell)}: {sentence}"
