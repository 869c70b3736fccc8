"""Codecs: what goes in comes out, losses are owned up to, and no bytes crash a decoder."""

import contextlib
import io
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image as PilImage

from storebench.codecs import get_codec
from storebench.errors import CorruptDataError, MissingDependencyError
from storebench.formats import parse_backend
from tests.support.codecs import ALL, LOSSLESS, LOSSY, installed
from tests.support.thinning import examples

Image = npt.NDArray[np.uint8]

shapes = st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))
images = shapes.flatmap(lambda shape: npst.arrays(np.uint8, shape))
lossless = pytest.mark.parametrize("name", installed(LOSSLESS))
every = pytest.mark.parametrize("name", installed((*ALL, "original")))
fixed = pytest.mark.parametrize("name", installed(ALL))
quickly = examples(60)


def decoded(name: str, payload: bytes, shape: tuple[int, ...]) -> Image:
    out = np.full(shape, 99, dtype=np.uint8)
    get_codec(name).decode_into(payload, out)
    return out


@lossless
@quickly
@given(image=images)
def test_a_lossless_codec_gives_back_the_very_pixels(name: str, image: Image) -> None:
    assert np.array_equal(decoded(name, get_codec(name).encode(image), image.shape), image)


@pytest.mark.parametrize("name", installed(LOSSY))
def test_a_lossy_codec_is_near_a_smooth_image_and_smaller_at_a_lower_quality(name: str) -> None:
    ramp = np.add.outer(np.arange(64), np.arange(64))[:, :, None].repeat(3, axis=2).astype(np.uint8)
    payload = get_codec(name).encode(ramp)
    assert len(payload) < ramp.size / 4
    assert np.abs(decoded(name, payload, ramp.shape).astype(int) - ramp).max() <= 12
    noise = np.random.default_rng(0).integers(0, 256, ramp.shape, dtype=np.uint8)
    sizes = [len(get_codec(f"{name.partition(':')[0]}:{quality}").encode(noise)) for quality in (20, 60, 95)]
    assert sizes == sorted(set(sizes))


@every
def test_payloads_may_be_any_kind_of_buffer(name: str) -> None:
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    payload = get_codec(name).encode(image)
    expected = decoded(name, payload, image.shape)
    for buffer in (bytearray(payload), memoryview(payload)):
        out = np.empty_like(image)
        get_codec(name).decode_into(buffer, out)
        assert np.array_equal(out, expected)


@every
@examples(150)
@given(payload=st.binary(max_size=300), shape=shapes)
def test_bytes_that_are_no_payload_are_refused(name: str, payload: bytes, shape: tuple[int, ...]) -> None:
    if len(payload) == np.prod(shape):
        payload += b"!"
    with pytest.raises(CorruptDataError):
        decoded(name, payload, shape)


@every
@examples(150)
@given(data=st.data(), image=images)
def test_a_damaged_payload_is_refused_or_decodes_but_never_crashes(
    name: str, data: st.DataObject, image: Image
) -> None:
    payload = bytearray(get_codec(name).encode(image))
    for _ in range(data.draw(st.integers(1, 8))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    with contextlib.suppress(CorruptDataError):
        decoded(name, bytes(payload[:cut]), image.shape)


@fixed
def test_a_payload_of_another_shape_is_refused(name: str) -> None:
    payload = get_codec(name).encode(np.zeros((8, 9, 3), np.uint8))
    with pytest.raises(CorruptDataError):
        decoded(name, payload, (9, 9, 3))


@pytest.mark.parametrize(("name", "other"), [("png", "GIF"), ("jpeg", "PNG"), ("webp", "PNG")])
def test_a_file_of_another_kind_is_refused(name: str, other: str) -> None:
    buffer = io.BytesIO()
    PilImage.fromarray(np.zeros((8, 8), np.uint8)).save(buffer, other)
    with pytest.raises(CorruptDataError):
        decoded(name, buffer.getvalue(), (8, 8, 1))


def test_a_codec_or_decoder_without_its_library_is_refused_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for library, backend in (("imagecodecs", "lmdb+qoi"), ("simplejpeg", "lmdb+jpeg:simplejpeg")):
        monkeypatch.setitem(sys.modules, library, None)
        get_codec.cache_clear()
        with pytest.raises(MissingDependencyError, match=f"needs the library .*pip install {library}"):
            parse_backend(backend)
    get_codec.cache_clear()
