"""What a run will do, and its progress on standard error: stores first, then each replicate."""

import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storebench.cli.common import PLAIN_LINE_EVERY_S, progress, put, put_json, rewrite, say
from storebench.settings.words import CacheState, ComputeKind, LoaderKind, Share, Sync
from storebench.units import format_bytes, format_duration, number_of

if TYPE_CHECKING:
    from storebench.plan import RunPlan
    from storebench.ranks.progress import Position
    from storebench.results import Cell, Record
    from storebench.runs.schedule import PendingReplicate
    from storebench.scenario import Scenario
    from storebench.stores.convert import BuildOptions


def print_plan(
    scenario: "Scenario", cells: Sequence["Cell"], stores: Path, *, sides: int = 1, as_json: bool = False
) -> None:
    from storebench.plan import plan_run

    plan = plan_run(scenario, cells, stores, sides=sides, progress=progress)
    if as_json:
        put_json(plan.to_dict())
    else:
        put(*plan_lines(scenario, plan, sides=sides))


def plan_lines(scenario: "Scenario", plan: "RunPlan", *, sides: int = 1) -> list[str]:
    """Return one line per cell, note and store, one with the settings of the loop, and a last one with all of it together."""
    lines = [
        f"{cell.cell_id}  {words}" for cell, words in zip(plan.cells, told_apart(plan.cells), strict=True)
    ]
    lines += plan.notes
    for store in plan.stores:
        state = "there already" if store.exists else f"to convert, about {_mib(store.store_bytes)}"
        lines.append(f"store {store.name}: {store.count:,} samples, {state}")
    return [*lines, loop_line(plan.cells), total_line(scenario, plan, sides=sides)]


def told_apart(cells: Sequence["Cell"]) -> list[str]:
    """Return each cell in words. Where these are those of another cell, too, the settings in which the two differ follow."""
    alike: defaultdict[str, list[dict[str, object]]] = defaultdict(list)
    for cell in cells:
        alike[describe(cell)].append(cell.fields())
    lines = []
    for cell in cells:
        words = describe(cell)
        differing = [
            f"{name.replace('_', ' ')} {value}"
            for name, value in cell.fields().items()
            if any(other[name] != value for other in alike[words])
        ]
        lines.append(", ".join([words, *differing]))
    return lines


def loop_line(cells: Sequence["Cell"]) -> str:
    """Return the settings that are chosen where they are not named: workers, batch and side of the images."""
    from storebench.plan import image_side

    def either(numbers: Iterable[int], pattern: str = "{}") -> str:
        return " or ".join(pattern.format(number) for number in sorted(set(numbers)))

    workers = either(cell.workers for cell in cells)
    batches = either(cell.batch_size for cell in cells)
    sides = [image_side(cell) for cell in cells]
    known = either((side for side in sides if side is not None), "{0} x {0}")
    size = f" of {known} pixels" if known and None not in sides else ""
    return f"{workers} {'worker' if workers == '1' else 'workers'}, batches of {batches} images{size}"


def total_line(scenario: "Scenario", plan: "RunPlan", *, sides: int = 1) -> str:
    """Return the number of replicates of a run, and the bytes that it converts and reads."""
    count = f"{number_of(len(plan.cells), 'cell')}{' x 2 sides' * (sides == 2)} x {rounds_words(scenario)}"
    bound = "at most " if scenario.budget is not None else ""
    return (
        f"{count}; about {_mib(plan.write_bytes)} to convert, {bound}{_mib(plan.fetch_bytes)} to read;"
        " how long it takes is known after the first round"
    )


def rounds_words(scenario: "Scenario") -> str:
    """Return the number of replicates of each cell of a scenario."""
    least = min(scenario.fewer_replicates.values(), default=scenario.replicates)
    most = number_of(scenario.replicates, "replicate")
    words = most if least == scenario.replicates else f"{least} to {most}"
    return words if scenario.budget is None else f"{words}, as many as fit into {scenario.budget}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


_REWRITE_EVERY_S = 1.0


