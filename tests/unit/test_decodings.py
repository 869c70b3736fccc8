"""Codecs with a decoder and a scale: what a record keeps of them, and which pairs are refused."""

import pytest

from storebench.codecs import decoding_of

Pairs = tuple[tuple[str, str], ...]


@pytest.mark.parametrize(
    ("codec", "given", "kept", "name"),
    [
        ("png", (), (), "png"),
        ("png", (("decoder", "pillow"),), (), "png"),
        ("original", (("scale", "full"),), (), "original"),
        ("original", (("scale", "dct"),), (("scale", "dct"),), "original?scale=dct"),
        ("jpeg", (("decoder", "opencv"),), (("decoder", "opencv"),), "jpeg:opencv"),
        (
            "original",
            (("scale", "dct"), ("decoder", "opencv")),
            (("decoder", "opencv"), ("scale", "dct")),
            "original:opencv?scale=dct",
        ),
    ],
)
def test_only_what_differs_from_the_default_is_kept(codec: str, given: Pairs, kept: Pairs, name: str) -> None:
    decoding = decoding_of(codec, given)
    assert (decoding.options, str(decoding)) == (kept, name)
    assert decoding_of(codec, decoding.options) == decoding
