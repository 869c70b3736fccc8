"""The method section of a report, with the report's own numbers."""

from collections import Counter
from collections.abc import Sequence

from storebench.report.cells import CellSummary
from storebench.report.states import EpochRow
from storebench.results import OTHERS_MOST_FRAC
from storebench.units import number_of

MANY_DISTURBED_FRAC = 0.25
"""If other work disturbed more than this share of the replicates, an answer begins with a warning."""


def method(cells: Sequence[CellSummary]) -> list[tuple[str, str]]:
    """Return (topic, statement) pairs that hold for these cells."""
    return [
        ("Steps", _STEPS),
        ("Replicates", _replicates(cells)),
        *_cut_short(cells),
        *_other_work(cells),
        *_ranks(cells),
        ("Cache", _cache(cells)),
        ("Same work", _same_work(cells)),
        ("Rates", _RATES),
        ("Intervals", _INTERVALS),
        ("Verdicts", _VERDICTS),
    ]


_STEPS = (
    "Each step of the training loop is divided into data wait (the loop is blocked on the loader), copy to the"
    " device, and compute (forward, backward and optimizer, the device synchronised once at the end)."
    " Time outside of these three is reported as overhead. Inside the loader, fetch (bytes from the store"
    " into private memory), decode (bytes into pixels) and prep (augment and collate) are timed in the process"
    " that does the work; all processes read one clock."
)
_RATES = (
    "A rate is the samples of the timed steps over the wall time of the same steps. Warm-up steps are recorded,"
    " flagged, and left out of both. The first wait is part of the epoch unless it is a warm-up step."
)
_INTERVALS = (
    "Figures are medians over replicates; if a replicate has several epochs, their median counts. Intervals"
    " are computed from replicates, never from steps. Ratios are paired by round, on logarithms, with Student's t. The"
    " intervals of all ratios on this page hold simultaneously, with probability 95% and within this run. Intervals of rates,"
    " starving points and break-evens are single, 95% each. Fewer than three rounds decide nothing. More rounds make"
    " intervals narrower. Rounds that are added after a look at the results do so by less, because each interval pays for that"
    " look; the numbers of further rounds on this page include it."
)
_VERDICTS = (
    "If a cell without loading (null) and a warm cell were measured beside a cold one, fetch stall is cold minus warm"
    " and prep stall is warm minus null (DS-Analyzer's method, with verified cache states). Otherwise the spans"
    " that the producers measured decide."
)


def _replicates(cells: Sequence[CellSummary]) -> str:
    counts = sorted({len(cell.values("samples_per_s")) for cell in cells if cell.usable})
    replicates = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "no"
    return (
        f"Every cell ran in {replicates} fresh process{'' if replicates == '1' else 'es'}, interleaved with the others"
        " in a seeded random order within each round, so that a machine that slows down slows every backend."
    )


def _cut_short(cells: Sequence[CellSummary]) -> list[tuple[str, str]]:
    """Return a statement for each run whose budget was spent before all rounds of its scenario had run."""
    rounds = {
        row["run_id"]: row["cut_short"]
        for cell in cells
        for row in cell.rows
        if row.get("cut_short") is not None
    }
    return [
        ("Time", f"The budget of its scenario ended a run after {done} of {planned} rounds.")
        for done, planned in rounds.values()
    ]


def _other_work(cells: Sequence[CellSummary]) -> list[tuple[str, str]]:
    """Return a paragraph on the replicates that other work disturbed; none if that was not recorded."""
    replicates = _watched(cells)
    if not replicates:
        return []
    repeated = sum(row["conditions_attempt"] > 1 for row in replicates)
    disturbed = sum(bool(row["conditions_disturbed"]) for row in replicates)
    text = (
        f"Other processes and other machines took more than {OTHERS_MOST_FRAC:.0%} of the cores during"
        f" {repeated + disturbed} of {number_of(len(replicates) + repeated, 'replicate')}."
    )
    if repeated:
        text += f" {repeated} of them were repeated once, by a rule that is the same for all cells; the superseded records are kept."
    if disturbed:
        text += f" {disturbed} of them count."
    return [("Other work", text)]