class ProgressLines:
    """The progress of a running replicate: one rewritten line on a terminal, plain lines otherwise."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = ""
        self._said_s = 0.0

    def began(self) -> None:
        self._said_s = time.monotonic()

    def show(self, text: str) -> None:
        """Show its progress, at a limited rate."""
        now_s = time.monotonic()
        if now_s - self._said_s < (_REWRITE_EVERY_S if self._terminal else PLAIN_LINE_EVERY_S):
            return
        self._said_s, line = now_s, f"    {text}"
        if not self._terminal:
            say(line)
        elif line != self._shown:
            rewrite(line[: shutil.get_terminal_size().columns - 1])
            self._shown = line

    def clear(self) -> None:
        if self._shown:
            rewrite("")
            self._shown = ""


def progress_line(positions: "Sequence[Position]") -> str:
    """Return the progress of a job's ranks in one line, the ranks that are furthest behind first."""
    if len(positions) == 1:
        [alone] = positions
        return alone.name + (f": {alone.batches:,} of {alone.total:,} batches" if alone.total else "")
    phases: defaultdict[int, list[Position]] = defaultdict(list)
    for position in sorted(positions, key=lambda position: (position.phase, position.rank)):
        phases[position.phase].append(position)
    return "; ".join(map(_together, phases.values()))


def _together(group: "Sequence[Position]") -> str:
    """Return the progress of the ranks in one phase: "ranks 0, 1, 2: epoch 0, 118 to 121 batches (fewest: rank 2)"."""
    least = min(group, key=lambda position: position.batches)
    most = max(position.batches for position in group)
    ranks = [position.rank for position in group]
    named = f"ranks {ranks[0]} to {ranks[-1]}" if ranks[-1] - ranks[0] == len(ranks) - 1 > 0 else ""
    named = named or f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    line = f"{named}: {group[0].name}"
    if least.batches == most:
        return line + f", {most:,} {'batch' if most == 1 else 'batches'}" * bool(most)
    return f"{line}, {least.batches:,} to {most:,} batches (fewest: rank {least.rank})"


def job_line(record: "Record") -> str:
    """Return the rates and waits of a job's ranks in an epoch, in one line; "" for one process, or without steps."""
    job = record.job
    if job is None or not record.timed_steps:
        return ""
    parts = [
        f"{job.ranks} ranks: {job.samples_per_s_min:,.0f} to {job.samples_per_s_max:,.0f} samples/s each",
        f"skew {job.skew:.1%}",
    ]
    if job.wait_for_slowest_s is not None:
        parts.append(
            f"wait for the slowest {1000 * job.wait_for_slowest_s / record.timed_steps:.2f} ms per step"
        )
    if job.exposed_communication_s is not None:
        ring = "" if job.ring_bound_s is None else f" (ideal ring {1000 * job.ring_bound_s:.2f} ms)"
        parts.append(f"exposed communication {1000 * job.exposed_communication_s:.2f} ms per step{ring}")
    return ", ".join(parts)


class Pace:
    """What the replicates of a run took so far, and from that how long the others will take, at most for its budget."""

    def __init__(self, budget_s: float | None = None) -> None:
        self._budget_s = budget_s
        self._took: dict[str, list[float]] = {}
        self._began_s = 0.0

    def began(self) -> None:
        self._began_s = time.monotonic()

    def ended(self, cell_id: str) -> None:
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
    rate, cache = f"{record.samples_per_s:,.0f} samples/s", record.cache
    if record.portion is not None:
        rate = f"steady {record.portion.samples_per_s:,.0f} samples/s (whole epoch {rate})"
    elif record.cell.cache == CacheState.COLD and cache is not None and cache.applies_to == "epoch":
        rate = f"cold start {rate}"
    line = (
        f"epoch {record.epoch}: {rate}, data wait {record.data_wait_frac:.1%}, epoch {record.epoch_s:.2f} s"
    )
    if record.test_accuracy is not None:
        line += f", test accuracy {record.test_accuracy:.2%}"
    if record.store is not None and record.store.origin != "real":
        line += f" ({record.store.origin} data)"
    return f"{line}; FAILED: {record.failure}" if record.failed else line
