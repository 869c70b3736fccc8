"""Cells of whole pages with rates that are drawn, so that what a page claims can be compared with the truth.

A page has two data sets, of any state and warm, and 0 and 2 workers: 8 tables of five stores, with null cells
beside one data set's training. Rates vary from process to process by a lognormal factor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storebench.report.cells import CellSummary
from storebench.report.claims import AMPLIFIED, Claim, ClaimKind
from storebench.report.decisions import FED_FRAC, READS, Decisions
from storebench.report.facts import Facts, derive
from storebench.report.frame import column_types
from storebench.report.roofline import Roofline
from storebench.report.roofline_curve import Feeding
from storebench.report.texts.advice import recommend
from storebench.report.texts.headline import headline
from storebench.report.texts.roofline import roofline_sentences
from storebench.report.verdict import Bound
from storebench.results import Cell
from storebench.stats import PRACTICAL_FRAC

BACKENDS = {
    "png": ("files", "png", "get"),
    "hdf5": ("hdf5", "raw", "get"),
    "leveldb": ("leveldb", "raw", "get"),
    "lmdb": ("lmdb", "raw", "get"),
    "lmdb:direct": ("lmdb", "raw", "direct"),
}
NULL = ("null", "raw", "null")
DATASETS = {"cifar10": ("none", "32x32x3"), "imagenet": ("real", "256x256x3")}
"""Data set -> what is computed on it, and its images."""

SHARES = {"fetching": 0.6, "decoding": 0.4}
"""Part of the producers' work -> its share of every wait."""

STEPS, BATCH = 100, 50
_BLANK = dict.fromkeys(column_types())


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is true of a page.

    Attributes
    ----------
    samples_per_s
        Backend -> its rate in every setting; others have 1,000.
    spread
        Standard deviation of the logarithm of a rate, from process to process.
    rounds
        Replicates of every cell.
    waits_frac
        Data-wait fraction of every training loop, whatever it loads; None for four fifths, with a network whose own time
        varies.
    amplification
        Bytes that the device delivers over requested bytes.
    """

    spread: float
    rounds: int
    samples_per_s: Mapping[str, float]
    waits_frac: float | None = None
    amplification: float = 1.8

    def rate(self, cell: CellSummary) -> float:
        """Return the true rate of a cell."""
        return self.samples_per_s.get(cell.backend, 1000.0)


def drawn_page(truth: Truth, rng: np.random.Generator, *, settings: int = 8) -> list[CellSummary]:
    """Return the cells of a page; fewer `settings` leave out data sets, workers and cache states in this order."""
    names = [
        (dataset, workers, cache)
        for dataset in ("imagenet", "cifar10")
        for workers in (0, 2)
        for cache in ("any", "warm")
    ][:settings]
    cells = []
    for dataset, workers, cache in names:
        compute, shape = DATASETS[dataset]
        if compute == "real" and cache == "any":
            cells.append(_cell("null", dataset, workers, "any", shape, truth, rng))
        cells += [_cell(backend, dataset, workers, cache, shape, truth, rng) for backend in BACKENDS]
    return cells


def _cell(
    backend: str,
    dataset: str,
    workers: int,
    cache: str,
    shape: str,
    truth: Truth,
    rng: np.random.Generator,
) -> CellSummary:
    container, codec, reader = BACKENDS.get(backend, NULL)
    compute = DATASETS[dataset][0]
    cell = Cell.of_fields(
        dataset=dataset, backend=backend, format=container, codec=codec, reader=reader,
        batch_size=BATCH, model="tiny", compute=compute, cache=cache, workers=workers,
    )  # fmt: skip
    rate = truth.samples_per_s.get(backend, 1000.0)
    rows = tuple(_rows(rate, compute, shape, truth, rng))
    return CellSummary(cell=cell, environment_key="machine", rows=rows)


def _rows(
    rate: float, compute: str, shape: str, truth: Truth, rng: np.random.Generator
) -> Iterator[dict[str, object]]:
    samples = STEPS * BATCH
    for replicate in range(truth.rounds):
        seconds = samples / rate * float(np.exp(truth.spread * rng.standard_normal()))
        waiting, computing = _parts(seconds, samples, compute, truth, rng)
        sums = {
            "data_wait_s": waiting, "h2d_s": 0.0, "compute_s": computing, "handover_s": 0.0, "prep_s": 0.0,
            "fetch_s": SHARES["fetching"] * waiting, "decode_s": SHARES["decoding"] * waiting, "payload_bytes": samples * 3072,
        }  # fmt: skip
        row = _BLANK | {
            "run_id": "run", "replicate": replicate, "epoch": 0, "status": "ok", "looks": 1,
            "samples_per_s": samples / seconds, "timed_s": seconds, "timed_samples": samples, "samples": samples,
            "timed_steps": STEPS, "data_wait_frac": waiting / (waiting + computing), "bytes_on_disk": 1000.0,
            "store_image_shape": shape, "cache_applies_to": "epoch", "payload_bytes_per_s": samples * 3072 / seconds,
            "read_amplification": truth.amplification * _varying(truth, rng),
        }  # fmt: skip
        row |= sums
        yield row


def _parts(
    seconds: float, samples: int, compute: str, truth: Truth, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the seconds that a loop waits, and the seconds that it computes."""
    computing = 0.2 * samples / 1000.0 * float(np.exp(truth.spread * rng.standard_normal()))
    if compute != "real":
        return seconds, 0.0
    if truth.waits_frac is None:
        return max(seconds - computing, 0.3 * seconds), computing
    waiting = min(1.0, truth.waits_frac * _varying(truth, rng)) * seconds
    return waiting, seconds - waiting