def disturbance_sentence(cells: Sequence[CellSummary]) -> str:
    """Return a warning if other work disturbed more than `MANY_DISTURBED_FRAC` of the replicates that count; else ""."""
    replicates = _watched(cells)
    disturbed = sum(bool(row["conditions_disturbed"]) for row in replicates)
    if disturbed <= MANY_DISTURBED_FRAC * len(replicates):
        return ""
    return (
        f"Other work took more than {OTHERS_MOST_FRAC:.0%} of the cores during {disturbed} of"
        f" {number_of(len(replicates), 'replicate')}: run this again on an idle machine before you decide."
    )


def disturbed_note(cells: Sequence[CellSummary]) -> str:
    """Return a sentence on the replicates that count and that other work disturbed; "" if it disturbed none."""
    replicates = _watched(cells)
    disturbed = sum(bool(row["conditions_disturbed"]) for row in replicates)
    if not disturbed:
        return ""
    return disturbance_sentence(cells) or (
        f"Other work of the machine disturbed {disturbed} of {number_of(len(replicates), 'replicate')}."
    )


def _watched(cells: Sequence[CellSummary]) -> list[EpochRow]:
    """Return a row of each replicate beside which other work was measured."""
    watched = {
        (row["run_id"], cell.cell.cell_id, row["replicate"]): row
        for cell in cells
        for row in cell.rows
        if row.get("conditions_attempt") is not None
    }
    return list(watched.values())


def _ranks(cells: Sequence[CellSummary]) -> list[tuple[str, str]]:
    """Return a paragraph on the ranks of jobs and their figures; none without jobs."""
    jobs = [cell for cell in cells if cell.cell.ranks > 1 and cell.usable]
    if not jobs:
        return []
    counts = sorted({cell.cell.ranks for cell in jobs})
    nodes = max(int(row["job_nodes"] or 1) for cell in jobs for row in cell.usable)
    where = (
        "processes of one machine, which share its cores, its memory, its disk and its loopback device"
        if nodes == 1
        else f"processes on up to {nodes} nodes; the records do not distinguish emulated nodes from machines"
    )
    numbers = ", ".join(map(str, counts))
    text = (
        f"Jobs of {numbers} ranks were {where}. Their times are means over the ranks. Their rates are all samples over the"
        " time from the first request to the end of the last step. Exposed communication comes from pairs of steps with and without"
        " the exchange of gradients, after the last epoch; the link was measured before the first one."
    )
    return [("Ranks", text)]


def _cache(cells: Sequence[CellSummary]) -> str:
    rows = [
        row for cell in cells for row in cell.rows if row["cache_requested"] in ("cold", "limited", "warm")
    ]
    if not rows:
        return "No cache state was requested: files were read with the page cache in its current state."
    verdicts = Counter(str(row["cache_verdict"]) for row in rows)
    methods = sorted({str(row["cache_method"]) for row in rows})
    verdict_counts = ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
    return (
        f"Of {len(rows)} epochs with a requested cache state: {verdict_counts} (by {', '.join(methods)}). Resident pages of the"
        " store's files were counted just before the first timed step and after the last. At its start, a cold cell has"
        " at most 1% resident, and a warm cell at least 99%. A cell that did not reach its requested state has failed. A"
        " cold rate is that of an epoch from a cold start, and ranks no stores. A limited rate covers the steps after the page"
        " cache had filled."
    )


def _same_work(cells: Sequence[CellSummary]) -> str:
    rows = [row for cell in cells for row in cell.usable if row["coverage_served"] is not None]
    served = sum(int(row["coverage_served"]) for row in rows)
    wrong = sum(int(row["coverage_timed_wrong"] or 0) for row in rows)
    kept = sum(int(row["coverage_timed_checked"] or 0) for row in rows)
    return (
        f"Order and augmentation belong to the harness, not to a format. {served:,} samples were served and each"
        f" epoch's indices were counted; the pixels of {kept:,} that were kept from timed batches were compared outside the timer;"
        f" {wrong:,} were wrong."
    )
