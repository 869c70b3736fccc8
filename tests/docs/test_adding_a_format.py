"""The guide's plugin, taken out of the page: pip installs it, its commands run, and it passes the contract."""

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.doc_files import PLUGIN_GUIDE, ROOT, fences
from tests.docs.sandbox import Sandbox
from tests.support.installed import Environment

SMALLER = {
    "convert": ("--limit", "16"),
    "run": (
        *("--limit", "16", "--max-steps", "1", "--model", "tiny", "--compute", "emulated:0.01"),
        *("--cache", "any", "--json"),
    ),
}
"""Verb -> options behind those of the page, so that it takes seconds."""

SHOWN = {"formats": "pack:pread", "convert": "pack+jpeg", "run": '"backend": "pack"'}


@pytest.mark.full
def test_the_plugin_of_the_page_works_as_it_says(
    sandbox: Sandbox, installed: Environment, tmp_path: Path
) -> None:
    blocks = fences(ROOT / "docs" / PLUGIN_GUIDE)
    for fence in blocks:
        if found := re.match(r"# file: (\S+)\n", fence.text):
            (tmp_path / found[1]).write_text(fence.text)
    for line in (line for fence in blocks if fence.language == "sh" for line in fence.text.splitlines()):
        words = shlex.split(line)
        if words[0] == "storebench":
            small = [word for word in words if word != "files+raw"]
            small += SMALLER.get(words[1], ())
            assert SHOWN[words[1]] in installed.run(*small, cwd=sandbox.root, env=sandbox.env)
        else:
            more = ("-q", "-p", "no:cacheprovider") if words[0] == "pytest" else ()
            installed.run(*words, *more, cwd=tmp_path, env=sandbox.env)
    faults = installed.run("pytest", "test_faults.py", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "3 passed" in faults
