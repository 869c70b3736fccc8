"""The plan as one page: the sentence, the table, the roofline of the target, and what each input changes."""

from base64 import b64encode
from html import escape
from importlib.resources import files

from storebench.analysis.plan.plan import Plan
from storebench.analysis.plan.words import errors, facts, load, sensitivity, sentence, table
from storebench.analysis.table import Table
from storebench.report.plots.style import MOST_LINES, finish, looks_of, new_axes, plain_numbers, saved, styled

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>storebench plan</title><style>{css}</style></head><body><main>
<h1>{sentence}</h1>
<p>{facts}</p>
{table}
{load}
<figure><img alt="delivered images/s by rate of an accelerator" src="data:image/svg+xml;base64,{plot}"></figure>
{sensitivity}
<h2>How wrong such predictions are</h2>
<p>{errors}</p>
</main></body></html>
"""


def page(plan: Plan) -> str:
    """Return the page as HTML; the same plan gives the same bytes."""
    css = files("storebench.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    return _PAGE.format(
        css=css,
        sentence=escape(sentence(plan)),
        facts=_lines(facts(plan)),
        table=_table(table(plan, page=True)),
        load=_table(load(plan)),
        plot=b64encode(roofline(plan)).decode(),
        sensitivity=_table(sensitivity(plan)),
        errors=_lines(errors(plan)),
    )


def roofline(plan: Plan) -> bytes:
    """Draw what each store would deliver to accelerators of other rates, as SVG."""
    target, stores = plan.target, plan.stores[:MOST_LINES]
    with styled():
        ax = new_axes(4.2, None)
        kinds = [(store.store, store.container.split("+", 1)) for store in stores]
        looks = looks_of([(name, container, codec) for name, (container, codec) in kinds])
        for store, look in zip(stores, looks, strict=True):
            ax.plot(*zip(*store.curve, strict=True), label=store.label, **look.stroke)
        taken = [(rate, rate * target.accelerators) for rate, _ in stores[0].curve]
        ax.plot(*zip(*taken, strict=True), ":", color="#666666", label="all they take")
        ax.axvline(
            target.accelerator.images_per_s, color="#000000", linewidth=0.8, label=target.accelerator.title
        )
        ax.set_xscale("log")
        ax.set_yscale("log")
        plain_numbers(ax.xaxis)
        plain_numbers(ax.yaxis)
        ax.set_xlabel("rate of one accelerator without waits (images/s)")
        ax.set_ylabel("delivered to all (images/s)")
        finish(ax, "Which accelerators does each store feed?")
        return saved(ax, "svg")


def _lines(lines: list[str]) -> str:
    return "<br>".join(map(escape, lines))


def _table(table: Table) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    rows = "".join(row(cells, "td") for cells in table.rows)
    notes = f"<p>{_lines(list(table.notes))}</p>" if table.notes else ""
    head = f"<thead>{row(table.head, 'th')}</thead>"
    return f'<h2>{escape(table.caption)}</h2><div class="scroll"><table>{head}{rows}</table></div>{notes}'
