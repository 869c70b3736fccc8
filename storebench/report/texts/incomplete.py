"""What an incomplete run lacks, in words, for the first lines of everything that is made of it."""

from collections.abc import Sequence
from pathlib import Path

from storebench.plain_text import plain
from storebench.report.shortfall import Shortfall
from storebench.report.texts.labels import DATASETS, backend_label
from storebench.units import number_of

_MOST_NAMED = 6


def incomplete_sentence(shortfall: Shortfall) -> str:
    """Return a sentence on the missing parts of a run, and one on the remedy."""
    clauses = [f"{shortfall.recorded:,} of {number_of(shortfall.wanted, 'replicate')} are recorded"]
    if shortfall.recorded < shortfall.wanted:
        clauses[0] += f", and {shortfall.whole_rounds} of {number_of(shortfall.rounds, 'round')} are complete"
    if shortfall.empty_cells:
        clauses.append(
            f"{len(shortfall.empty_cells)} of {number_of(shortfall.cells, 'cell')} have no record ({_names(shortfall)})"
        )
    remedy = (
        f"Finish it with '{shortfall.resume}'"
        if shortfall.resume
        else "It is one side of a comparison with a revision, which cannot be continued: compare again"
    )
    return (
        f"INCOMPLETE: run {plain(shortfall.run_id)} was interrupted or is still going on: {'; '.join(clauses)}."
        f" {remedy} before you draw conclusions from these figures."
    )


def _names(shortfall: Shortfall) -> str:
    names = list(dict.fromkeys(_name(*cell) for cell in shortfall.empty_cells))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return "; ".join(names[:_MOST_NAMED]) + more


def _name(dataset: str, backend: str, cache: str) -> str:
    title = DATASETS.get(dataset) or Path(dataset).name
    return plain(" ".join(word for word in (title, backend_label(backend), cache) if word))


def left_out_sentence(reason: str, backends: Sequence[str]) -> str:
    """Return the cells of optional matrices that did not run, with the reasons."""
    names = ", ".join(dict.fromkeys(map(backend_label, backends)))
    verb = "was" if len(backends) == 1 else "were"
    return (
        f"{number_of(len(backends), 'cell')} of optional matrices {verb} left out ({names}): {plain(reason)}."
    )
