"""The figures of the README and of docs/results.md are those that 'make figures' prints from the reference results."""

import re
from collections.abc import Iterator

import pytest

from tests.docs.doc_files import ROOT
from tests.docs.figures import figure_lines

FIGURE = re.compile(r"([\d.,]+)(?: times| images/s)? (\[[\d.,]+, [\d.,]+\])")
"""A figure and its interval."""

OTHER_COMMANDS = ("an accelerator busy at least 90% of its time up to", "Converting pays after")
"""What is around figures of other commands, from the example of a first run and from `make bench-conversion`."""


@pytest.fixture(scope="module")
def printed() -> set[tuple[str, str]]:
    return set(figures_of("\n".join(figure_lines())))


def figures_of(text: str) -> Iterator[tuple[str, str]]:
    yield from FIGURE.findall(" ".join(text.split()))


def passages(page: str) -> Iterator[str]:
    """Yield the paragraphs, list items and rows of a page, but for those with figures of other commands."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for passage in re.split(r"\n\n|\n(?=- |\|)", text):
        if not any(words in " ".join(passage.split()) for words in OTHER_COMMANDS):
            yield passage


@pytest.mark.parametrize(("page", "least"), [("README.md", 7), ("docs/results.md", 9)])
def test_figures_with_intervals_are_those_of_the_reference_results(
    page: str, least: int, printed: set[tuple[str, str]]
) -> None:
    stated = [figure for passage in passages(page) for figure in figures_of(passage)]
    assert len(stated) >= least
    assert [figure for figure in stated if figure not in printed] == [], "see 'make figures'"


def test_other_figures_are_those_of_the_reference_results() -> None:
    """Those without intervals: the model's errors, what read-ahead delivers, and the work that is decoding."""
    page = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    lines = "\n".join(figure_lines())
    errors = re.search(r"off by ([\d.]+%) at the median of (\d+) points and by ([\d.]+%) at most", lines)
    assert errors is not None
    assert "off by {} in the median of its {} points, and by {} at most".format(*errors.groups()) in page
    delivered = dict(
        re.findall(r"read-ahead (\d+) KiB: .*\n.*\n +LMDB: the device delivered ([\d.]+) times", lines)
    )
    assert f"the device delivers {delivered['8192']} times the bytes that LMDB asked for" in page
    assert f"at 128 KiB {delivered['128']} times" in page
    decoding = re.search(r"decoding \((\d+%) of the producers' work with PNG files\)", lines)
    assert decoding is not None
    assert f"it is {decoding[1]} of the producers' work with PNG files" in page
