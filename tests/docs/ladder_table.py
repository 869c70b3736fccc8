"""The tables and the figures of LMDBIO's ladder in jobs of ranks, in docs/scaling-io.md; ``make figures`` prints them."""

from collections.abc import Iterator, Sequence
from statistics import median

from storebench.report.facts import derive
from storebench.report.intervals import Round, ratio
from storebench.report.texts.labels import number, percent, with_interval

import storebench
from storebench.report.cells import CellSummary, summarise
from storebench.report.ladder import Ladder
from storebench.runs.records import read_records
from storebench.settings.words import ComputeKind, Share
from tests.docs.doc_files import ROOT

RANKS = (1, 2, 4, 8)

RUNGS = {
    "lmdb": "LMDB, its map",
    "lmdb?readahead=off": "LMDB without read-ahead",
    "lmdb:direct?explicit=off,merged=off": "PROV, its map",
    "lmdb:direct?merged=off": "PROV + DIO",
    "lmdb:direct": "PROV + DIO + COAL",
    "lmdb:direct?readers_at_a_time=1": "the same with STAG",
}
"""Backend -> the name of its rung, in the order of the table's rows."""

BLOCKS = (
    (ComputeKind.EMULATED, Share.NONE),
    (ComputeKind.EMULATED, Share.NODE),
    (ComputeKind.REAL, Share.NONE),
)
"""What the jobs of a block of rows compute, and how their ranks share reading."""

FOLDER = ROOT / "results" / "reference" / "lmdbio-ranks"
LIMITED = ROOT / "results" / "reference" / "lmdbio-limited"
OVER_PLAIN = "over LMDB, its map: "
"""How a line with a row of the second table begins."""

OVER_BELOW = "over the rung below, 24 steps: "
"""How a line with a row of the third table begins."""

_UPPER_AND_LOWER = {
    "COAL over DIO": (("lmdb:direct", Share.NONE), ("lmdb:direct?merged=off", Share.NONE)),
    "STAG over COAL": (("lmdb:direct?readers_at_a_time=1", Share.NONE), ("lmdb:direct", Share.NONE)),
    "LMM over plain LMDB": (("lmdb", Share.NODE), ("lmdb", Share.NONE)),
    "LMM over COAL": (("lmdb:direct", Share.NODE), ("lmdb:direct", Share.NONE)),
}
"""First field of a row of the third table -> backend and sharing of both sides."""


def ladder_lines() -> Iterator[str]:
    """Yield the rows of both tables, then what the jobs say, and what one reader per node gains."""
    cells = summarise(storebench.load_results(FOLDER))
    blocks = [[one for one in cells if (one.cell.compute.kind, one.cell.share) == block] for block in BLOCKS]
    for (compute, share), block in zip(BLOCKS, blocks, strict=True):
        for backend in RUNGS:
            found = {one.cell.ranks: one for one in block if one.backend == backend}
            if found:
                yield _row(_name(backend, compute, share), found)
    facts = derive(cells)
    yield from _rows_over_plain(blocks[0])
    yield from _rows_over_below([*blocks[0], *blocks[1]])
    for one in [*blocks[0], *blocks[2]]:
        if one.values("data_wait_frac"):
            yield f"{_job(one)} waits {_waits(one)} of its steps"
    for ladder in facts.ladders:
        for step in ladder.steps:
            if step.rung.key in ("coal", "stag", "together") and step.gain is not None:
                gain = "no ratio" if step.gain.doubt else with_interval(step.gain.ratio)
                yield f"{_job(step.cell)}, {step.rung.key} over the rung below: {gain}"
        yield from _best_over_page(ladder)
    yield from _limited_lines()


def _best_over_page(ladder: Ladder) -> Iterator[str]:
    gain = ladder.best_gains.get("page")
    if ladder.best is not None and gain is not None:
        told = "no ratio" if gain.doubt else with_interval(gain.ratio)
        yield f"{_job(ladder.best.cell)} over LMDB without read-ahead, cold start: {told}"


