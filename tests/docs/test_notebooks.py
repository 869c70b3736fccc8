"""The notebooks run from start to end on the reference results, and are saved without output."""

import asyncio
import re
import warnings
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import storebench
from tests.docs.command_line import options_of, positional
from tests.docs.doc_files import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
REFERENCE = ROOT / "results" / "reference"
PLOTS = {
    "01_overview": 4,
    "02_anatomy_of_a_step": 5,
    "03_cold_and_warm": 2,
    "04_container_or_codec": 3,
}
"""How many plots each of them has to show."""


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")


def text(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def executed(path: Path) -> nbformat.NotebookNode:
    """Run a notebook as Jupyter would, in its own folder, and return it with its output."""
    book = read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pyzmq about event loops
        asyncio.run(
            NotebookClient(book, timeout=120, resources={"metadata": {"path": path.parent}}).async_execute()
        )
    return book


def test_the_four_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(PLOTS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_saved_without_output(path: Path) -> None:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None
        assert not cell.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_uses_public_names_and_runs_nothing(path: Path) -> None:
    assert set(re.findall(r"\"(\.\./[^\"]+)\"", code(path))) <= {
        "../results/reference/paper",
        "../results/reference/codecs",
    }
    assert set(re.findall(r"storebench\.(\w+)", code(path))) <= set(storebench.__all__)
    imported = set(re.findall(r"^(?:import|from) ([\w.]+)", code(path), re.MULTILINE))
    assert imported <= {"storebench", "pandas", "numpy", "matplotlib.pyplot"}
    assert "!" not in re.sub(r"!=|\"[^\"]*\"", "", code(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_commands_and_links_are_right(path: Path) -> None:
    for words in re.findall(r"`storebench ([^`]+)`", text(path)):
        named = words.replace('"', "").split()
        assert {word for word in named if word.startswith("-")} <= options_of(named)
        assert positional(named)
    for target in re.findall(r"\]\(([^)#]+)", text(path)):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    if not all((REFERENCE / name / "records.jsonl").is_file() for name in ("paper", "codecs")):
        pytest.skip("results/reference holds no run yet: 'make reference' makes it")
    outputs = [one for cell in executed(path).cells if cell.cell_type == "code" for one in cell.outputs]
    complaints = [one.text for one in outputs if one.get("name") == "stderr"]
    assert complaints == []
    assert sum("image/png" in one.get("data", {}) for one in outputs) >= PLOTS[path.stem]
