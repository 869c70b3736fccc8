"""The guide's plugin, taken out of the page: pip installs it, its commands run, and it passes the contract."""

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storebench.errors import UsageError
from tests.docs.doc_files import PLUGIN_GUIDE, ROOT, fences
from tests.docs.sandbox import Sandbox
from tests.support.installed import Environment

GUIDE = ROOT / "docs" / PLUGIN_GUIDE

SMALLER = {
    "convert": ("--limit", "16"),
    "run": (
        *("--limit", "16", "--max-steps", "1", "--model", "tiny", "--compute", "emulated:0.01"),
        *("--cache", "any", "--json"),
    ),
}
"""Verb -> options behind those of the page, so that it takes seconds."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The folder with the guide's files, and the environment that its first command installed them into."""

    folder: Path
    environment: Environment
    env: Mapping[str, str]
    data: Path

    def run(self, *words: str) -> str:
        """Run one of the guide's commands: ``storebench`` where the data is, the others in the plugin's folder."""
        where = self.data if words[0] == "storebench" else self.folder
        return self.environment.run(*words, cwd=where, env=self.env)


def files() -> dict[str, str]:
    """Return the guide's files, by name."""
    named = [(re.match(r"# file: (\S+)\n", fence.text), fence.text) for fence in fences(GUIDE)]
    return {found[1]: text for found, text in named if found}


def commands() -> list[list[str]]:
    """Return every command of the guide, in order."""
    lines = [line for fence in fences(GUIDE) if fence.language == "sh" for line in fence.text.splitlines()]
    return [shlex.split(line) for line in lines]


@pytest.fixture(scope="module")
def plugin(sandbox: Sandbox, installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """Write the guide's files into a fresh folder, and install them as it says."""
    folder = tmp_path_factory.mktemp("plugin")
    for name, text in files().items():
        (folder / name).write_text(text)
    made = Plugin(folder=folder, environment=installed, env=sandbox.env, data=sandbox.root)
    install = commands()[0]
    assert install[:2] == ["pip", "install"]
    made.run(*install)
    return made


def test_every_file_is_in_the_page() -> None:
    assert set(files()) == {"pyproject.toml", "storebench_pack.py", "test_pack.py", "test_faults.py"}
    project = tomllib.loads(files()["pyproject.toml"])["project"]
    assert project["dependencies"] == ["storebench"]


def test_the_page_shows_each_kind_of_command() -> None:
    assert [" ".join(words[:2]) for words in commands()] == [
        "pip install",
        "storebench formats",
        "storebench convert",
        "storebench run",
        "pytest test_pack.py",
    ]


def test_the_options_on_the_page_are_typed() -> None:
    [block] = [fence.text for fence in fences(GUIDE) if "PackOptions(Options)" in fence.text]
    names: dict[str, Any] = {}
    exec(block, names)
    given = [("threads", "8"), ("order", "sorted"), ("window_mib", "4")]
    options = names["PackOptions"].parse(given, "pack:pread")
    assert vars(options) == {"threads": 8, "ahead": True, "order": "sorted", "window_bytes": 4 << 20}
    wrong = "pack:pread: order must be 'asked' or 'sorted', not 'sorte'. Did you mean 'sorted'?"
    with pytest.raises(UsageError, match=re.escape(wrong)):
        names["PackOptions"].parse([("order", "sorte")], "pack:pread")


def test_the_installed_format_is_listed(plugin: Plugin) -> None:
    assert "pack:pread" in plugin.run(*commands()[1])


def test_its_stores_are_written_and_read(plugin: Plugin) -> None:
    convert, run = commands()[2:4]
    assert "pack+jpeg" in plugin.run(*convert, *SMALLER["convert"])
    only = [word for word in run if word != "files+raw"]
    assert '"backend": "pack"' in plugin.run(*only, *SMALLER["run"])


def test_it_passes_the_contract(plugin: Plugin) -> None:
    passed = plugin.run(*commands()[4], "-q", "-p", "no:cacheprovider")
    assert re.search(r"\d\d passed", passed), passed


def test_its_readers_that_misbehave_do(plugin: Plugin) -> None:
    assert "3 passed" in plugin.run("pytest", "test_faults.py", "-q", "-p", "no:cacheprovider")
