"""Sentences on jobs of ranks: the interaction of loading data and exchanging gradients."""

from storebench import stats
from storebench.report.cells import CellSummary
from storebench.report.facts import Facts
from storebench.report.interference import Interference, interferences
from storebench.report.intervals import Estimate
from storebench.report.texts.labels import backend_label, setting_label, with_interval

JOB_INTERVALS = (
    "The next sentences compare whole epochs of a job that loads with those of one that loads nothing. Their intervals hold for"
    " one job each and are narrower than those of the page, so they may prove a cost of the exchange that the page does not prove."
)


def job_label(cell: CellSummary) -> str:
    """Return the name of a job: its backend and its setting."""
    return f"{backend_label(cell.backend)}, {setting_label(cell)}"


def milliseconds(seconds: Estimate | None) -> str:
    """Return a duration in milliseconds with its interval: "3.10 ms [2.91, 3.32]"; "" for None."""
    return "" if seconds is None else with_interval(seconds.scaled(1000), " ms")


def interference_lines(facts: Facts) -> list[str]:
    """Return one sentence per job whose four corners were measured."""
    return [interference_sentence(interference) for interference in interferences(facts.cells)]


def interference_sentence(interference: Interference) -> str:
    """Return a sentence on the time that loading and exchanging add to a step, alone and together, and on their interaction."""
    parts = ", ".join(
        f"{effects.part} {milliseconds(effects.interaction)}" for effects in interference.effects[1:]
    )
    return (
        f"{job_label(interference.both)}: loading alone adds {milliseconds(interference.step.loading)} to a step, exchanging gradients alone"
        f" (with nothing to load) {milliseconds(interference.step.exchange)}, and both together {milliseconds(interference.step.interaction)} beyond the sum of the"
        f" two ({parts}); {_meaning(interference.step.interaction)}."
    )


def _meaning(interaction: Estimate) -> str:
    if interaction.n >= stats.MIN_ROUNDS and interaction.lo is not None and interaction.hi is not None:
        if interaction.lo > 0:
            return "they slow each other down (95% for this job alone)"
        if interaction.hi < 0:
            return "they partly hide each other (95% for this job alone)"
    return "an interaction is not proven"
