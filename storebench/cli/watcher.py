"""What a run will do, and its progress on standard error."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from storebench.cli.output import Show, progress, put, put_json, say, shown
from storebench.units import format_duration, number_of, rounded_bytes

if TYPE_CHECKING:
    from storebench.ranks.heartbeat import Position
    from storebench.record.schema import Cell, Record
    from storebench.run.dry_run import RunPlan
    from storebench.run.folder import Run
    from storebench.run.replicates import PendingReplicate, ReplicateKey
    from storebench.run.scenario import Scenario
    from storebench.stores.convert import BuildOptions


# Part of the first replicate after which its pace tells something; before, it is that of starting a process.
_TELLING = 0.1


def print_plan(scenario: "Scenario", cells: Sequence["Cell"], stores: Path, *, as_json: bool) -> None:
    from storebench.check.sides import label_of
    from storebench.run.dry_run import plan_run

    plan = plan_run(scenario, cells, stores, progress=progress)
    if as_json:
        put_json(plan.to_dict())
        return
    for cell in plan.cells:
        put(f"{cell.cell_id}  {label_of(cell)}")
    put(*plan.notes)
    for store in plan.stores:
        state = "there already" if store.exists else f"to convert, about {rounded_bytes(store.store_bytes)}"
        put(f"store {store.name}: {store.count:,} samples, {state}")
    put(loop_line(plan.cells), total_line(scenario, plan))


def loop_line(cells: Sequence["Cell"]) -> str:
    """Return the settings that are chosen where they are not named: workers, batch and side of the images."""
    from storebench.run.dry_run import image_side

    def either(numbers: Iterable[int], pattern: str = "{}") -> str:
        return " or ".join(pattern.format(number) for number in sorted(set(numbers)))

    workers = either(cell.workers for cell in cells)
    batches = either(cell.batch_size for cell in cells)
    sides = [image_side(cell) for cell in cells]
    side = either((side for side in sides if side is not None), "{0} x {0}")
    size = f" of {side} pixels" if side and None not in sides else ""
    return f"{workers} {'worker' if workers == '1' else 'workers'}, batches of {batches} images{size}"


def total_line(scenario: "Scenario", plan: "RunPlan") -> str:
    """Return the number of replicates of a run, and the bytes that it converts and reads."""
    count = f"{number_of(len(plan.cells), 'cell')} x {rounds_words(scenario)}"
    bound = "at most " if scenario.budget is not None else ""
    return (
        f"{count}; about {rounded_bytes(plan.write_bytes)} to convert, "
        f"{bound}{rounded_bytes(plan.fetch_bytes)} to read; how long it takes is known after the first round"
    )


def rounds_words(scenario: "Scenario") -> str:
    """Return the number of replicates of each cell of a scenario."""
    least = min(scenario.fewer_replicates.values(), default=scenario.replicates)
    most = number_of(scenario.replicates, "replicate")
    words = most if least == scenario.replicates else f"{least} to {most}"
    return words if scenario.budget is None else f"{words}, as many as fit into {scenario.budget}"


class StderrWatcher:
    """A watcher of a run that shows it on standard error, and ends with one line."""

    def __init__(self, budget_s: float | None = None) -> None:
        self._budget_s = budget_s
        self._open = contextlib.ExitStack()
        self._show: Show | None = None
        self._began_s = 0.0
        self._work: PendingReplicate | None = None
        self._position, self._total = 0, 0
        self._disturbed: dict[ReplicateKey, bool] = {}
        self._failed: set[str] = set()
        self._matrix = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._open.close()
        if error is None and self._disturbed:
            disturbed = sum(self._disturbed.values())
            more = f", {disturbed} of them while other work took the cores" * bool(disturbed)
            say(f"{number_of(len(self._disturbed), 'replicate')} done{more}")

    def store(self, cell: "Cell") -> "BuildOptions":  # noqa: ARG002 - one way to build for all
        """Build with progress; a store of other samples is replaced, and a line says so."""
        from storebench.stores.convert import BuildOptions, Replace

        return BuildOptions(replace=Replace.STALE, progress=progress, say=say)

    def started(self, work: "PendingReplicate", position: int, total: int) -> None:
        """Show which replicate starts."""
        self._work, self._position, self._total = work, position, total
        self._began_s = self._began_s or time.monotonic()
        self._tell("the start", 0.0)

    def ranks(self, positions: Sequence["Position"]) -> None:
        """Show the progress of the replicate, which is that of the rank furthest behind."""
        last = min(positions, key=lambda position: position.order)
        phase, epochs = last.name, 0.0
        if last.total:
            phase += f": {last.batches:,} of {last.total:,} batches"
            epochs = int(last.name.split()[-1]) + last.batches / last.total
        self._tell(phase if len(positions) == 1 else f"rank {last.rank}, {phase}", epochs)

    def _tell(self, phase: str, epochs: float) -> None:
        if self._show is None:
            self._show = self._open.enter_context(shown("replicates"))
        if self._work is None:  # on another node than the first
            self._show(phase, 0.0, None)
            return
        cell = self._work.cell
        done = self._position + min(epochs / cell.epochs, 0.99)
        title = f"{Path(cell.data.name).name} from {cell.backend.name}, {cell.cache}: {phase}"
        self._show(title, done, self._total, self._left(done), self._matrix)

    def _left(self, done: float) -> str:
        """Return words for the time that is left at the pace so far, at most the budget's; "" while it is unknown."""
        if done <= _TELLING:
            return ""
        spent_s = time.monotonic() - self._began_s
        left_s = spent_s * (self._total - done) / done
        if self._budget_s is not None:
            left_s = min(left_s, self._budget_s - spent_s)
        return f"about {format_duration(left_s)} left" if left_s > 0 else ""

    def finished(self, work: "PendingReplicate", records: Sequence["Record"]) -> None:
        """Count the replicate; print the first failure of a cell."""
        from storebench.check.sides import label_of
        from storebench.run.replicates import unsound

        conditions = records[0].conditions
        self._disturbed[work.key] = conditions is not None and bool(conditions.disturbed)
        for record in records:
            if record.failed and not unsound([record]) and work.cell.cell_id not in self._failed:
                self._failed.add(work.cell.cell_id)
                say(f"{label_of(work.cell)}, replicate {work.replicate}: FAILED: {record.failure}")

    def round_finished(self, number: int, run: "Run") -> None:
        """Say the answer so far; on a terminal, show the stores by settings over the bar."""
        from storebench.cli.results import so_far

        sentence, self._matrix = so_far(run.folder)
        say(f"round {number + 1} of {run.scenario.replicates}: {sentence}")

    def ended(self, cells: Sequence["Cell"], rounds: int) -> None:
        count = number_of(len(cells), "cell")
        say(f"{count}: no further round after {rounds}, which would not fit into the time")

    def went_on(self, cells: int) -> None:
        say(f"{number_of(cells, 'cell')}: there is time for further rounds")
