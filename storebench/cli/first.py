"""``storebench run`` without a backend: choose the cells, measure them, and say whether converting is worth it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storebench.accelerators import Accelerator
from storebench.cli.common import progress, put, put_text, say
from storebench.cli.plan_lines import loop_line, rounds_words
from storebench.cli.report import drawn, print_summary
from storebench.units import format_duration, number_of

if TYPE_CHECKING:
    from storebench.first_run.choice import FirstRun
    from storebench.matrix import Matrix
    from storebench.report.answer import Worth
    from storebench.scenario import Scenario

_ONE_RUN = (
    "Intervals describe this one run; another run may differ by more. --workers N measures another number of workers, such as that"
    " of your training."
)

_ANY_BACKEND: dict[str, Any] = {"backends": ["files"]}
"""Completes a matrix whose backends are not chosen yet, so that its other keys can be validated."""


def chosen_run(
    asked: Mapping[str, Any], rounds: int | None, stores: Path, settings: Mapping[str, Any]
) -> tuple["FirstRun", "Scenario"]:
    """Inspect the samples and the machine, and return the choice and its scenario."""
    from storebench.first_run.choice import NAME, asked_matrix, choose
    from storebench.scenario import make_scenario

    matrix = asked_matrix(asked)
    # Before the images are looked at, so that wrong settings are refused at once.
    valid = make_scenario({"name": NAME, **settings, "matrix": [matrix | _ANY_BACKEND]})
    from storebench.first_run.facts import look_at, machine_for
    from storebench.scenario import without_missing_libraries

    say(f"looking at the images of {asked['dataset']}")
    first = choose(look_at(valid.matrix[0].data, stores, progress), machine_for(stores), matrix, rounds)
    return first, make_scenario(without_missing_libraries(first.scenario | dict(settings), say))


def opening_lines(first: "FirstRun", scenario: "Scenario") -> list[str]:
    """Return the omissions with their reasons, the settings of the loop, and the estimated duration of the run."""
    from storebench.first_run.choice import BUDGET_S

    cells = scenario.cells()
    least, most = format_duration(first.estimate_s), format_duration(max(first.estimate_s, BUDGET_S))
    return [
        *first.notes,
        loop_line(cells),
        f"{number_of(len(cells), 'cell')} x {rounds_words(scenario)}; about {least} to convert and measure, at most about {most}",
    ]


def print_first_answer(
    folder: Path,
    scenario: "Scenario",
    *,
    stores: Path | None = None,
    named: Sequence[Accelerator] = (),
) -> bool:
    """Print which accelerators each store feeds, whether converting is worth it, and the command that converts."""
    from storebench.report.build import first_answer

    first = first_answer(folder, named)
    if first is None:
        print_summary(folder, named)
        return False
    put_text(drawn(first.table))
    put(*filter(None, (first.disturbed,)), *first.incomplete, *first.worth.sentences)
    put(_ONE_RUN)
    if first.worth.store:
        put("To convert all images:", f"  {convert_command(scenario.matrix[0], first.worth, stores)}")
        put(*reading_lines(first.worth))
    if first.findings:
        say(f"attention: {number_of(first.findings, 'finding')}; 'storebench validate {folder}' lists them")
    return True


def reading_lines(worth: "Worth") -> list[str]:
    """Return the line that names the reader of the recommended store; none if it is the default reader of its format."""
    from storebench.formats.registry import parse_backend

    backend = parse_backend(worth.backend)
    if backend.reader == parse_backend(worth.store).reader:
        return []
    options = f", options={dict(backend.options)!r}" if backend.options else ""
    python = f"storebench.StoreDataset(STORE, {backend.reader!r}{options})"
    return [f"Read it with {worth.backend}; in Python: {python}"]


def convert_command(matrix: "Matrix", worth: "Worth", stores: Path | None) -> str:
    """Return the command that converts the whole dataset into the store that the answer names."""
    from storebench.datasets.base import FOLDER_PREFIX

    path = matrix.dataset.removeprefix(FOLDER_PREFIX)
    options: dict[str, object] = {
        "--dataset": path if "/" in path else matrix.dataset,
        "--split": None if matrix.split == "train" else matrix.split,
        "--size": matrix.size,
        "--image-size": worth.side,
        "--out": stores,
    }
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    flags = ["--skip-unreadable"] if matrix.skip_unreadable else []
    return shlex.join(["storebench", "convert", worth.store, *given, *flags])
