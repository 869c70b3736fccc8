"""The plan as one page: the sentence, the tables, and the roofline of the target."""

from base64 import b64encode

from storebench.analysis.plan.outcome import Plan
from storebench.analysis.plan.words import errors, facts, load, sentence, table
from storebench.report.page import templates
from storebench.report.plots.style import MOST_LINES, finish, looks_of, new_axes, plain_numbers, saved, styled


def page(plan: Plan) -> str:
    """Return the page as HTML; the same plan gives the same bytes."""
    return (
        templates("html")
        .get_template("plan.html.j2")
        .render(
            sentence=sentence(plan),
            facts=facts(plan),
            tables=(table(plan, page=True), load(plan)),
            plot=b64encode(roofline(plan)).decode(),
            errors=errors(plan),
        )
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
