"""Sizes and counts as people write and read them."""

import pytest

from storebench.units import format_bytes, number_of, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("400 MiB", 400 << 20),
        ("2GB", 2 * 10**9),
        (" 1.5 KiB ", 1536),
    ],
)
def test_a_size_has_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["400", "MiB", "1 mib", "1,000 B"])
def test_a_text_that_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number with a unit, such as '400 MiB'"):
        parse_bytes(text)


def test_a_size_that_no_machine_has_is_refused_in_a_short_line() -> None:
    with pytest.raises(ValueError, match="is too large a size") as refused:
        parse_bytes("9" * 400 + " TiB")
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (400 << 20, "400 MiB"),
        ((1 << 20) + 1, "1048577 B"),
        (1536, "1536 B"),
        (100 * 10**9, "100 GB"),
        (1024 * 10**3, "1000 KiB"),
    ],
)
def test_a_size_is_written_in_the_unit_with_the_shortest_exact_number(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert parse_bytes(text) == size


@pytest.mark.parametrize(("count", "text"), [(0, "0 cells"), (1, "1 cell"), (2, "2 cells")])
def test_a_count_agrees_with_its_noun(count: int, text: str) -> None:
    assert number_of(count, "cell") == text
