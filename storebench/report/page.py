"""The report as one self-contained HTML page, and the same in Markdown."""

import base64
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from storebench._version import __version__
from storebench.analysis.answer import Answer
from storebench.analysis.labels import backend_label, number, size
from storebench.analysis.summary import CellSummary, backend_rank
from storebench.plain_text import markdown as escaped_markdown
from storebench.plain_text import plain
from storebench.record.schema import CacheVerdict
from storebench.report.content import Content
from storebench.report.explorer import explored
from storebench.report.plots.style import colour_of
from storebench.report.tables import BRACKETS, MOST_TABLES
from storebench.settings.words import CacheState

_MOST_FINDINGS = 100
_MOST_BARS = 10

# Accelerators up to this multiple of the highest rate are drawn beside the bars.
_NEAR = 2.5


@functools.cache
def templates(kind: str) -> jinja2.Environment:
    escaped = plain if kind == "html" else escaped_markdown
    return jinja2.Environment(
        loader=jinja2.PackageLoader("storebench.report"),
        autoescape=jinja2.select_autoescape(["html.j2"], default=False),
        finalize=lambda value: value if hasattr(value, "__html__") else escaped(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _context(content: Content) -> dict[str, Any]:
    return {
        "content": content,
        "answer": content.answer,
        "brackets": BRACKETS,
        "version": __version__,
        "most_tables": MOST_TABLES,
        "most_findings": _MOST_FINDINGS,
        "evidence": _evidence(content),
    }


def _answers(content: Content) -> Mapping[str, Answer]:
    return content.answer.machines or {"": content.answer}


def _bars(told: Answer, content: Content) -> dict[str, Any]:
    """Return the stores of an answer as bars, and accelerators as lines, in percent of the longest on any machine."""
    labels = {choice.cell: choice.label for choice in told.choices}
    rated = [(cell, cell.interval("samples_per_s")) for cell in labels]
    shown = sorted(((cell, rate) for cell, rate in rated if rate), key=lambda pair: -pair[1].mid)[:_MOST_BARS]
    if not shown:
        return {}
    rates = [c.cell.interval("samples_per_s") for of in _answers(content).values() for c in of.choices]
    highest = max(rate.high or rate.mid for rate in rates if rate)
    named = [(profile.title, profile.images_per_s) for profile in content.accelerators]
    full = max(highest, *(rate for _, rate in named if rate < _NEAR * highest), 0.0)
    return {
        "rows": [
            {
                "label": labels[cell],
                "colour": colour_of(cell.backend, cell.cell.backend.format),
                "codec": cell.cell.backend.codec,
                "width": 100 * rate.mid / full,
                "low": 100 * (rate.low or rate.mid) / full,
                "high": 100 * (rate.high or rate.mid) / full,
                "text": ("at most " if cell.at_most else "") + number(rate.mid),
                "doubt": cell.doubt,
            }
            for cell, rate in shown
        ],
        "lines": [
            {"label": f"{name}: {number(rate)} images/s", "at": 100 * rate / full if rate <= full else None}
            for name, rate in named
        ],
        "left_out": len(rated) - len(shown),
    }


def _evidence(content: Content) -> list[tuple[str, str]]:
    """Return each check of the records with its result."""
    records = [row.record for cell in content.cells for row in cell.usable]
    # Those of failed records, too.
    seen = [row.record.coverage for cell in content.cells for row in cell.rows if row.record.coverage]
    states = [r.cache for r in records if r.cache and r.cache.requested != CacheState.ANY]
    verified = sum(cache.verdict is CacheVerdict.VERIFIED for cache in states)
    moving, of = (sum(counts) for counts in zip(*(c.unsteady_replicates for c in content.cells), strict=True))
    rounds = len({(record.run_id, record.replicate) for record in records})
    compared = f"{sum(c.timed_checked for c in seen):,} compared, {sum(c.timed_wrong for c in seen)} wrong"
    once = f"{sum(c.missing for c in seen)} missing, {sum(c.duplicates for c in seen)} twice"
    return [
        (
            "Records hold what validation expects",
            f"{len(content.findings)} findings in {len(records)} records",
        ),
        ("Samples of timed batches equal the store's digests", compared),
        ("An epoch serves each sample once", once),
        ("The cache was in the requested state", f"{verified} of {len(states)} records"),
        ("Rates larger than memory are steady", f"{of - moving} of {of} replicates"),
        ("Cells run in random order, each in its own process", f"{rounds} rounds"),
        *(("Repeat it", command) for command in content.commands),
    ]


def explorer(columns: Sequence[Mapping[str, Any]], cells: Iterable[CellSummary]) -> dict[str, Any]:
    """Return what the matrix of the page shows: columns and stores, for the template and for its script."""
    backends = {cell.backend: cell.cell.backend for cell in cells}
    stores = [
        {
            "name": name,
            "label": backend_label(name),
            "colour": colour_of(name, backend.format),
            "codec": backend.codec,
        }
        for name, backend in sorted(backends.items(), key=lambda item: backend_rank(item[0]))
    ]
    data = json.dumps({"columns": columns, "stores": stores}, separators=(",", ":")).replace("<", "\\u003c")
    return {"columns": columns, "stores": stores, "data": Markup(data)}  # noqa: S704 - JSON without "<"


def html(content: Content, images: Mapping[str, bytes]) -> str:
    """Return the page with its images, style and script embedded; it fetches nothing."""
    columns = explored(content.panels, content.anchors)
    sources = {
        name: "data:image/svg+xml;base64," + base64.b64encode(svg).decode() for name, svg in images.items()
    }
    dates = [row.record.started_utc[:10] for cell in content.cells for row in cell.rows]
    template = templates("html").get_template("report.html.j2")
    return template.render(
        **_context(content),
        images=sources,
        charts={name: _bars(told, content) for name, told in _answers(content).items()},
        **explorer(columns, (cell for panel in content.panels for cell in panel.cells)),
        date=max(dates),
        number=number,
        size=size,
    )


def markdown(content: Content, *, plots: bool = False) -> str:
    """Return the report for a pull request or a wiki, with links to the PNG files of `plots` beside it."""
    return templates("md").get_template("report.md.j2").render(**_context(content), plots=plots)
