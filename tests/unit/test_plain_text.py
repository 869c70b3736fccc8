"""Text of others: what reaches a terminal, Markdown or CI moves nothing and commands nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.errors import UsageError
from storebench.plain_text import markdown, plain

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


def test_markdown_holds_no_tag_and_no_end_of_a_cell() -> None:
    assert markdown("<b>1.02 | [0.97, 1.07]") == r"&lt;b>1.02 \| [0.97, 1.07]"


@given(what=st.text() | NASTY, where=st.text() | NASTY)
def test_an_error_is_plain_text(what: str, where: str) -> None:
    line = str(UsageError(what, where=where))
    assert plain(line) == line
