"""The tables of docs/nodes.md, from kept results: ``python -m benchmarks.nodes tables``."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.nodes import kept
from benchmarks.nodes.exchange import read_by_ranks
from benchmarks.nodes.kept import Check, Replicate
from benchmarks.nodes.limits import MB
from storebench.settings.words import Sync
from storebench.units import number_of

_SYNCS = {Sync.AFTER: "after it", Sync.OVERLAPPED: "overlapped", Sync.NONE: "not exchanged"}


def tables(folder: Path) -> list[str]:
    """Return each table and each sentence of docs/nodes.md that holds figures of the checks.

    Raises
    ------
    StorebenchError
        The result of a check is missing or damaged.
    """
    skew, store, model = (kept.read(folder, name) for name in ("skew", "store", "model"))
    return [*_skew(skew), *_store(store), *_model(model)]


def _skew(check: Check) -> Iterator[str]:
    head = ["limits of the disks (MB/s)", "predicted skew", "measured, by replicate", "error"]
    rows = [
        [
            " and ".join(f"{rate / MB:g}" for rate in limits.device_bytes_per_s),
            _span([one.predicted for one in group], 3),
            ", ".join(f"{one.measured:.3f}{_mark(one)}" for one in group),
            ", ".join(f"{one.error:+.1%}" for one in group),
        ]
        for limits, group in kept.by_limits(check.replicates).items()
    ]
    yield _table(head, rows)
    yield _concluded(check, "replicate")


def _store(check: Check) -> Iterator[str]:
    head = ["nodes", "predicted (MB)", "over the links (MB)", "error", "from the disks (MB)"]
    rows = [
        [
            str(len(one.limits.device_bytes_per_s)),
            f"{(one.predicted or 0) / MB:.2f}",
            f"{(one.measured or 0) / MB:.2f}{_mark(one)}",
            f"{one.error:+.1%}",
            _megabytes(read_by_ranks(one.device_read_bytes)),
        ]
        for one in check.replicates
        if one.error is not None
    ]
    yield _table(head, rows)


def _model(check: Check) -> Iterator[str]:
    head = ["cell", "predicted (samples/s)", "measured (samples/s)", "error"]
    for limits, group in kept.by_limits(check.replicates).items():
        disks = " and ".join(f"{rate / MB:g}" for rate in limits.device_bytes_per_s)
        yield f"Links of {limits.link_bytes_per_s / MB:g} MB/s, disks of {disks} MB/s:"
        yield _table(
            head,
            [
                [_job(one), f"{one.predicted:.0f}", f"{one.measured:.0f}{_mark(one)}", f"{one.error:+.1%}"]
                for one in group
            ],
        )
    yield _concluded(check, "cell")


def _concluded(check: Check, what: str) -> str:
    counted = [one for one in check.replicates if one.counts]
    marked = sum(bool(one.marks) for one in check.replicates)
    failed = sum(bool(one.failure) for one in check.replicates)
    marks = f"{marked or 'none'} {'is' if marked < 2 else 'are'} marked" + (
        f", {failed} failed" if failed else ""
    )
    busy = max((one.observed.busy_frac for one in counted if one.observed is not None), default=0.0)
    return (
        f"The largest error of {number_of(len(counted), what)} is {kept.worst(counted):.1%}; {marks}, and the cores were at"
        f" most {busy:.0%} busy."
    )


def _megabytes(count: int | None) -> str:
    return "not counted" if count is None else f"{count / MB:.2f}"


def _job(one: Replicate) -> str:
    """Return the settings of a job in words."""
    cell = one.cell
    words = f"`{cell['backend']}`, {cell['ranks']} ranks"
    if cell["compute"] == "none":
        return f"{words} that only read"
    gradients = f"{cell['gradient_bytes'] / MB:.2g} MB of gradients {_SYNCS[Sync(cell['sync'])]}"
    return f"{words}, {cell['compute'].partition(':')[2]} ms, {gradients}"


def _mark(one: Replicate) -> str:
    return " (marked)" if one.marks else ""


def _span(values: Sequence[float | None], digits: int) -> str:
    """Return the values as one figure if they agree when rounded, else as the least and the largest."""
    texts = sorted({f"{value:.{digits}f}" for value in values if value is not None})
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cells)} |" if cells[0] != "---" else "|---" * len(head) + "|" for cells in lines
    )
