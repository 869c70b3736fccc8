"""The site of the documentation: ``make site``."""

import contextlib
import doctest
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from storebench._version import __version__
from storebench.report.plots.style import saved

project = "storebench"
copyright = "2026, the storebench authors"  # noqa: A001 - Sphinx's own name
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "none"
myst_heading_anchors = 3

html_theme = "furo"
html_title = "storebench"


def show_plot(
    app: Sphinx, _what: str, name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Draw the example of a plot below it."""
    if not name.startswith("storebench.plot_"):
        return
    scope: dict[str, Any] = {}
    with contextlib.chdir(Path(app.srcdir).parent):
        for example in doctest.DocTestParser().get_examples("\n".join(lines)):
            exec(example.source, scope)
    picture = Path(app.srcdir, "plots", f"{name}.svg")
    picture.parent.mkdir(exist_ok=True)
    picture.write_bytes(saved(scope["ax"], "svg"))
    lines += [f".. image:: plots/{picture.name}", ""]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", show_plot, priority=900)  # after napoleon
