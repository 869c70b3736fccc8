"""The report as one self-contained HTML page, and the same in Markdown."""

import base64
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from storebench._version import __version__
from storebench.plain_text import markdown as escaped_markdown
from storebench.plain_text import plain
from storebench.report.cells import CellSummary
from storebench.report.claims import Claim
from storebench.report.plots.plot import Plot
from storebench.report.tables import MOST_TABLES, Table, mark, no_rate, remark
from storebench.report.texts.advice import RULES
from storebench.report.texts.choosing import Advice
from storebench.report.texts.headline import Headline
from storebench.report.texts.labels import (
    BRACKETS,
    backend_label,
    batch_words,
    dataset_label,
    setting_label,
    state_label,
)
from storebench.report.texts.method import disturbed_note, method
from storebench.report.texts.notes import STALLS, cache_notes
from storebench.report.texts.papers import PaperClaim
from storebench.report.texts.ranks import JOB_INTERVALS
from storebench.report.texts.resting import precision_words
from storebench.report.texts.sentence import Sentence
from storebench.report.texts.terms import terms
from storebench.report.validation.findings import Finding
from storebench.report.verdict import Stalls
from storebench.results import Environment
from storebench.units import METRICS, number_of


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The limit of one cell, in words."""

    backend: str
    setting: str
    sentence: Sentence
    stalls: Stalls


@dataclass(frozen=True, kw_only=True)
class Section:
    """The part of the report on one dataset on one machine."""

    title: str
    slug: str
    environment_key: str
    caveats: tuple[str, ...]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...]
    not_drawn: tuple[str, ...]
    advice: tuple[Advice, ...]
    limits: tuple[Limit, ...]
    ceilings: tuple[tuple[str, str], ...]
    fed: str = ""
    feeding: tuple[str, ...] = ()
    roofline_tables: tuple[Table, ...] = ()
    job_lines: tuple[str, ...] = ()
    job_tables: tuple[Table, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """The content of the page and of its Markdown twin."""

    headline: Headline
    sections: tuple[Section, ...]
    papers: tuple[PaperClaim, ...]
    factors: tuple[str, ...]
    cells: tuple[CellSummary, ...]
    environments: tuple[Environment, ...]
    findings: tuple[Finding, ...]
    incomplete: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the first screen and the advice assert."""
        advice = (advice for section in self.sections for advice in section.advice)
        return (*self.headline.claims, *(claim for one in advice for claim in one.claims))


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A warning or note of the first screen."""

    kind: str
    text: str


RAW_COLUMNS = (
    ("data wait, s", "data_wait_s"),
    ("copy, s", "h2d_s"),
    ("compute, s", "compute_s"),
    ("overhead, s", "overhead_s"),
    ("timed, s", "timed_s"),
    ("fetch, s", "fetch_s"),
    ("decode, s", "decode_s"),
    ("prep, s", "prep_s"),
    ("handoff, s", "handover_s"),
    ("wait p99, ms", "data_wait_p99_ns"),
    ("longest wait, ms", "data_wait_max_ns"),
    ("first batch, s", "time_to_first_batch_s"),
    ("open, s", "open_s"),
    ("device reads, MiB", "device_read_bytes"),
    ("major faults", "major_faults"),
    ("resident before", "resident_frac_before"),
    ("resident after", "resident_frac_after"),
    ("test accuracy", "test_accuracy"),
)
"""Head and figure of each column in the page's table of all cells."""

_FACTORS = {"data_wait_p99_ns": 1e-6, "data_wait_max_ns": 1e-6, "device_read_bytes": 2.0**-20}
_MOST_NAMED = 8

MOST_UNBROKEN, LONGEST_TITLE = 22, 240
"""Characters up to which a figure of a table stays on one line, and above which the answer of a plot is no title."""


def flags(content: PageContent) -> list[Flag]:
    """Return the warnings of the first screen, about cells that failed, are not proven, or are not real."""
    cells = content.cells
    failed = [cell for cell in cells if cell.failure]
    doubtful = [cell for cell in cells if not cell.failure and mark(cell).startswith("cache")]
    flagged = [Flag(kind="note", text=text) for text in (*_caveats(content), *content.left_out)]
    if content.findings:
        named = _names(cell for cell in cells if cell.invalid)
        flagged.insert(
            0,
            Flag(
                kind="bad",
                text=f"{number_of(len(content.findings), 'finding')} of validation: {named}. Do not draw conclusions from these cells.",
            ),
        )
    if failed:
        flagged.insert(
            0,
            Flag(
                kind="bad", text=f"{len(failed)} of {number_of(len(cells), 'cell')} failed: {_names(failed)}."
            ),
        )
    if note := disturbed_note(cells):
        flagged.append(Flag(kind="note", text=note))
    unproven = [cell for cell in cells if cell.whole_only]
    if unproven:
        text = (
            f"{number_of(len(unproven), 'cell')} requested a limited page cache, but the records show no steady steps, or too few"
            " for a rate. So they have no rate in that state and rank nothing. The rates shown are those of the entire epoch."
        )
        flagged.append(Flag(kind="note", text=text))
    if doubtful:
        flagged.append(
            Flag(
                kind="note",
                text=f"{number_of(len(doubtful), 'cell')} whose cache state could not be verified: {_names(doubtful)}.",
            )
        )
    return flagged


