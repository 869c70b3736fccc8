"""What a run would do: its cells, its stores and their bytes."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storebench.cli.bench_watch import describe
from storebench.cli.common import progress, put, put_json
from storebench.units import number_of

if TYPE_CHECKING:
    from storebench.plan import RunPlan
    from storebench.results import Cell
    from storebench.scenario import Scenario


def print_plan(
    scenario: "Scenario", cells: Sequence["Cell"], stores: Path, *, sides: int = 1, as_json: bool = False
) -> None:
    """Print the plan of a run, as lines or as JSON."""
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
    words = [describe(cell) for cell in cells]
    alike: defaultdict[str, list[Cell]] = defaultdict(list)
    for cell, text in zip(cells, words, strict=True):
        alike[text].append(cell)
    return [", ".join([text, *_distinct(cell, alike[text])]) for cell, text in zip(cells, words, strict=True)]


def _distinct(cell: "Cell", alike: Sequence["Cell"]) -> list[str]:
    """Return the settings of a cell in which some cells of the same description differ."""
    named: defaultdict[str, set[object]] = defaultdict(set)
    for one in alike:
        for name, value in _settings(one).items():
            named[name].add(value)
    return [
        f"{name.replace('_', ' ')} {value}" for name, value in _settings(cell).items() if len(named[name]) > 1
    ]


def _settings(cell: "Cell") -> dict[str, object]:
    own = {field.name: getattr(cell, field.name) for field in dataclasses.fields(cell)}
    data = own.pop("data")
    return {**{f"data {name}": value for name, value in vars(data).items()}, **own}


def loop_line(cells: Sequence["Cell"]) -> str:
    """Return the settings that are chosen where they are not named: workers, batch and side of the images."""
    from storebench.plan import image_side

    workers = _alternatives(cell.workers for cell in cells)
    batches = _alternatives(cell.batch_size for cell in cells)
    sides = {image_side(cell) for cell in cells}
    known = sorted(side for side in sides if side is not None)
    words = " or ".join(f"{side} x {side}" for side in known)
    size = f" of {words} pixels" if words and None not in sides else ""
    verb = "worker" if workers == "1" else "workers"
    return f"{workers} {verb}, batches of {batches} images{size}"


def _alternatives(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(set(numbers))))


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
