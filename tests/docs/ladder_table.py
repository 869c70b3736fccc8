"""The table and the figures of LMDBIO's ladder in jobs of ranks, in docs/scaling-io.md; ``make figures`` prints them."""

from collections.abc import Iterator

import storebench
from storebench.report.cells import CellSummary, summarise
from storebench.report.facts import derive
from storebench.report.texts.labels import number, percent
from storebench.report.texts.papers import decision_on
from storebench.report.texts.verdicts import told_ratio
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


def ladder_lines() -> Iterator[str]:
    """Yield the rows of the table, then what the cold steps of the jobs whose ranks share nothing say."""
    cells = summarise(storebench.load_results(ROOT / "results" / "reference" / "lmdbio-ranks"))
    blocks = [[one for one in cells if (one.cell.compute.kind, one.cell.share) == block] for block in BLOCKS]
    for (compute, share), block in zip(BLOCKS, blocks, strict=True):
        for backend in RUNGS:
            found = {one.cell.ranks: one for one in block if one.backend == backend}
            if found:
                yield _row(_name(backend, compute, share), found)
    claims = derive(cells).claims
    for one in [*blocks[0], *blocks[2]]:
        job = f"ladder, {one.cell.compute.kind} compute, ranks = {one.cell.ranks}: {RUNGS[one.backend]}"
        wait = one.interval("data_wait_frac")
        if wait is not None:
            yield f"{job} waits {percent(wait.mid)} [{percent(wait.lo)}, {percent(wait.hi)}] of its cold steps"
        for base in (base for base in cells if base.backend == "lmdb" and base.setting == one.setting):
            claim = claims.between(one, base)
            ratio = told_ratio(decision_on(claim, one)) if claim is not None else ""
            if ratio and not one.short_training and not base.short_training:
                yield f"{job} trains {ratio} times as fast as LMDB, its map"


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
