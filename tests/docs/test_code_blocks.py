"""The Python and TOML that documents show is right: run, validated."""

import os
import tomllib
from pathlib import Path

import pytest

from storebench.run.scenario import Scenario, load_scenario
from tests.docs.doc_files import DOCUMENTS, PLUGIN_GUIDE, ROOT, Fence, fences, name_of
from tests.docs.sandbox import Sandbox
from tests.support.copies import run_code

REFERENCE = ROOT / "results" / "reference"
BLOCKS = [fence for document in DOCUMENTS for fence in fences(document) if document.name != PLUGIN_GUIDE]


def _in(language: str) -> list[Fence]:
    return [fence for fence in BLOCKS if fence.language == language]


def _name(fence: Fence) -> str:
    return f"{name_of(fence.document)}:{fence.line}"


@pytest.mark.parametrize("document", sorted({fence.document for fence in _in("python")}), ids=name_of)
def test_python_blocks_run(document: Path, sandbox: Sandbox) -> None:
    """All of a document's blocks are one program, in order."""
    program = "\n".join(fence.text for fence in _in("python") if fence.document == document)
    if "results/reference" in program:
        if not REFERENCE.is_dir():
            pytest.skip("results/reference is not there yet")
        (sandbox.root / "results").mkdir(exist_ok=True)
        if not (sandbox.root / "results" / "reference").exists():
            (sandbox.root / "results" / "reference").symlink_to(REFERENCE)
    env = {**os.environ, **sandbox.env, "MPLBACKEND": "agg"}
    done = run_code(program, cwd=sandbox.root, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fence", _in("toml"), ids=_name)
def test_toml_blocks_are_valid(fence: Fence, tmp_path: Path) -> None:
    path = tmp_path / "block.toml"
    path.write_text(fence.text)
    keys = set(tomllib.loads(fence.text))
    if keys <= set(Scenario.model_fields):
        if "matrix" not in keys:
            path.write_text(
                f'name = "block"\n{fence.text}\n[[matrix]]\ndataset = "mnist"\nbackends = ["lmdb"]\n'
            )
        assert load_scenario(path).cells()
