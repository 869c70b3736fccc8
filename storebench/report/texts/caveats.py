"""What has to be said beside figures: images that are not real, compute that is emulated, replicates that were not steady."""

from collections.abc import Collection, Iterable, Sequence

from storebench.datasets.images import resize_clause, served_note
from storebench.matrix import MODEL_CROPS
from storebench.plain_text import plain
from storebench.report.cells import CellSummary, varying_fields
from storebench.report.texts.labels import (
    ORIGINAL,
    backend_label,
    compute_label,
    dataset_label,
    number,
    setting_words,
)
from storebench.settings.words import Compute
from storebench.units import number_of

_LATE_SLEEP = 1.25
"""By what factor sleeps may exceed what was asked for. The rates of points come from the sleeps as they were."""


def caveats(cells: Sequence[CellSummary], shown: str = "") -> list[str]:
    """Return the caveats that belong beside any figure of these cells: what is not real, and replicates that were not steady.

    What the text that they stand beside already says is left out.
    """
    noted: dict[str, None] = {}
    sleeps: list[Compute] = []
    for cell in cells:
        origin = cell.fact("store_origin") or ("synthetic" if cell.cell.data.synthetic else "real")
        if origin == "synthetic":
            noted["SYNTHETIC images, a stand-in"] = None
        elif origin == "derived":
            noted[
                f"DERIVED images: {cell.fact('store_derived_frac'):.0%} are crops, flips and brightness changes"
            ] = None
        if clause := resize_clause(cell.fact("store_provenance_note") or ""):
            noted[f"RESIZED images: {clause}"] = None
        if clause := _served_clause(cell):
            noted[f"RESIZED images: {clause}"] = None
        if skipped := cell.fact("store_skipped_files"):
            noted[f"SKIPPED files: {number_of(int(skipped), 'unreadable file')} left out"] = None
        if compute_label(cell.cell.compute):
            sleeps.append(cell.cell.compute)
    return [
        caveat
        for caveat in (*noted, *_sleeps_label(sleeps, len(cells)), *_late_sleeps(cells), *_unsteady(cells))
        if caveat not in shown
    ]


def _sleeps_label(sleeps: Collection[Compute], cells: int) -> list[str]:
    """Return all emulated compute in one line, with the number of cells that have it if others have none; none without any."""
    ordered = sorted(set(sleeps), key=lambda compute: compute.milliseconds)
    if not ordered:
        return []
    where = "" if len(sleeps) == cells else f" in {len(sleeps)} of {number_of(cells, 'cell')}"
    if len(ordered) == 1:
        return [compute_label(ordered[0]) + where]
    least, most = ordered[0].duration, ordered[-1].duration
    return [f"compute EMULATED by sleeps of {plain(least)} to {plain(most)} ms{where}"]


def _late_sleeps(cells: Iterable[CellSummary]) -> list[str]:
    """Return one caveat on the sleeps that exceed what was asked for by the largest factor; none if all were on time."""
    emulated = [cell for cell in cells if cell.cell.compute.milliseconds and cell.cell.ranks == 1]
    if not emulated:
        return []
    worst = max(emulated, key=_lateness)
    took_ms = 1000 * worst.per_step("compute_s")
    late = _lateness(worst) > _LATE_SLEEP
    return (
        [f"LATE: sleeps of {plain(worst.cell.compute.duration)} ms took {number(took_ms)} ms"] if late else []
    )


def _lateness(cell: CellSummary) -> float:
    return 1000 * cell.per_step("compute_s") / cell.cell.compute.milliseconds


def _unsteady(cells: Iterable[CellSummary]) -> list[str]:
    """Return one caveat with every cell of which a replicate was not steady; none if all were.

    A backend with several such cells is named with the settings in which they differ.
    """
    judged = [cell for cell in cells if cell.unsteady_replicates[1]]
    named = []
    for cell in judged:
        moving, of = cell.unsteady_replicates
        if moving:
            alike = [other for other in judged if other.backend == cell.backend]
            named.append(f"{moving} of {of} replicates of {backend_label(cell.backend)}{_among(cell, alike)}")
    return [f"NOT STEADY: {', '.join(named)}"] if named else []


def _among(cell: CellSummary, alike: Sequence[CellSummary]) -> str:
    """Return the words that distinguish a cell from others of its backend, in brackets; "" if there are none."""
    words = [setting_words(cell.cell, varying_fields(alike))]
    if len({other.dataset_key for other in alike}) > 1:
        words.insert(0, dataset_label(cell))
    shown = ", ".join(word for word in words if word)
    return f" ({shown})" if shown else ""


def _served_clause(cell: CellSummary) -> str:
    """Return the clause on image files that become much larger when they are read; "" if they do not, or are not known to."""
    if cell.cell.backend.codec != ORIGINAL:
        return ""
    height, width, *_ = map(int, str(cell.fact("store_image_shape") or "0x0").split("x"))
    return served_note((height, width), cell.cell.data.image_size or MODEL_CROPS.get(cell.cell.model))
