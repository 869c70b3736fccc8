"""The report as one self-contained HTML page, and the same in Markdown."""

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from storebench._version import __version__
from storebench.plain_text import markdown as escaped_markdown
from storebench.plain_text import plain
from storebench.report.cells import CellSummary, LoopWork, backend_rank, work_of
from storebench.report.content import Content
from storebench.report.labels import (
    backend_label,
    condition_label,
    dataset_label,
    duration,
    number,
    percent,
    size,
)
from storebench.report.panels import rate_ratio
from storebench.report.tables import BRACKETS, MOST_TABLES
from storebench.units import METRICS

_MOST_FINDINGS = 100


@functools.cache
def _templates(kind: str) -> jinja2.Environment:
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
        "tiles": _tiles(content),
        "brackets": BRACKETS,
        "version": __version__,
        "most_tables": MOST_TABLES,
        "most_findings": _MOST_FINDINGS,
        "command": _command(content),
        "evidence": _evidence(content),
    }


def _tiles(content: Content) -> list[tuple[str, str]]:
    """Return (figure, meaning) of the three tiles: the fastest store, the base, and what the store costs."""
    told = content.answer
    if told.panel is None or told.panel.base is None:
        return []
    base, best = told.panel.base, told.panel.fastest() or told.panel.base
    tiles = [(f"{number(best.median('samples_per_s'))}/s", f"fastest: {backend_label(best.backend)}")]
    if best is not base:
        limit = content.limits.get(base.key)
        part = "" if limit is None else f"; {percent(limit.share)} {limit.bound}"
        tiles.append((f"{number(base.median('samples_per_s'))}/s", f"{backend_label(base.backend)}{part}"))
    own, other = best.fact("bytes_on_disk"), base.fact("bytes_on_disk")
    if own and other:
        built = duration(best.fact("build_s"))
        tiles.append((size(own), f"{number(own / other, 2)} times the disk; {built} to convert"))
    return tiles


def _command(content: Content) -> str:
    """Return the command that converts into the recommended store; "" if there is nothing to convert."""
    told = content.answer
    if told.choice is None or told.panel is None or told.choice is told.panel.base:
        return ""
    own = told.choice.cell
    name = own.backend.name.partition(":")[0].partition("?")[0]
    return f"storebench convert {name} --dataset {own.data.name}"


def _evidence(content: Content) -> list[str]:
    """Return what the records prove, one line each."""
    rows = [row for cell in content.cells for row in cell.usable]
    served = [row for cell in content.cells for row in cell.rows]  # failed ones, too
    checked = sum(int(row["coverage_timed_checked"] or 0) for row in served)
    wrong = sum(int(row["coverage_timed_wrong"] or 0) for row in served)
    verified = sum(row["cache_verdict"] == "verified" for row in rows)
    rounds = len({(row["run_id"], row["replicate"]) for row in rows})
    return [
        f"{len(content.findings)} findings of validation in {len(rows)} records.",
        f"{checked:,} samples of timed batches were compared with the store's digests; {wrong} were wrong.",
        f"The cache state was verified in {verified} of {len(rows)} records.",
        f"{rounds} rounds; within each, all cells run in a random order, each in a process of its own.",
        BRACKETS + " A verdict needs five rounds and an interval wholly beyond 10%, or wholly within it.",
    ]


def _explored(content: Content) -> str:
    """Return what the page's matrix is made of, as JSON: rates of each panel, and ratios of each store to each other."""
    panels = [
        {
            "anchor": f"panel-{number}",
            "dataset": dataset_label(panel.first),
            "state": condition_label(panel.speaker),
            "workers": panel.first.cell.workers,
            "work": "training" if work_of(panel.first.cell) is LoopWork.TRAINING else "loading",
            "base": panel.base.backend if panel.base else "",
            "stores": {cell.backend: _explored_cell(cell, panel.measured) for cell in panel.measured},
        }
        for number, panel in enumerate(content.panels)
    ]
    names = sorted({cell.backend for panel in content.panels for cell in panel.measured}, key=backend_rank)
    labels = {name: backend_label(name) for name in names}
    text = json.dumps({"panels": panels, "labels": labels}, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _explored_cell(cell: CellSummary, others: Sequence[CellSummary]) -> dict[str, Any]:
    ratios = {
        base.backend: [float(f"{found.mid:.4g}"), str(found.verdict)]
        for base in others
        if base is not cell and (found := rate_ratio(cell, base)) is not None and found.mid is not None
    }
    return {"rate": number(cell.median("samples_per_s")), "ratios": ratios}


def html(content: Content, images: Mapping[str, bytes]) -> str:
    """Return the page with its images, style and script embedded; it fetches nothing."""
    sources = {
        name: "data:image/svg+xml;base64," + base64.b64encode(svg).decode() for name, svg in images.items()
    }
    template = _templates("html").get_template("report.html.j2")
    explored = Markup(_explored(content))  # noqa: S704 - JSON without "<"
    return template.render(**_context(content), images=sources, metrics=METRICS.values(), explored=explored)


def markdown(content: Content) -> str:
    """Return the report for a pull request or a wiki; plots are linked as the PNG files beside it."""
    return _templates("md").get_template("report.md.j2").render(**_context(content))
