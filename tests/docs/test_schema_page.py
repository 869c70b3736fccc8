"""The schema page gives each field and each column a meaning, and its types in words."""

import enum
from typing import Any

import pytest

from storebench.ranks.merging import RANK
from storebench.results import Cell, Record
from storebench.runs import steps
from storebench.training.step_table import step_table
from tests.docs.schema_page import (
    RECORD_COLUMNS,
    STEP_COLUMNS,
    attribute_docs,
    schema_markdown,
    type_words,
)


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


def test_every_field_of_the_schema_has_a_meaning() -> None:
    empty = [
        line for line in schema_markdown().splitlines() if line.startswith("| `") and line.endswith("|  |")
    ]
    assert empty == []


def test_every_part_of_a_record_has_a_section() -> None:
    page = schema_markdown()
    for part in ("One record", "`Cell`", "`Portion`", "`CacheFacts`", "One row of `steps.parquet`"):
        assert page.count(f"\n## {part}\n") == 1, part


def test_the_step_columns_are_those_that_are_written() -> None:
    assert [*step_table([], [], warmup_steps=0), RANK] == list(STEP_COLUMNS)
    assert tuple(RECORD_COLUMNS) == steps.RECORD_COLUMNS


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "int"),
        (str, "string"),
        (Any, "any"),
        (float | None, "float or null"),
        (tuple[str, ...], "array"),
        (dict[str, Any], "object"),
        (Colour, '"red" or "blue"'),
        (Cell | None, "[`Cell`](#cell) or null"),
        (Record, "[`Record`](#record)"),
    ],
)
def test_a_type_stands_in_the_words_of_json(hint: Any, words: str) -> None:
    assert type_words(hint) == words


def test_names_that_share_a_text_each_get_it() -> None:
    doc = """Summary.

Attributes
----------
low, high
    Ends of the interval;
    a | b.
count
    How many."""
    shared = "Ends of the interval; a \\| b."
    assert attribute_docs(doc) == {"low": shared, "high": shared, "count": "How many."}


def test_a_class_without_attributes_has_no_meanings() -> None:
    assert attribute_docs("Summary only.") == {}