def _limited_lines() -> Iterator[str]:
    """Yield the rows of the table of jobs that read a store larger than memory, and what one reader per node gains there."""
    cells = summarise(storebench.load_results(LIMITED))
    for backend in ("lmdb", "lmdb:direct"):
        for share in (Share.NONE, Share.NODE):
            (one,) = [one for one in cells if one.backend == backend and one.cell.share is share]
            rate = with_interval(one.interval("samples_per_s"))
            readers = "one per node" if share is Share.NODE else "each rank"
            steady = " (not shown to be steady)" if one.unsteady else ""
            yield f"limited: | {RUNGS[backend]} | {readers} | {rate}{steady} | {_waits(one)} |"
            first, second = _by_epoch(one)
            yield f"limited: {RUNGS[backend]}, {readers}, second epoch over the first: {with_interval(ratio(second, first))}"
    facts = derive(cells)
    for ladder in facts.ladders:
        for step in ladder.steps:
            if step.gain is not None:
                ranked = "not ranked" if step.gain.doubt else with_interval(step.gain.ratio)
                yield f"limited: {step.rung.key} over the rung below: {ranked}"
    best = {one.backend: one for one in cells if one.cell.share is Share.NODE}
    claim = facts.claims.between(best["lmdb:direct"], best["lmdb"])
    if claim is not None:
        yield f"limited: with one reader per node, COAL over LMDB: {with_interval(claim.figure)}"


def _by_epoch(cell: CellSummary) -> list[dict[Round, float]]:
    """Return the rates of the first epoch of each round, and those of the second."""
    records = [one for one in read_records(LIMITED) if one.cell.cell_id == cell.cell.cell_id]
    return [
        {(one.run_id, one.replicate): one.samples_per_s for one in records if one.epoch == epoch}
        for epoch in (0, 1)
    ]


def _waits(cell: CellSummary) -> str:
    wait = cell.interval("data_wait_frac")
    return f"{percent(wait.mid)} [{percent(wait.lo)}, {percent(wait.hi)}]"


def _job(cell: CellSummary) -> str:
    return f"ladder, {cell.cell.compute.kind} compute, ranks = {cell.cell.ranks}: {RUNGS[cell.backend]}"


def _rows_over_plain(block: Sequence[CellSummary]) -> Iterator[str]:
    """Yield the rows of the table of rates over plain LMDB's: of all steps, and of the first step."""
    first = first_step_s()
    plain = {one.cell.ranks: one for one in block if one.backend == "lmdb"}
    jobs = {(one.backend, one.cell.ranks): one for one in block}
    for backend in list(RUNGS)[1:]:
        for ranks in RANKS:
            one, base = jobs[backend, ranks], plain[ranks]
            whole = ratio(*(side.values("whole_samples_per_s") for side in (one, base)))
            firsts = [
                first[base.cell.cell_id, replicate] / first[one.cell.cell_id, replicate]
                for _, replicate in one.values("whole_samples_per_s")
            ]
            begun = f"{number(median(firsts))} ({number(min(firsts))} to {number(max(firsts))})"
            yield f"{OVER_PLAIN}| {RUNGS[backend]} | {ranks} | {with_interval(whole)} | {begun} |"


def _rows_over_below(jobs: Sequence[CellSummary]) -> Iterator[str]:
    """Yield the rows of the table of rates over those of the rung below, of all steps."""
    found = {(one.backend, one.cell.share, one.cell.ranks): one for one in jobs}
    for name, (upper, lower) in _UPPER_AND_LOWER.items():
        fields = []
        for ranks in RANKS:
            sides = [found.get((*side, ranks)) for side in (upper, lower)]
            above, below = (side and side.values("whole_samples_per_s") for side in sides)
            fields.append(f" {with_interval(ratio(above, below))} " if above and below else " ")
        yield f"{OVER_BELOW}| {name} |{'|'.join(fields)}|"


def first_step_s() -> dict[tuple[str, int], float]:
    """Return the seconds of the first step of each job, that of its slowest rank, by cell and replicate."""
    steps = storebench.load_steps(FOLDER)
    steps = steps[steps.step == 0]
    seconds = (steps.data_wait_ns + steps.h2d_ns + steps.compute_ns) / 1e9
    slowest: dict[tuple[str, int], float] = {}
    for cell_id, replicate, took_s in zip(steps.cell_id, steps.replicate, seconds, strict=True):
        key = (str(cell_id), int(replicate))
        slowest[key] = max(float(took_s), slowest.get(key, 0.0))
    return slowest


def _name(backend: str, compute: ComputeKind, share: Share) -> str:
    """Return the first field of a row."""
    name = RUNGS[backend]
    if share is Share.NODE:
        name = name.removesuffix(", its map") + ", one reader per node (LMM)"
    return f"tiny network: {name}" if compute is ComputeKind.REAL else name


def _row(name: str, found: dict[int, CellSummary]) -> str:
    rates = [
        f" {number(found[ranks].median('whole_samples_per_s'))} " if ranks in found else " "
        for ranks in RANKS
    ]
    return f"| {name} |{'|'.join(rates)}| {percent(found[RANKS[-1]].median('whole_data_wait_frac'))} |"
