"""Ratios taken apart: container, codec and cache; which part of a difference is whose; when a conversion pays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, Panel, ceiling_key, panels, time_ratio
from storebench.report.intervals import Interval, Ratio, median_interval

PARTS = {"fetch_s": "fetching", "decode_s": "decoding", "prep_s": "preparing", "handover_s": "handing over"}


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Time of files with an encoding codec over time of a container with raw pixels, as a product.

    ``ratio.mid == container * codec * cache`` exactly.

    Attributes
    ----------
    container_name, codec_name
        What replaces the files, and what the files are encoded with.
    cache_state
        State in which `ratio` was measured.
    ratio
        The whole ratio.
    container, codec
        What keeping files instead of the container costs, and what the encoding costs; both warm
        where there are warm cells, so that the device plays no part.
    cache
        What starting cold does to the ratio: the cold ratio over the warm one; 1 for a warm ratio.
        Null where a cold ratio has no warm one beside it, and then container and codec hold it.
    careless
        The ratio that somebody gets who measures the files cold and the container warm; null without both.
    """

    container_name: str
    codec_name: str
    cache_state: str
    ratio: Ratio
    container: float
    codec: float
    cache: float | None
    careless: Ratio | None


def factorise(cells: Iterable[CellSummary]) -> list[Factors]:
    """Take apart the ratio of encoded files to raw containers in every panel that holds the cells for it.

    A step from encoded files to a raw container goes round a square: change the
    codec and then the container, or the other way. Where both corners were
    measured, each factor is the geometric mean of its two sides; with one
    corner, the one path there is.
    """
    found = panels(cells)
    warm = {ceiling_key(panel.first): panel for panel in found if panel.first.cell.cache == "warm"}
    factors = []
    for panel in found:
        for slow in _encoded_files(panel):
            for fast in _raw_containers(panel):
                beside = warm.get(ceiling_key(panel.first)) if panel.first.cell.cache == "cold" else None
                one = _factor(panel, beside, slow, fast)
                factors += [one] if one else []
    return factors


def _encoded_files(panel: Panel) -> list[CellSummary]:
    return [cell for cell in panel.measured if cell.cell.format == "files" and cell.cell.codec != "raw"]


def _raw_containers(panel: Panel) -> list[CellSummary]:
    return [
        cell
        for cell in panel.measured
        if cell.cell.format not in ("files", "memory") and cell.cell.codec == "raw"
    ]


def _factor(panel: Panel, warm: Panel | None, slow: CellSummary, fast: CellSummary) -> Factors | None:
    ratio = time_ratio(slow, fast)
    base = warm or panel
    split = _split(base, slow, fast)
    if ratio is None or split is None:
        return None
    container, codec, whole = split
    warm_fast = warm.of(fast.backend) if warm else None
    return Factors(
        container_name=fast.backend,
        codec_name=slow.cell.codec,
        cache_state=slow.cell.cache,
        ratio=ratio,
        container=container,
        codec=codec,
        cache=ratio.mid / whole if warm else (1.0 if slow.cell.cache == "warm" else None),
        careless=time_ratio(slow, warm_fast) if warm_fast else None,
    )


def _split(panel: Panel, slow: CellSummary, fast: CellSummary) -> tuple[float, float, float] | None:
    """Return (container, codec, whole) within one panel, or None where no corner was measured."""
    start, end = panel.of(slow.backend), panel.of(fast.backend)
    raw_files = _corner(panel, "files", "raw")
    encoded = _corner(panel, fast.cell.format, slow.cell.codec)
    if start is None or end is None or (whole := time_ratio(start, end)) is None:
        return None
    codecs, containers = [], []
    if raw_files is not None:
        codecs.append(time_ratio(start, raw_files))
        containers.append(time_ratio(raw_files, end))
    if encoded is not None:
        codecs.append(time_ratio(encoded, end))
        containers.append(time_ratio(start, encoded))
    codec = [one.mid for one in codecs if one is not None]
    container = [one.mid for one in containers if one is not None]
    if not codec or len(codec) != len(container):
        return None
    return _geometric(container), _geometric(codec), whole.mid


def _corner(panel: Panel, container: str, codec: str) -> CellSummary | None:
    return next((c for c in panel.measured if c.cell.format == container and c.cell.codec == codec), None)


def _geometric(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= value
    return float(product ** (1 / len(values)))


def largest_part(slow: CellSummary, fast: CellSummary) -> tuple[str, float] | None:
    """Return the part of feeding the loop that explains most of a difference, and its share of the difference.

    With no workers the share is of the difference in wall time; with workers,
    of the difference in what the producers worked. None where `slow` is not slower.
    """
    delta = {name: slow.per_sample(name) - fast.per_sample(name) for name in PARTS}
    whole = slow.per_sample("timed_s") - fast.per_sample("timed_s")
    if slow.cell.workers:
        whole = sum(delta.values())
    name = max(delta, key=lambda key: delta[key])
    return (PARTS[name], delta[name] / whole) if whole > 0 and delta[name] > 0 else None


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """When converting the files that one has into another store has paid for itself.

    Attributes
    ----------
    build_s
        Seconds that the conversion took.
    saved_s
        Seconds saved each epoch of the whole dataset.
    epochs
        build_s / saved_s; null where no saving is proven.
    """

    cell: CellSummary
    baseline: CellSummary
    build_s: float
    saved_s: Interval
    epochs: Interval | None


def break_even(panel: Panel, baseline: str = "png") -> list[BreakEven]:
    """Return when each store of a panel has paid for itself, held against training from `baseline`."""
    base = panel.of(baseline)
    if base is None:
        return []
    found = []
    for cell in panel.measured:
        build, count = cell.fact("build_s"), cell.fact("store_count")
        if cell is base or not build or not count:
            continue
        saved = _saved(base, cell, int(count))
        if saved is not None:
            found.append(
                BreakEven(
                    cell=cell,
                    baseline=base,
                    build_s=float(build),
                    saved_s=saved,
                    epochs=_epochs(float(build), saved),
                )
            )
    return found


def _saved(base: CellSummary, cell: CellSummary, count: int) -> Interval | None:
    ours, theirs = cell.values("samples_per_s"), base.values("samples_per_s")
    shared = [key for key in ours if key in theirs]
    if not shared:
        return None
    return median_interval([count / theirs[key] - count / ours[key] for key in shared])


def _epochs(build_s: float, saved: Interval) -> Interval | None:
    if saved.mid <= 0 or (saved.lo is not None and saved.lo <= 0):
        return None
    lo = build_s / saved.hi if saved.hi else None
    hi = build_s / saved.lo if saved.lo else None
    return Interval(mid=build_s / saved.mid, lo=lo, hi=hi, n=saved.n)