def _varying(truth: Truth, rng: np.random.Generator) -> float:
    """Return a random factor with mean 1 and the given spread."""
    return float(np.exp(truth.spread * rng.standard_normal() - truth.spread**2 / 2))


def claimed(cells: Sequence[CellSummary]) -> tuple[Decisions, list[Claim]]:
    """Return the decisions of a page's tables, and the claims of its sentences."""
    facts = derive(cells)
    return facts.decisions, _said(facts)


def _said(facts: Facts) -> list[Claim]:
    said = [*headline(facts).claims]
    for part in facts.datasets.values():
        said += [claim for advice in recommend(part) for claim in advice.claims]
    return said


def false_claims(cells: Sequence[CellSummary], truth: Truth) -> list[str]:
    """Return every claim of a page, in its tables and in its sentences, that is not true."""
    facts = derive(cells)
    found = [*_false_figures(facts, truth), *_false_feeding(facts.rooflines, truth)]
    for one in facts.decisions.found.values():
        # All computing takes as long, whatever loads; all else is as fast as its backend.
        ratio = 1.0 if one.topic == "compute" else truth.rate(one.cell) / truth.rate(one.base)
        if (one.faster and ratio <= 1) or (one.slower and ratio >= 1) or (one.equal and not _equal(ratio)):
            found.append(f"{one.topic}: {one.cell.backend} {one.verdict} than {one.base.backend}")
    return found + [f"{one.kind}: {one.subject.backend}" for one in _said(facts) if not _true(one, truth)]


def _false_figures(facts: Facts, truth: Truth) -> Iterator[str]:
    """Yield the cells that are wrongly proven to wait little, or to read too much."""
    decisions = facts.decisions
    for cell in (cell for panel in facts.ordered for cell in panel.measured):
        if decisions.fed(cell) and not _is_fed(truth):
            yield f"fed: {cell.backend}"
        if decisions.above(cell, READS, AMPLIFIED) and truth.amplification <= AMPLIFIED:
            yield f"amplified: {cell.backend}"


def _false_feeding(found: Sequence[Roofline], truth: Truth) -> Iterator[str]:
    """Yield false conclusions from starving points: of accelerators as fast as a store feeds, and of cache states."""
    for roofline in found:
        for curve in roofline.curves:
            right = truth.rate(curve.loader) / (0.9 if roofline.overlap else 9.0)
            if curve.feeding(right * (1 + 1e-6)) is Feeding.FEEDS:
                yield f"feeds too much: {curve.backend}"
            if curve.feeding(right * (1 - 1e-6)) is Feeding.STARVES:
                yield f"feeds too little: {curve.backend}"
    # No rate depends on the state of the cache.
    if any("memory" in sentence.partition("depend on")[2] for sentence in roofline_sentences(found)):
        yield "starving points depend on memory"


def _equal(ratio: float) -> bool:
    return 1 / (1 + PRACTICAL_FRAC) <= ratio <= 1 + PRACTICAL_FRAC


def _is_fed(truth: Truth) -> bool:
    return truth.waits_frac is not None and truth.waits_frac < FED_FRAC


def _is_share(one: Claim) -> bool:
    """Whether the interval of a share contains the true share; stores differ only in fetching and decoding."""
    low, high = (one.figure.lo, one.figure.hi) if one.figure else (None, None)
    return (low or 0.0) - 1e-9 <= SHARES[one.part] <= (high or 0.0) + 1e-9


_KNOWN: Mapping[ClaimKind, Callable[[Claim, Truth], bool]] = {
    ClaimKind.UNDECIDED: lambda _, __: True,
    ClaimKind.SHARE: lambda one, _: _is_share(one),
    ClaimKind.LIMITED: lambda one, _: one.part != Bound.CONTENTION,
    ClaimKind.FED: lambda _, truth: _is_fed(truth),
    ClaimKind.AMPLIFIED: lambda one, truth: not one.decided or truth.amplification > AMPLIFIED,
}
"""Kind of an assertion about one cell, or about parts -> whether it is true."""


def _true(one: Claim, truth: Truth) -> bool:
    """Whether an assertion holds."""
    if one.kind in _KNOWN:
        return _KNOWN[one.kind](one, truth)
    if one.object is None or one.kind is ClaimKind.CONTENTION:
        return False
    ratio = truth.rate(one.subject) / truth.rate(one.object)
    return ratio > 1 if one.kind is ClaimKind.FASTER else _equal(ratio)
