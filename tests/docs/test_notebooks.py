"""The notebooks run from start to end on the reference results, and are saved with the outputs that they have there."""

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

import storebench
from tests.docs.command_line import options_of, positional
from tests.docs.doc_files import ROOT
from tests.docs.notebooks import MOST_BYTES, NOTEBOOKS, compact, executed_together

REFERENCE = ROOT / "results" / "reference"
PLOTS = {
    "01_overview": 4,
    "02_anatomy_of_a_step": 5,
    "03_cold_and_warm": 2,
    "04_container_or_codec": 3,
    "05_many_ranks": 4,
}
"""How many plots each of them has to show."""

READS = {"05_many_ranks": ("ranks", "overlap")}
"""The runs in results/reference that a notebook reads, if not those of the paper and of the codecs."""

PNG_HEAD = b"\x89PNG\r\n\x1a\n"


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")


def text(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def outputs(book: nbformat.NotebookNode) -> list[Any]:
    return [record for cell in book.cells if cell.cell_type == "code" for record in cell.outputs]


def pictures(book: nbformat.NotebookNode) -> list[bytes]:
    found = (one.get("data", {}).get("image/png") for one in outputs(book))
    return [base64.b64decode(picture) for picture in found if picture]


def words(book: nbformat.NotebookNode) -> list[str]:
    """Return every text that the cells of a notebook print or show, but for the names of figures."""
    shown = [one.get("text") or one.get("data", {}).get("text/plain", "") for one in outputs(book)]
    return [one for one in shown if not one.startswith("<Figure")]


def test_the_five_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(PLOTS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_saved_whole_with_small_pictures(path: Path) -> None:
    book = read(path)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(cell.metadata for cell in book.cells)
    assert path.stat().st_size < MOST_BYTES
    found = pictures(book)
    assert len(found) >= PLOTS[path.stem]
    assert all(picture.startswith(PNG_HEAD) for picture in found)
    assert not [one for one in outputs(book) if one.output_type == "error" or one.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_says_at_the_top_how_to_open_it_and_whose_run_it_reads(path: Path) -> None:
    first, second = read(path).cells[:2]
    assert "jupyter lab notebooks" in first.source
    assert "set `RUN` in the first code cell" in first.source
    assert re.search(r'^RUN = "\.\./results/reference/\w+"', second.source, re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_uses_public_names_and_runs_nothing(path: Path) -> None:
    assert set(re.findall(r"\"(\.\./[^\"]+)\"", code(path))) <= {
        "../results/reference/paper",
        "../results/reference/codecs",
        "../results/reference/ranks",
        "../results/reference/overlap",
        "../runs",
    }
    assert set(re.findall(r"storebench\.(\w+)", code(path))) <= set(storebench.__all__)
    imported = set(re.findall(r"^(?:import|from) ([\w.]+)", code(path), re.MULTILINE))
    assert imported <= {"storebench", "pandas", "numpy", "matplotlib.pyplot", "pathlib"}
    assert "!" not in re.sub(r"!=|\"[^\"]*\"", "", code(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_commands_and_links_are_right(path: Path) -> None:
    for shown in re.findall(r"`storebench ([^`]+)`", text(path)):
        named = shown.replace('"', "").split()
        assert {word for word in named if word.startswith("-")} <= options_of(named)
        assert positional(named)
    for target in re.findall(r"\]\(([^)#]+)", text(path)):
        assert (path.parent / target).exists(), target


def has_its_runs(path: Path) -> bool:
    names = READS.get(path.stem, ("paper", "codecs"))
    return all((REFERENCE / name / "records.jsonl").is_file() for name in names)


@pytest.fixture(scope="module")
def run() -> dict[Path, nbformat.NotebookNode]:
    there = [path for path in NOTEBOOKS if has_its_runs(path)]
    return dict(zip(there, executed_together(there), strict=True)) if there else {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_what_is_saved(path: Path, run: dict[Path, nbformat.NotebookNode]) -> None:
    if path not in run:
        pytest.skip("results/reference does not have its runs yet: run 'make reference'")
    book = compact(run[path])
    assert [one.text for one in outputs(book) if one.get("name") == "stderr"] == []
    assert len(pictures(book)) >= PLOTS[path.stem]
    assert words(book) == words(read(path)), "run 'make notebooks'"
