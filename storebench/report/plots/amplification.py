"""Read amplification: the bytes that the device delivers over the requested bytes."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, as_cells
from storebench.report.claims import Claim, ClaimKind, reads_device
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, with_count
from storebench.report.plots.style import (
    BackendStyle,
    bar,
    beside,
    look,
    make_room,
    name_rows,
    new_axes,
    spaced_numbers,
    styled,
    title,
)
from storebench.report.texts.labels import backend_label, common_setting, number, with_interval
from storebench.report.texts.sentence import Sentence
from storebench.settings.words import CacheState

QUESTION = "How many bytes does the device deliver per byte requested?"

_ASKED = BackendStyle(colour="#BBBBBB", hatch="", marker="o", line="-")


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot of the cold cells, else of the panel's, if a device delivered anything."""
    cold = [cell for cell in selection.alike("cache") if cell.cell.cache == CacheState.COLD]
    cells = [cell for cell in cold or selection.measured if reads_device(cell)]
    if any(cell.median("device_read_bytes") for cell in cells):
        sentence = read_answer(selection.facts.claims.each(ClaimKind.AMPLIFIED, cells))
        yield Plot(
            name="read-amplification",
            question=QUESTION,
            answer=with_count(sentence.text, cells),
            claims=sentence.claims,
            draw=functools.partial(plot_amplification, drawable(cells)),
        )


def read_answer(claims: Sequence[Claim]) -> Sentence:
    """Return a sentence on the smallest and the largest read amplification."""
    ordered = sorted(claims, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
    least, most = ordered[0], ordered[-1]
    ends = [
        f"{with_interval(claim.figure)} times ({backend_label(claim.subject.backend)})"
        for claim in (least, most)
    ]
    text = f"The device delivered between {ends[0]} and {ends[1]} the requested bytes."
    amounts = {number(claim.figure.mid) for claim in ordered if claim.figure}
    if least is not most and len(amounts) == 1:
        text = f"With every backend, the device delivered {with_interval(most.figure)} times the requested bytes."
    if least is most:
        text = f"The device delivered {ends[0]} the requested bytes."
    return Sentence(text=text, claims=(least, most))


def plot_amplification(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the bytes that the device delivered beside the requested bytes."""
    cells = [cell for cell in as_cells(results) if reads_device(cell)]
    with styled():
        ax = new_axes(1.6 + 0.42 * len(cells), ax)
        longest = 1.0
        for position, cell in enumerate(cells):
            requested, read = (
                (cell.median(name) or 0.0) / 2**20 for name in ("whole_payload_bytes", "device_read_bytes")
            )
            bar(ax, position - 0.18, requested, _ASKED, height=0.32)
            bar(ax, position + 0.18, read, look(cell), height=0.32)
            times = list(cell.values("read_amplification").values())
            beside(ax, max(read, requested), position, f"{number(sum(times) / len(times))} times")
            longest = max(longest, read, requested)
        name_rows(ax, cells)
        ax.set_xlim(0, 1.05 * longest)
        ax.set_xlabel("data (MiB per epoch)")
        note = f"{common_setting(cells)}. Grey: requested by the loop. Colour: delivered by the device"
        title(ax, QUESTION, note, cells)
        make_room(ax)
        spaced_numbers(ax)
    return ax
