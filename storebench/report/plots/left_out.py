"""The plots that a dataset's records cannot carry, each with what would make it."""

from collections.abc import Iterator

from storebench.report.claims import FEWEST_STEPS, ClaimKind, has_distribution, reads_device, refusal
from storebench.report.factors import PAYING_STATES
from storebench.report.plots.selection import Selection, has_steps
from storebench.settings.words import CacheState
from storebench.units import number_of


def left_out(selection: Selection) -> Iterator[str]:
    """Yield one sentence for each plot that was asked for in vain: why it is not drawn, and what would make it."""
    yield from _of_steps(selection)
    yield from _of_reads(selection)
    yield from _of_conversions(selection)


def _of_steps(selection: Selection) -> Iterator[str]:
    """Yield a sentence where epochs are too short for a distribution, a course and a loss."""
    stepped = [cell for cell in selection.measured if cell.usable and has_steps(cell)]
    short = [cell for cell in stepped if not has_distribution(cell)]
    if stepped and len(short) == len(stepped):
        steps = max(int(row["timed_steps"]) for cell in short for row in cell.usable)
        yield (
            f"The course and the distribution of waits, and the loss, are not drawn of {number_of(steps, 'step')}:"
            f" epochs of at least {FEWEST_STEPS} steps would make them."
        )


def _of_reads(selection: Selection) -> Iterator[str]:
    """Yield a sentence where reads were counted in warm cells only."""
    counted = [
        cell for cell in selection.facts.cells if cell.usable and cell.median("device_read_bytes") is not None
    ]
    warm = [cell for cell in counted if cell.cell.cache == CacheState.WARM]
    if warm and not any(reads_device(cell) for cell in counted):
        yield "Read amplification is not drawn of warm cells, which read nothing: cold cells would make it."


def _of_conversions(selection: Selection) -> Iterator[str]:
    """Yield a sentence where conversions were measured and none is said to pay."""
    facts = selection.facts
    if facts.claims.each(ClaimKind.PAYS, [even.cell for even in facts.paying]):
        return
    base = selection.panel.of("png") if selection.panel else None
    if facts.paying:
        reasons = dict.fromkeys(refusal(even, facts.ordered, facts.claims) for even in facts.paying)
        more = "; more rounds and conversions would make intervals narrower"
        yield f"When a conversion pays is not drawn: {', or '.join(reason for reason in reasons if reason)}{more}."
    elif base is not None and any(cell.conversions(base) for cell in selection.measured):
        states = " or ".join(reversed(PAYING_STATES))
        yield f"When a conversion pays is not drawn of cold starts, which only first epochs have: {states} cells would make it."
