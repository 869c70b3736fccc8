"""The site has every page and every public name, whose examples run beside a store and the reference results."""

import contextlib
import doctest
import functools
import inspect
import re

import pytest

import storebench
from tests.docs.doc_files import ROOT
from tests.docs.sandbox import Sandbox

NAMES = [name for name in storebench.__all__ if name != "__version__"]


def test_the_site_has_every_page_and_every_name() -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= set((ROOT / "docs" / "index.md").read_text().split())
    shown = re.findall(
        r"^\.\. auto(?:class|function):: (\w+)", (ROOT / "docs" / "api.rst").read_text(), re.MULTILINE
    )
    assert sorted(shown) == sorted(NAMES)


LOADED = functools.cache(storebench.load_results)
"""Most examples read the same reference runs."""


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_example_that_runs(
    name: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storebench, "load_results", LOADED)
    results = sandbox.root / "results"
    if not results.exists():
        results.symlink_to(ROOT / "results")
    text = inspect.getdoc(LOADED if name == "load_results" else getattr(storebench, name)) or ""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples
    with contextlib.chdir(sandbox.root):
        assert doctest.DocTestRunner().run(test).failed == 0
