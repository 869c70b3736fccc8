"""Progress of a run on standard error: stores first, then each replicate."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storebench.cli.common import progress, say
from storebench.cli.rank_lines import ProgressLines, job_line, progress_line
from storebench.settings.words import CacheState, ComputeKind, LoaderKind, Share, Sync
from storebench.units import format_bytes, format_duration, number_of

if TYPE_CHECKING:
    from storebench.ranks.progress import Position
    from storebench.results import Cell, Record
    from storebench.runs.schedule import PendingReplicate
    from storebench.stores.convert import BuildOptions


class Pace:
    """What the replicates of a run took so far, and from that how long the others will take, at most for its budget."""

    def __init__(self, budget_s: float | None = None) -> None:
        self._budget_s = budget_s
        self._took: dict[str, list[float]] = {}
        self._began_s = 0.0

    def began(self) -> None:
        """Note that a replicate starts now."""
        self._began_s = time.monotonic()

    def ended(self, cell_id: str) -> None:
        """Note that a replicate of a cell has ended now."""
        now_s = time.monotonic()
        self._took.setdefault(cell_id, []).append(now_s - self._began_s)
        self._began_s = now_s

    def left(self, count: int, rest_s: float | None = None) -> str:
        """Return words for the time of `count` further replicates, the first with `rest_s` to go; "" if nothing is known."""
        so_far_s = 0.0 if rest_s is None else time.monotonic() - self._began_s
        means = [sum(took) / len(took) for took in self._took.values()]
        if not means:
            if rest_s is None:
                return ""
            means = [so_far_s + rest_s]
        mean_s = sum(means) / len(means)
        left_s = (mean_s if rest_s is None else rest_s) + (count - 1) * mean_s
        if self._budget_s is not None:
            within_s = self._budget_s - sum(map(sum, self._took.values())) - so_far_s
            if within_s <= 0:
                return ""  # how many rounds run in any case is the runner's business
            left_s = min(left_s, within_s)
        return f"; about {format_duration(left_s)} left"


class StderrWatcher:
    """A watcher (see `storebench.runner.Watcher`) that writes lines to standard error."""

    def __init__(self, budget_s: float | None = None) -> None:
        self._pace = Pace(budget_s)
        self._lines = ProgressLines()
        self._work: PendingReplicate | None = None
        self._left = 0

    def store(self, cell: "Cell") -> "BuildOptions":  # noqa: ARG002 - one way to build for all
        """Build with progress; a store of other samples is replaced, and a line says so."""
        from storebench.stores.convert import BuildOptions, Replace

        return BuildOptions(replace=Replace.STALE, progress=progress, say=say)

    def started(self, work: "PendingReplicate", position: int, total: int) -> None:
        """Print which replicate starts, and how long it and the others will take."""
        left = self._pace.left(total - position)
        say(f"[{position + 1}/{total}] {describe(work.cell)}, replicate {work.replicate}{left}")
        self._pace.began()
        self._lines.began()
        self._work, self._left = work, total - position

    def ranks(self, positions: Sequence["Position"]) -> None:
        """Show the progress of the replicate; in an epoch also its rate so far, and the time that is left for the run."""
        line, last = progress_line(positions), min(positions, key=lambda position: position.order)
        if self._work is not None and last.total and last.batches:
            cell, step_s = self._work.cell, (time.monotonic_ns() - last.begun_ns) / 1e9 / last.batches
            steps = last.total * (cell.epochs - int(last.name.split()[-1])) - last.batches
            line += f", {cell.batch_size * cell.ranks / step_s:,.0f} samples/s"
            line += self._pace.left(self._left, steps * step_s)
        self._lines.show(line)

    def finished(self, work: "PendingReplicate", records: Sequence["Record"]) -> None:
        """Print the outcome of each epoch."""
        self._pace.ended(work.cell.cell_id)
        self._lines.clear()
        for record in records:
            lines = (outcome(record), job_line(record))
            for line in filter(None, lines):
                say(f"    {line}")
        conditions = records[0].conditions
        if conditions is not None and conditions.disturbed:
            say(f"    {conditions.disturbed}")

    def ended(self, rounds: int) -> None:
        """Print that the time budget is spent."""
        say(f"no further round after {rounds}: another one would not fit into the time")


def describe(cell: "Cell") -> str:
    """Return a cell in words."""
    compute = cell.model if cell.compute.kind is ComputeKind.REAL else f"compute {cell.compute}"
    loader = "" if cell.loader == LoaderKind.PROCESSES else f" by {cell.loader}"
    cache = f"{cell.cache} cache"
    if cell.memory_bytes is not None:
        cache = f"cache limited to {format_bytes(cell.memory_bytes)}"
    if cell.readahead_kib is not None:
        cache += f", read-ahead {cell.readahead_kib} KiB"
    parts = [
        f"{cell.data.name} from {cell.backend.name}",
        cache,
        number_of(cell.workers, "worker") + loader,
        compute,
    ]
    if cell.ranks > 1:
        parts.append(f"{cell.ranks} ranks")
    if cell.sync is not Sync.OVERLAPPED:
        parts.append(f"sync {cell.sync}")
    if cell.share is not Share.NONE:
        parts.append(f"share {cell.share}" + f", {cell.store_fill}" * (cell.share is Share.STORE))
    if cell.trainers > 1:
        parts.append(f"{cell.trainers} trainers")
    if cell.tournament_steps:
        parts.append(f"a tournament every {number_of(cell.tournament_steps, 'step')}")
    return ", ".join(parts)


def outcome(record: "Record") -> str:
    """Return the outcome of one epoch in one line."""
    if record.failed and not record.steps:
        return f"FAILED: {record.failure}"
    line = (
        f"epoch {record.epoch}: {_rate(record)}, data wait {record.data_wait_frac:.1%}, "
        f"epoch {record.epoch_s:.2f} s"
    )
    if record.test_accuracy is not None:
        line += f", test accuracy {record.test_accuracy:.2%}"
    if record.store is not None and record.store.origin != "real":
        line += f" ({record.store.origin} data)"
    return f"{line}; FAILED: {record.failure}" if record.failed else line


def _rate(record: "Record") -> str:
    """Return the rate in the requested cache state, and the whole epoch's rate labelled as such."""
    whole = f"{record.samples_per_s:,.0f} samples/s"
    cache = record.cache
    if record.portion is not None:
        return f"steady {record.portion.samples_per_s:,.0f} samples/s (whole epoch {whole})"
    cold = record.cell.cache == CacheState.COLD and cache is not None and cache.applies_to == "epoch"
    return f"cold start {whole}" if cold else whole
