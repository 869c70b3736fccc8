"""What an incomplete run lacks, in words, for the first lines of everything that is made of it."""

from collections.abc import Sequence
from pathlib import Path

from storebench.plain_text import plain
from storebench.report.shortfall import Shortfall
from storebench.report.texts.labels import DATASETS, backend_label
from storebench.units import number_of

_MOST_NAMED = 6


def incomplete_sentence(found: Shortfall) -> str:
    """Return a sentence on the missing parts of a run, and one on the remedy."""
    said = [f"{found.recorded:,} of {number_of(found.wanted, 'replicate')} are recorded"]
    if found.recorded < found.wanted:
        said[0] += f", and {found.whole_rounds} of {number_of(found.rounds, 'round')} are complete"
    if found.empty_cells:
        said.append(
            f"{len(found.empty_cells)} of {number_of(found.cells, 'cell')} have no record ({_names(found)})"
        )
    if found.goes_on:
        said.append("the rule of its scenario has not ended it, so rounds may follow")
    if found.conversions:
        said.append(f"{number_of(found.conversions, 'conversion')} not recorded")
    return (
        f"INCOMPLETE: run {plain(found.run_id)} was interrupted or is still going on: {'; '.join(said)}."
        f" Finish it with '{found.resume}' before you draw conclusions from these figures."
    )


def _names(found: Shortfall) -> str:
    names = list(dict.fromkeys(_name(*cell) for cell in found.empty_cells))
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
