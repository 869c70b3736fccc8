"""Differences taken apart: costs of container and codec, shares of the parts of the work, break-evens of conversions."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storebench import stats
from storebench.report.cells import CellSummary, LoopWork
from storebench.report.decisions import Decisions
from storebench.report.intervals import Estimate, Round, mean_interval
from storebench.report.panels import Panel
from storebench.settings.backend import Pairs
from storebench.settings.words import CacheState

PARTS = {"fetch_s": "fetching", "decode_s": "decoding", "prep_s": "preparing", "handover_s": "handing off"}
_PRODUCING = ("fetch_s", "decode_s", "prep_s")


@dataclass(frozen=True, kw_only=True)
class Square:
    """Container and codec of encoded files against a raw container: four corners, all four sides, and the interaction.

    All figures are seconds per sample, differences taken round by round, so costs add: the codec's
    cost in files plus the container's cost with raw pixels is the whole difference. Where the two
    sides of a kind disagree, `interaction` says by how much, and there is no one cost of the codec.
    The intervals of one square hold all at once.

    Attributes
    ----------
    slow, fast
        Files with the codec, and the container with raw pixels.
    raw_files, encoded
        Files with raw pixels, and the container with the codec; None if not measured.
    whole
        `slow` minus `fast`.
    codec_in_files, codec_in_container
        Cost of encoding in files, and in the container; None if a corner was not measured.
    container_encoded, container_raw
        Cost of files instead of the container, with encoded images, and with raw pixels.
    interaction
        `codec_in_files` minus `codec_in_container`; None without all four corners.
    """

    slow: CellSummary
    fast: CellSummary
    raw_files: CellSummary | None
    encoded: CellSummary | None
    whole: Estimate
    codec_in_files: Estimate | None
    codec_in_container: Estimate | None
    container_encoded: Estimate | None
    container_raw: Estimate | None
    interaction: Estimate | None


_FIGURES = 6
"""Intervals of a square; they share the permitted error."""


def squares(panels: Iterable[Panel]) -> list[Square]:
    """Return the square of encoded files and each raw container in every panel that holds at least three corners.

    Panels that augment and compute nothing are left out where the samples were also read without augmentation: how
    windows are cut depends on the reader, and is no cost of its container.
    """
    complete = []
    for panel in _comparing(list(panels)):
        for slow in _encoded_files(panel):
            for fast in _raw_containers(panel):
                square = _square(panel, slow, fast)
                complete += [square] if square else []
    return complete


def _comparing(panels: Sequence[Panel]) -> list[Panel]:
    alone = {panel.first.dataset_key for panel in panels if panel.alone}
    return [
        panel
        for panel in panels
        if panel.work is not LoopWork.AUGMENTING or panel.first.dataset_key not in alone
    ]


def _encoded_files(panel: Panel) -> list[CellSummary]:
    return [
        cell
        for cell in panel.measured
        if cell.cell.backend.format == "files" and cell.cell.backend.codec != "raw"
    ]


def _raw_containers(panel: Panel) -> list[CellSummary]:
    return [
        cell
        for cell in panel.stored
        if cell.cell.backend.format != "files" and cell.cell.backend.codec == "raw"
    ]


def _square(panel: Panel, slow: CellSummary, fast: CellSummary) -> Square | None:
    raw_files = _corner(panel, slow, ("raw", ()))
    encoded = _corner(panel, fast, (slow.cell.backend.codec, slow.cell.backend.codec_options))
    corners = [corner for corner in (slow, raw_files, encoded, fast) if corner is not None]
    shared = shared_rounds([corner.values("samples_per_s") for corner in corners])
    if len(corners) < 3 or not shared:
        return None
    a, b, c, d = (_times(corner, shared) for corner in (slow, raw_files, encoded, fast))
    both = a and b and c and d
    return Square(
        slow=slow,
        fast=fast,
        raw_files=raw_files,
        encoded=encoded,
        whole=_difference(a, d) or Estimate(mid=0.0),
        codec_in_files=_difference(a, b),
        codec_in_container=_difference(c, d),
        container_encoded=_difference(a, c),
        container_raw=_difference(b, d),
        interaction=interaction_cost(a, b, c, d, figures=_FIGURES) if both else None,
    )


def _corner(panel: Panel, reference: CellSummary, codec: tuple[str, Pairs]) -> CellSummary | None:
    """Return the cell with another codec and decoder that is read like `reference`; None if there is none.

    Another reader, or one with other options, would add its own difference to the cost of the codec.
    """
    return next(
        (
            candidate
            for candidate in panel.stored
            if _reads_alike(candidate, reference)
            and (candidate.cell.backend.codec, candidate.cell.backend.codec_options) == codec
        ),
        None,
    )


def shared_rounds(values: Sequence[Mapping[Round, float]]) -> list[Round]:
    """Return the rounds in which every side was measured."""
    return [key for key in values[0] if all(key in other for other in values)]


def _times(cell: CellSummary | None, shared: Sequence[Round]) -> list[float]:
    """Return seconds per sample in each shared round; empty without a cell."""
    rates = {} if cell is None else cell.values("samples_per_s")
    return [1 / rates[key] for key in shared] if rates else []


def _difference(dear: Sequence[float], cheap: Sequence[float]) -> Estimate | None:
    return difference(dear, cheap, figures=_FIGURES) if dear and cheap else None


def difference(dear: Sequence[float], cheap: Sequence[float], *, figures: int) -> Estimate:
    """Return the cost of one side less that of another, round by round.

    Parameters
    ----------
    dear, cheap
        The costs of both sides in the same rounds.
    figures
        Number of intervals, this one included, that hold simultaneously.
    """
    return mean_interval([x - y for x, y in zip(dear, cheap, strict=True)], stats.ALPHA / figures)


def interaction_cost(
    both: Sequence[float],
    first: Sequence[float],
    second: Sequence[float],
    neither: Sequence[float],
    *,
    figures: int,
) -> Estimate:
    """Return the cost of two factors together beyond the sum of their separate costs.

    Parameters
    ----------
    both, first, second, neither
        The costs of the four corners in the same rounds.
    figures
        Number of intervals, this one included, that hold simultaneously.
    """
    corners = zip(both, first, second, neither, strict=True)
    return mean_interval([w - x - y + z for w, x, y, z in corners], stats.ALPHA / figures)


@dataclass(frozen=True, kw_only=True)
class ExplainedShare:
    """The share of a difference that one part of the work explains.

    Attributes
    ----------
    part
        "decoding", ...
    share
        Signed: above 1 where another part gives some of it back, below 0 where this part does.
        The mean over rounds, with an interval that holds together with those of the other parts.
    """

    part: str
    share: Estimate

    @property
    def proven(self) -> bool:
        """Whether the interval excludes 0."""
        share = self.share
        enough = share.n >= stats.MIN_ROUNDS and share.lo is not None and share.hi is not None
        return enough and ((share.lo or 0.0) > 0 or (share.hi or 0.0) < 0)


def shares(slow: CellSummary, fast: CellSummary) -> list[ExplainedShare]:
    """Return the share of the difference between two cells that each part explains, the largest first.

    Taken round by round. Without workers the shares are of the difference in wall time; with
    workers, which overlap with the loop and with each other, of the difference in what the producers
    worked. Call it for a proven difference only: shares of a difference around 0 mean nothing.
    """
    names = _PRODUCING if slow.cell.workers else tuple(PARTS)
    delta = {name: _by_round(slow, fast, name) for name in names}
    if slow.cell.workers:
        rounds = list(delta["fetch_s"])
        whole = {key: sum(part.get(key, 0.0) for part in delta.values()) for key in rounds}
    else:
        whole = _by_round(slow, fast, "timed_s")
    explained = []
    for name, differences in delta.items():
        values = [differences[key] / whole[key] for key in whole if key in differences and whole[key]]
        if values:
            share = mean_interval(values, stats.ALPHA / len(names))
            explained.append(ExplainedShare(part=PARTS[name], share=share))
    return sorted(explained, key=lambda part: -part.share.mid)


def _by_round(slow: CellSummary, fast: CellSummary, name: str) -> dict[Round, float]:
    first, second = (side.rounds_per_sample(name) for side in (slow, fast))
    return {key: first[key] - second[key] for key in first if key in second}


@dataclass(frozen=True, kw_only=True)
class Closing:
    """The share of the gap between compressed images and raw pixels that another decoder closes.

    Attributes
    ----------
    slow
        Compressed images with the default decoder.
    cell
        The same with another decoder.
    fast
        Raw pixels in the same container.
    share
        (`slow` - `cell`) / (`slow` - `fast`) in seconds per sample, taken round by round: 1 closes the gap, below 0
        widens it. The intervals of one panel hold all at once.
    """

    slow: CellSummary
    cell: CellSummary
    fast: CellSummary
    share: Estimate


def closings(panel: Panel) -> list[Closing]:
    """Return the share of the gap to raw pixels that each alternative decoder of a panel closes.

    Call it for proven gaps only: shares of a gap around 0 mean nothing.
    """
    slow_faster_fast = [
        (slow, cell, fast)
        for slow, fast in itertools.product(panel.stored, repeat=2)
        if _reads_alike(slow, fast) and fast.cell.backend.codec == "raw" != slow.cell.backend.codec
        if not slow.cell.backend.codec_options
        for cell in panel.stored
        if _reads_alike(slow, cell) and cell.cell.backend.codec == slow.cell.backend.codec
        if cell.cell.backend.codec_options
    ]
    return [
        Closing(slow=slow, cell=cell, fast=fast, share=share)
        for slow, cell, fast in slow_faster_fast
        if (share := _closed(slow, cell, fast, stats.ALPHA / len(slow_faster_fast))) is not None
    ]


def _reads_alike(first: CellSummary, second: CellSummary) -> bool:
    """Return whether two cells have the same container, reader and options of the reader."""
    ours, theirs = first.cell.backend, second.cell.backend
    return (ours.format, ours.reader, ours.options) == (theirs.format, theirs.reader, theirs.options)


def _closed(slow: CellSummary, cell: CellSummary, fast: CellSummary, alpha: float) -> Estimate | None:
    cells = (slow, cell, fast)
    shared = shared_rounds([side.values("samples_per_s") for side in cells])
    times = zip(*(_times(side, shared) for side in cells), strict=True)
    shares = [(dear - other) / (dear - cheap) for dear, other, cheap in times if dear != cheap]
    return mean_interval(shares, alpha) if shares else None


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The break-even of converting existing files into another store.

    Attributes
    ----------
    convert_s
        Seconds that the conversion took, of `baseline`'s store into `cell`'s, over its repetitions.
    saved_s
        Seconds saved in each epoch of the whole dataset.
    epochs
        convert_s / saved_s; None if no saving is proven.
    """

    cell: CellSummary
    baseline: CellSummary
    convert_s: Estimate
    saved_s: Estimate
    epochs: Estimate | None


