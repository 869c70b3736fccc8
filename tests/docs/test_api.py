"""The examples of the Python API run: in a folder with a store, and the reference results beside it."""

import contextlib
import doctest
import inspect

import pytest

import storebench
from tests.docs.doc_files import ROOT
from tests.docs.sandbox import Sandbox


@pytest.mark.parametrize("name", [name for name in storebench.__all__ if name != "__version__"])
def test_every_name_has_an_example_that_runs(name: str, sandbox: Sandbox) -> None:
    results = sandbox.root / "results"
    if not results.exists():
        results.symlink_to(ROOT / "results")
    text = inspect.getdoc(getattr(storebench, name)) or ""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples
    with contextlib.chdir(sandbox.root):
        assert doctest.DocTestRunner().run(test).failed == 0
