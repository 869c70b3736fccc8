"""The guide's plugin, taken out of the page: it installs, its commands run, and it passes the contract."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from doc_files import PLUGIN_GUIDE, ROOT, commands, fences
from sandbox import Sandbox

GUIDE = ROOT / "docs" / PLUGIN_GUIDE


def files() -> dict[str, str]:
    """Return the guide's files, by name."""
    named = [(re.match(r"# file: (\S+)\n", fence.text), fence.text) for fence in fences(GUIDE)]
    return {found[1]: text for found, text in named if found}


@pytest.fixture(scope="module")
def plugin(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the plugin as pip would, from its own pyproject; return the environment that finds it."""
    site = tmp_path_factory.mktemp("plugin")
    for name, text in files().items():
        (site / name).write_text(text)
    project = tomllib.loads(files()["pyproject.toml"])["project"]
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(about)
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("".join(lines))
    return {**os.environ, **sandbox.env, "PYTHONPATH": str(site), "PLUGIN": str(site)}


def run(words: list[str], env: dict[str, str], where: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=where, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_file_is_in_the_page() -> None:
    assert set(files()) == {"pyproject.toml", "storebench_pack.py", "test_pack.py"}
    project = tomllib.loads(files()["pyproject.toml"])["project"]
    assert importlib.metadata.version(project["dependencies"][0])


def test_its_commands_run(plugin: dict[str, str], sandbox: Sandbox) -> None:
    shown = [one.words[1:] for one in commands(GUIDE)]
    assert [words[0] for words in shown] == ["formats", "convert", "run"]
    listed = run(["-m", "storebench", *shown[0]], plugin, sandbox.root)
    assert "pack:pread" in listed
    assert "pack+jpeg" in run(["-m", "storebench", *shown[1], "--limit", "16"], plugin, sandbox.root)
    small = [
        "--limit",
        "16",
        "--max-steps",
        "1",
        "--model",
        "tiny",
        "--compute",
        "emulated:0.01",
        "--cache",
        "any",
    ]
    first = [word for word in shown[2] if word != "files+raw"]
    assert '"backend": "pack"' in run(["-m", "storebench", *first, *small, "--json"], plugin, sandbox.root)


def test_it_passes_the_contract(plugin: dict[str, str]) -> None:
    passed = run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pack.py"], plugin, Path(plugin["PLUGIN"])
    )
    assert re.search(r"\d\d passed", passed), passed