PAYING_STATES = (CacheState.LIMITED, CacheState.WARM)
"""Cache states whose rate is that of whole epochs; a cold rate holds for its first steps only."""


def break_evens(panels: Iterable[Panel], decisions: Decisions, baseline: str = "png") -> list[BreakEven]:
    """Return the break-even of each store in each panel whose conversion was measured."""
    return [even for panel in panels for even in _break_evens(panel, decisions, baseline)]


def _break_evens(panel: Panel, decisions: Decisions, baseline: str) -> list[BreakEven]:
    """Return the break-even of each store of a panel whose conversion was measured.

    Empty if the panel's rate is not that of whole epochs: nothing follows from a cold rate for an epoch.
    """
    base = panel.of(baseline)
    if base is None or panel.first.cell.cache not in PAYING_STATES:
        return []
    break_evens = []
    for cell in panel.stored:
        seconds, count = cell.conversions(base), cell.fact("store_count")
        saved = _saved(base, cell, int(count or 0)) if seconds and cell is not base else None
        if saved is None:
            continue
        decision = decisions.between(cell, base)
        converted = _duration(seconds)
        pays = decision is not None and decision.faster
        break_evens.append(
            BreakEven(
                cell=cell,
                baseline=base,
                convert_s=converted,
                saved_s=saved,
                epochs=_epochs(converted, saved) if pays else None,
            )
        )
    return break_evens


_BOTH = stats.ALPHA / 2
"""The interval of the epochs rests on two others, which share the permitted error."""


def _duration(seconds: Sequence[float]) -> Estimate:
    ends = stats.median_interval(seconds, _BOTH) if len(seconds) >= stats.MIN_ROUNDS else None
    lo, hi = (ends.low, ends.high) if ends else (None, None)
    return Estimate(mid=stats.median(seconds), lo=lo, hi=hi, n=len(seconds))


def _saved(base: CellSummary, cell: CellSummary, count: int) -> Estimate | None:
    ours, theirs = cell.values("samples_per_s"), base.values("samples_per_s")
    shared = [key for key in ours if key in theirs]
    if not shared or not count:
        return None
    return mean_interval([count / theirs[key] - count / ours[key] for key in shared], _BOTH)


def _epochs(converted: Estimate, saved: Estimate) -> Estimate | None:
    if None in (converted.lo, converted.hi, saved.lo, saved.hi) or (saved.lo or 0.0) <= 0:
        return None
    return Estimate(
        mid=converted.mid / saved.mid,
        lo=(converted.lo or 0.0) / (saved.hi or 1.0),
        hi=(converted.hi or 0.0) / (saved.lo or 1.0),
        n=min(converted.n, saved.n),
    )
