"""The answer below each plot: one sentence from a fixed template, "" where the cells give none."""

from collections.abc import Mapping, Sequence

from storebench.report.bottleneck import Bottleneck
from storebench.report.cells import CellSummary
from storebench.report.codecs import Coded
from storebench.report.labels import backend_label, duration, number, percent
from storebench.report.panels import Panel
from storebench.report.ranks import job_name, step_parts
from storebench.report.roofline import Roofline


def speed(panel: Panel) -> str:
    best, base = panel.fastest(), panel.base
    found = None if best is None else panel.ratio(best)
    if best is None or base is None or found is None:
        return ""
    return f"{backend_label(best.backend)}: {number(found.mid, 2)} times {backend_label(base.backend)}, {found.verdict}."


def space(panel: Panel) -> str:
    best, base = panel.fastest(), panel.base
    own, other = (cell.fact("bytes_on_disk") if cell else None for cell in (best, base))
    if best is None or base is None or not own or not other:
        return ""
    return f"{backend_label(best.backend)}: {number(own / other, 2)} times the disk of {backend_label(base.backend)}."


def codecs(compared: Sequence[Coded]) -> str:
    best = [one.name for one in compared if one.lossless and one.frontier]
    return f"Of the lossless ones, no other is both smaller and faster than: {', '.join(best)}."


def limit(panel: Panel, limits: Mapping[tuple[str, str], Bottleneck]) -> str:
    cells = dict.fromkeys(cell for cell in (panel.base, panel.fastest()) if cell and cell.key in limits)
    found = [(backend_label(cell.backend), limits[cell.key]) for cell in cells]
    told = "; ".join(f"{name}, {own.bound} {percent(own.share)}" for name, own in found)
    return f"The limit, as a share of a step: {told}." if told else ""


def feeding(roof: Roofline) -> str:
    decided = [curve for curve in roof.stored if curve.decided and not curve.at_most]
    if not decided:
        return "No store was measured in enough sound rounds to tell."
    best = max(decided, key=lambda curve: curve.starving.mid)
    return f"{backend_label(best.backend)} feeds the most: accelerators of up to {number(best.starving.mid)} images/s."


def scaling(cells: Sequence[CellSummary], field: str) -> str:
    rates: dict[str, list[float]] = {}
    for cell in sorted(cells, key=lambda cell: int(cell.fields[field])):
        rates.setdefault(cell.backend, []).append(cell.median("samples_per_s") or 0.0)
    name, (first, *_, last) = max(
        ((name, own * 2) for name, own in rates.items()), key=lambda pair: pair[1][-1] / (pair[1][0] or 1.0)
    )
    return (
        f"With the most {field}, {backend_label(name)} gains most: {number(last / (first or 1.0), 2)} times."
    )


def waiting(jobs: Sequence[CellSummary]) -> str:
    steps = {job: step_parts(job) for job in jobs}
    shares = {job: parts["data wait"] / (sum(parts.values()) or 1.0) for job, parts in steps.items()}
    job = max(shares, key=shares.__getitem__)
    return f"{job_name(job)} waits longest for data: {percent(shares[job])} of a step."


def waits(cells: Sequence[CellSummary]) -> str:
    cell = max(cells, key=lambda cell: cell.median("data_wait_p99_ns") or 0.0)
    usual, worst = (duration((cell.median(f"data_wait_{p}_ns") or 0.0) / 1e9) for p in ("p50", "p99"))
    return f"{backend_label(cell.backend)} waits longest: {usual} at the median, {worst} at p99."


def losses(cells: Sequence[CellSummary]) -> str:
    alike = len({cell.fact("loss_digest") for cell in cells}) == 1
    return "Every store gives the same losses, bit by bit." if alike else "Losses differ between stores."