def _measured(content: PageContent) -> str:
    """Return the settings of the panel that the answer rests on; "" if nothing was measured."""
    panel = content.headline.panel
    if panel is None:
        return ""
    cells = panel.measured or panel.cells
    return f"Measured: {dataset_label(panel.first)}, {setting_label(panel.speaker, without=('batch_size',))}, {batch_words(cells)}."


def _states(content: PageContent) -> list[str]:
    """Return the meanings of the cache states in the leading panel."""
    panel = content.headline.panel
    return cache_notes(panel.cells) if panel is not None else []


def _caveats(content: PageContent) -> list[str]:
    """Return each caveat with the datasets that it is true of; what the answer says of its own is not said again."""
    titles: dict[str, list[str]] = {}
    for section in content.sections:
        for text in section.caveats:
            titles.setdefault(text, []).append(section.title)
    answered = {text for text in titles if text in content.headline.answer}
    alone = {text for text in answered if len(titles[text]) == 1}
    return [f"{'; '.join(where)}: {text}" for text, where in titles.items() if text not in alone]


def _names(cells: Iterable[CellSummary]) -> str:
    names = [
        f"{dataset_label(c)} {backend_label(c.backend)} {state_label(c)}"
        + (f" ({c.failure})" if c.failure else "")
        for c in cells
    ]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return "; ".join(names[:_MOST_NAMED]) + more


def raw_rows(cells: Sequence[CellSummary]) -> list[tuple[str, list[str]]]:
    """Return (mark, texts) of every cell with its raw figures, medians over replicates."""
    return [(mark(cell), _raw_row(cell)) for cell in cells]


RAW_HEAD = (
    "dataset",
    "backend",
    "cache",
    "workers",
    "setting",
    "samples/s",
    *(head for head, _ in RAW_COLUMNS),
    "replicates",
    "state",
)


def _raw_row(cell: CellSummary) -> list[str]:
    figures = [_plain(cell.median(name), _FACTORS.get(name, 1.0)) for _, name in RAW_COLUMNS]
    return [
        dataset_label(cell),
        backend_label(cell.backend),
        cell.cell.cache,
        str(cell.cell.workers),
        setting_label(cell),
        _plain(cell.median("samples_per_s")) or no_rate(cell),
        *figures,
        str(len(cell.values("samples_per_s"))),
        remark(cell) or "ok",
    ]


def _plain(value: float | None, factor: float = 1.0) -> str:
    return "" if value is None else f"{value * factor:.5g}"


def alt_text(plot: Plot) -> str:
    """Return the alternative text of a plot."""
    return f"Plot: {plot.question} {plot.answer}"


def _image(plot: Plot) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(plot.svg).decode()


@functools.cache
def _templates(escaped: Callable[[str], str]) -> jinja2.Environment:
    """Return the templates' environment; values are `escaped` unless they are marked as safe."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("storebench.report"),
        autoescape=jinja2.select_autoescape(["html.j2"], default=False),
        finalize=lambda value: value if hasattr(value, "__html__") else escaped(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _context(content: PageContent, explained: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "terms": explained,
        "content": content,
        "question": content.headline.question,
        "flags": flags(content),
        "states": _states(content),
        "measured": _measured(content),
        "method": [*method(content.cells), *_precision(content)],
        "rules": RULES,
        "stalls": STALLS,
        "job_intervals": JOB_INTERVALS,
        "brackets": BRACKETS if "[" in content.headline.answer else "",
        "version": __version__,
        "backend_label": backend_label,
        "alt_text": alt_text,
        "number_of": number_of,
        "most_tables": MOST_TABLES,
        "most_unbroken": MOST_UNBROKEN,
        "longest_title": LONGEST_TITLE,
    }


def _precision(content: PageContent) -> list[tuple[str, str]]:
    words = precision_words(content.claims)
    return [("Precision", words)] if words else []


def html(content: PageContent, explained: Sequence[tuple[str, str]] | None = None) -> str:
    """Return the page with its images, style and script embedded; it fetches nothing.

    Parameters
    ----------
    explained
        The terms that the page explains, as (term, meaning); by default those that it uses.
    """
    explained = page_terms(content) if explained is None else explained
    template = _templates(plain).get_template("report.html.j2")
    return template.render(
        **_context(content, explained),
        image=_image,
        raw_head=RAW_HEAD,
        raw_rows=raw_rows(content.cells),
        metrics=METRICS.values(),
    )


def markdown(content: PageContent, explained: Sequence[tuple[str, str]] | None = None) -> str:
    """Return the report for a pull request or a wiki; plots are linked as the PNG files beside it.

    Parameters
    ----------
    explained
        The terms that the page explains, as (term, meaning); by default those that it uses, for which its plots are drawn.
    """
    explained = page_terms(content) if explained is None else explained
    return _templates(escaped_markdown).get_template("report.md.j2").render(**_context(content, explained))


def page_terms(content: PageContent) -> list[tuple[str, str]]:
    """Return (term, meaning) for every term that the page's sentences, tables, heads of columns and plots use."""
    drawn = (plot.words for section in content.sections for plot in section.plots)
    return terms(" ".join([markdown(content, ()).replace("\\", ""), *RAW_HEAD, *drawn]), content.cells)
