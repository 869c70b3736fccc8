"""Codecs with a decoder and a scale: what a record keeps of them, and which pairs are refused."""

import pytest

from storebench.codecs import decoding_of
from storebench.errors import UnknownNameError, UsageError

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


@pytest.mark.parametrize(
    ("codec", "given", "line"),
    [
        ("jpg", (), "codec"),
        ("png", (("quality", "9"),), "option of png"),
        ("png", (("decoder", "pilow"),), "decoder"),
    ],
)
def test_an_unknown_name_is_refused(codec: str, given: Pairs, line: str) -> None:
    with pytest.raises(UnknownNameError, match=line):
        decoding_of(codec, given)


@pytest.mark.parametrize(
    ("codec", "given", "line"),
    [
        ("raw", (("decoder", "opencv"),), "raw has no decoder to choose"),
        ("png", (("scale", "dct"),), "only images of any size are decoded at a reduced scale, not png"),
        ("original", (("scale", "half"),), "scale must be 'dct' or 'full', not 'half'"),
        ("png", (("decoder", "simplejpeg"),), "simplejpeg does not decode PNG"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(codec: str, given: Pairs, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        decoding_of(codec, given)
