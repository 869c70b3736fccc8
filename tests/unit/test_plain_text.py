"""Text of others: what reaches a terminal, Markdown, a spreadsheet or CI moves nothing and commands nothing."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.errors import UsageError
from storebench.plain_text import csv_cell, markdown, plain, workflow_message, workflow_property

NASTY = st.text(st.sampled_from(" ab:#[]()|<\\=+-@%,\t\r\n\x1b\x9b\x7f\x85\u2028\u202e\udcff\ud83d"))


@given(text=st.text() | NASTY)
def test_plain_text_is_one_printable_line_and_stays_as_it_is(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert plain(shown) == shown
    shown.encode()  # a half of a character has no bytes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("CIFAR-10, 4,000 images µs 数据", "CIFAR-10, 4,000 images µs 数据"),
        ("red\x1b[31m", r"red\x1b[31m"),
        ("one\ntwo\tthree", "one two three"),
        ("gnp.\u202eexe", r"gnp.\u202eexe"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_cannot_be_printed_is_shown(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(text=st.text() | NASTY)
def test_markdown_holds_no_tag_no_link_and_no_end_of_a_cell(text: str) -> None:
    shown = markdown(text)
    assert "<" not in shown
    bare = re.sub(r"\\[^\w\s]", "x", shown)  # what a backslash stands before is text
    assert "|" not in bare
    assert "](" not in bare
    assert "]:" not in bare


def test_markdown_leaves_figures_and_names_as_they_read() -> None:
    assert markdown("1.02 [0.97, 1.07] of cifar10_quick, 5% (n = 3)") == (
        "1.02 [0.97, 1.07] of cifar10_quick, 5% (n = 3)"
    )
    assert markdown(r"a\|b") == r"a\\\|b"
    assert markdown("a$b$") == r"a\$b\$"
    assert markdown("![x](http://e)") == r"![x]\(http://e)"


@given(text=st.text() | NASTY)
def test_no_cell_of_a_spreadsheet_is_a_formula(text: str) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow([csv_cell(text), "second"])
    [[cell, second]] = csv.reader(io.StringIO(file.getvalue()))
    assert second == "second"
    assert cell.lstrip()[:1] not in ("=", "+", "-", "@")
    assert cell[:1] not in ("\t", "\r")


def test_a_cell_that_is_no_formula_stays_as_it_is() -> None:
    assert [csv_cell(one) for one in ("lmdb:direct", "1-2", "", "@SUM(1)", "\t=1")] == [
        "lmdb:direct",
        "1-2",
        "",
        "'@SUM(1)",
        "' =1",
    ]


@given(text=st.text() | NASTY)
def test_a_workflow_command_ends_where_its_line_does(text: str) -> None:
    assert len(workflow_message(text).splitlines()) <= 1
    assert "%0A" not in workflow_message(text)
    assert not set(":,") & set(workflow_property(text))


@given(what=st.text() | NASTY, where=st.text() | NASTY)
def test_an_error_is_plain_text(what: str, where: str) -> None:
    line = str(UsageError(what, where=where))
    assert plain(line) == line
