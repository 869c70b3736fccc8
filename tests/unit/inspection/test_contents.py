"""Contents of single values, told by their bytes: protocol buffers and pickles as they are, and near misses."""

import pickle

import numpy as np
import pytest

from storebench.stores.inspection.values import content_of, contents_of

JPEG = b"\xff\xd8\xff\xe0 and more"
PNG = b"\x89PNG\r\n\x1a\n and more"

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
CHANNELS, HEIGHT, WIDTH, DATA, LABEL, FLOATS, ENCODED = range(1, 8)


def varint(number: int) -> bytes:
    """Return a number as protocol buffers write it: seven bits per byte, the lowest first."""
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(value)


def text(field: int, content: bytes) -> bytes:
    return varint(field << 3 | BYTES) + varint(len(content)) + content


def datum(channels: int, height: int, width: int, data: bytes) -> bytes:
    """Return a message of Caffe's type Datum with raw pixels."""
    sides = number(CHANNELS, channels) + number(HEIGHT, height) + number(WIDTH, width)
    return sides + text(DATA, data) + number(LABEL, 300)


def test_a_datum_of_raw_pixels_has_as_many_bytes_as_its_sides_say() -> None:
    assert content_of(datum(3, 4, 20, bytes(240))) == "Caffe Datum of raw pixels, 3x4x20"
    assert content_of(datum(3, 4, 20, bytes(239))) == ""
    assert content_of(datum(0, 4, 20, b"")) == ""


def test_a_datum_of_an_encoded_image_names_it() -> None:
    assert content_of(text(DATA, PNG) + number(ENCODED, 1)) == "Caffe Datum of PNG"
    assert content_of(text(DATA, b"unknown") + number(ENCODED, 1)) == "Caffe Datum of encoded bytes"
    assert content_of(text(DATA, PNG) + number(ENCODED, 0)) == ""


@pytest.mark.parametrize(
    "floats",
    [text(FLOATS, bytes(8)), varint(FLOATS << 3 | FIXED32) + bytes(4)],
    ids=["packed", "one by one"],
)
def test_a_datum_of_floats_is_named(floats: bytes) -> None:
    assert content_of(number(CHANNELS, 1) + floats) == "Caffe Datum of floats"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        number(CHANNELS, 1),
        number(9, 1),
        text(CHANNELS, b"one"),
        number(DATA, 5),
        datum(1, 2, 2, bytes(4))[:-1],
        text(DATA, bytes(4))[:-1],
        varint(CHANNELS << 3 | 3),
        varint(DATA << 3 | BYTES) + b"\xff" * 11,
        varint(CHANNELS << 3 | FIXED64) + bytes(8),
        datum(1, 2, 2, bytes(4)) + number(9, 1),
        number(ENCODED, 1) + text(DATA, PNG)[:-1],
    ],
    ids=[
        "empty", "no data", "unknown field", "bytes for a number", "number for bytes", "cut number",
        "cut data", "a group", "endless number", "wrong width",
        "a field too many", "cut image",
    ],
)  # fmt: skip
def test_what_only_resembles_a_datum_is_none(value: bytes) -> None:
    assert content_of(value) == ""


def test_pickles_of_every_protocol_since_the_second_are_named() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert content_of(pickle.dumps({"label": 3}, protocol)) == f"pickled, protocol {protocol}"
        array = content_of(pickle.dumps(np.zeros(5, np.uint8), protocol))
        assert array == f"pickled numpy array, protocol {protocol}"
    assert content_of(pickle.dumps({"label": 3}, 1)) == ""


def test_the_longest_bytes_in_a_pickle_name_it() -> None:
    assert content_of(pickle.dumps((b"a note", JPEG, 5), 4)) == "pickled JPEG, protocol 4"
    assert content_of(pickle.dumps((PNG, JPEG * 9, 5), 4)) == "pickled JPEG, protocol 4"


def test_a_pickle_that_is_cut_or_broken_is_none() -> None:
    whole = pickle.dumps({"label": 3}, 4)
    assert content_of(whole[:-1]) == ""
    assert content_of(whole[:2] + b"\xff\xff\xff.") == ""
    assert content_of(b"\x80\x09" + whole[2:]) == ""


def test_kinds_are_listed_by_their_number() -> None:
    assert contents_of([PNG, JPEG, JPEG, b"?", JPEG, PNG]) == "JPEG or PNG or other bytes"
    assert contents_of([b"?", b"??"]) == ""
    assert contents_of([]) == ""


def test_three_kinds_are_named_at_the_most() -> None:
    rest = b"GIF8 and more"
    assert contents_of([JPEG] * 4 + [PNG] * 3 + [b"?"] * 2 + [rest]) == "JPEG or PNG or other bytes"
