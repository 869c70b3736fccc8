"""The terms of a page, each explained in one sentence: those that the page uses, and no others."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from storebench.errors import StorebenchError
from storebench.formats.registry import get_format
from storebench.report.cells import CellSummary
from storebench.report.texts.labels import backend_label
from storebench.report.verdict import Bound

_MOST_NAMES = 4
"""Backends of one reader that are named; more of them differ in options only."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """A term with its meaning.

    Attributes
    ----------
    name
        The term, as the list of terms names it.
    meaning
        One sentence, or several clauses, without a full stop.
    pattern
        Regular expression of the words by which a page uses it; "" for the name itself.
    """

    name: str
    meaning: str
    pattern: str = ""

    def is_in(self, text: str) -> bool:
        """Whether a text uses the term."""
        return re.search(self.pattern or rf"\b{re.escape(self.name)}s?\b", text) is not None


_MEASURING = (
    Term(name="backend", meaning="a storage format with the codec of its images and a reader"),
    Term(
        name="cell",
        meaning="one setting that was measured: dataset, backend, cache state, loader and network",
    ),
    Term(name="replicate", meaning="one fresh process that measures a cell"),
    Term(
        name="round", meaning="one replicate of every cell, in random order; ratios are taken within rounds"
    ),
    Term(name="panel", meaning="cells that differ in nothing but the backend, so they may be compared"),
    Term(
        name="cold start",
        meaning="at most 1% of the store is in the page cache when the epoch begins; reading it fills the cache",
    ),
    Term(name="warm", meaning="the whole store is in the page cache"),
    Term(
        name="limited", meaning="the page cache may hold so much only; a limited rate begins once it is full"
    ),
    Term(name="resident", meaning="in the page cache"),
    Term(
        name="read-ahead",
        meaning="data that the kernel reads from the disk because it follows the requested data",
        pattern=r"\b[Rr]ead-?ahead\b|reads ahead",
    ),
    Term(name="read amplification", meaning="bytes that the device delivered over requested bytes"),
    Term(
        name="at most, at least",
        meaning=(
            "before a rate or a ratio: a bound. A rate is “at most” if replicates ran out of time. Of two such rates there is no"
            " ratio"
        ),
        pattern=r"\b[Aa]t most [\d,]|\bat least [\d,]+\.?\d* ?(?:\[|times)|no ratio",
    ),
    Term(name="ceiling", meaning="a rate that no correct reader exceeds"),
    Term(
        name="yardstick", meaning="the rate of one simple way to do the same work; a better way may exceed it"
    ),
    Term(name="null", meaning="a backend that loads nothing: its rate is that of the network alone"),
    Term(name="EMULATED", meaning="the loop sleeps for as long as an accelerator would compute"),
    Term(name="lossy", meaning="the codec changes pixels"),
)

_WORKING = (
    Term(
        name="producer, worker",
        meaning="a process or thread that makes batches for the training loop; without workers, the loop makes them itself",
        pattern=r"\b(?:producer|worker)s?\b",
    ),
    Term(
        name="fetch, decode, prep",
        meaning="the work of a producer: bytes from the store into memory; bytes into pixels; augmenting and collating",
        pattern=r"\b(?:fetch(?:ing)?|decod(?:e|ing)|prep(?:aring)?)\b",
    ),
    Term(
        name="handoff",
        meaning="moving a finished batch from its producer to the training loop, which waits meanwhile",
        pattern=r"\bhandoff\b|hands a batch over|handing (?:a batch|batches|off)",
    ),
    Term(
        name="data wait",
        meaning="time in which the training loop is blocked on the loader",
        pattern=r"\bdata[ -]wait\b",
    ),
    Term(
        name="supply rate",
        meaning="images per second that a loader delivers if nothing is computed",
        pattern=r"\bsuppl(?:y|ies)\b",
    ),
    Term(
        name="starving point",
        meaning="the fastest accelerator, in images per second, that a store keeps busy at least 90% of its time",
    ),
    Term(
        name="roofline",
        meaning="the model behind starving points: an accelerator trains at its own rate, or at the supply rate if that is lower",
        pattern=r"[Rr]oofline\b",
    ),
    Term(name="break-even", meaning="epochs after which a conversion has won back its time"),
    Term(
        name="compute inflation",
        meaning="the network's computing time with this backend over that with nothing to load",
    ),
)

_BOUND_WORDS = {
    Bound.COMPUTE: "the network's computing limits the rate",
    Bound.COPY: "copying batches to the GPU limits the rate",
    Bound.CONTENTION: "the network computes longer beside this backend than with nothing to load",
    Bound.STORAGE: "fetching from the device limits the rate, and the device delivers at least 70% of its best measured rate",
    Bound.LATENCY: "fetching from the device limits the rate, and the device could deliver more: reads wait for one request at a time",
    Bound.FETCH: "fetching from the device limits the rate, and the device's rate is not known well enough to say why",
    Bound.READER: "fetching limits the rate although the data is in memory",
    Bound.DECODE: "turning encoded bytes into pixels limits the rate",
    Bound.PREP: "augmenting and collating limits the rate",
    Bound.HANDOFF: "moving finished batches to the loop limits the rate",
    Bound.BALANCED: "without any one part it would be less than 1.05 times as fast",
}

_BOUNDS = tuple(
    Term(name=str(bound), meaning=meaning, pattern=rf"\b{re.escape(bound)}\b(?!:\*)")
    for bound, meaning in _BOUND_WORDS.items()
)

_RANKS = (
    Term(
        name="rank, job",
        meaning="a training process that works together with others, each on its own part of the samples; all of them are a job",
        pattern=r"\b\d+ ranks\b|\branks of\b",
    ),
    Term(
        name="exchange of gradients",
        meaning="ranks add up their gradients in every step: overlapped with the backward pass, or after it",
        pattern=r"\bgradients\b|\bexchange\b",
    ),
    Term(
        name="exposed communication",
        meaning="the time by which exchanging gradients lengthens a step",
        pattern=r"[Ee]xposed communication",
    ),
    Term(name="ideal ring", meaning="the time of a ring all-reduce at the measured bandwidth and latency"),
    Term(name="efficiency", meaning="the rate of several ranks over that of one process times their number"),
    Term(name="interaction", meaning="what two causes cost together beyond the sum of their separate costs"),
)

_LADDER = (
    Term(
        name="rung",
        meaning="one of LMDBIO's ways to read an LMDB file; each adds an optimisation to the rung below it",
        pattern=r"\brungs?\b|\]\(ladder",
    ),
    Term(name="DM", meaning="the search for a sample starts where the last one ended, not at the root"),
    Term(name="PROV", meaning="offsets of samples come from an index, so the tree is not searched"),
    Term(name="DIO", meaning="explicit reads instead of page faults in a memory map"),
    Term(
        name="COAL", meaning="samples of several batches are read together, and close ones with one request"
    ),
    Term(name="STAG", meaning="only so many processes read the store at a time"),
    Term(name="LMM", meaning="one process per machine reads, and the others take samples from its memory"),
)

TERMS = (*_MEASURING, *_WORKING, *_BOUNDS, *_RANKS, *_LADDER)
"""Every term that a page may explain, apart from the backends of its cells."""


def terms(text: str, cells: Sequence[CellSummary]) -> list[tuple[str, str]]:
    """Return (term, meaning) for the terms that a page uses: its backends first, then the others in the order of `TERMS`.

    Parameters
    ----------
    text
        Everything that the page says.
    cells
        The cells of the page.
    """
    return [*_readers(cells), *((term.name, term.meaning) for term in TERMS if term.is_in(text))]


def _readers(cells: Iterable[CellSummary]) -> Iterator[tuple[str, str]]:
    """Yield the backends of each reader of a format, and how it stores and reads."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for cell in cells:
        if not cell.is_null:
            key = (cell.cell.backend.format, cell.cell.backend.reader)
            names.setdefault(key, {})[backend_label(cell.backend)] = None
    for (container, reader), labels in names.items():
        if meaning := _summary(container, reader):
            yield _named(list(labels)), meaning


def _summary(container: str, reader: str) -> str:
    """Return the format's own description of its layout and of a reader, or "" if the format is not installed here."""
    try:
        found = get_format(container)
        known = found.readers().get(reader)
    except StorebenchError:
        return ""
    return found.info.summary + (f"; reader: {known.summary}" if known is not None else "")


def _named(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MOST_NAMES} more" if len(labels) > _MOST_NAMES else ""
    return ", ".join(labels[:_MOST_NAMES]) + more
