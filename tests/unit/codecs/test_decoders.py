"""Decoders of choice: missing ones are named, and those that are installed give nearly the same pixels."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from storebench.codecs import get_codec
from storebench.codecs.decoders import DECODERS
from storebench.errors import CorruptDataError
from storebench.formats import parse_backend
from tests.support.photo_folders import KINDS, photo, photo_file


def largest_difference(first: np.ndarray, second: np.ndarray) -> int:
    return int(np.abs(first.astype(np.int16) - second.astype(np.int16)).max())


LIBRARIES = {"simplejpeg": "simplejpeg", "opencv": "cv2"}
OTHERS = tuple(LIBRARIES)
TASKS = Path("/proc/self/task")


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest) -> str:
    """Return the name of a decoder whose library is installed."""
    pytest.importorskip(LIBRARIES[request.param], exc_type=ImportError)
    return str(request.param)


def test_a_library_has_decoded_before_its_first_sample(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the library itself from the disk would count as a read of the store."""
    made, array = [], DECODERS[other].array  # type: ignore[attr-defined]

    def noted(self: object, *arguments: object) -> object:
        made.append(array(self, *arguments))
        return made[-1]

    monkeypatch.setattr(DECODERS[other], "array", noted)
    DECODERS[other]()
    assert [pixels.shape for pixels in made] == [(16, 16, 3)]


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_another_decoder_are_near_those_of_pillow(other: str, channels: int) -> None:
    image = np.asarray(photo(1, (90, 70))).copy()
    image = image[:, :, :1] if channels == 1 else image
    payload = get_codec("jpeg").encode(image)
    first, second = np.empty_like(image), np.empty_like(image)
    get_codec("jpeg").decode_into(payload, first)
    get_codec(f"jpeg:{other}").decode_into(payload, second)
    assert largest_difference(first, second) <= 4


@pytest.mark.parametrize(("kind", "mode", "suffix"), KINDS)
def test_every_kind_of_file_is_decoded_whatever_the_decoder(
    other: str, kind: str, mode: str, suffix: str
) -> None:
    content = photo_file(2, (300, 200), kind, mode)
    first, second = (np.empty((64, 64, 3), np.uint8) for _ in range(2))
    get_codec("original").decode_into(content, first)
    get_codec(f"original:{other}").decode_into(content, second)
    assert largest_difference(first, second) <= 4
    get_codec(f"original:{other}?scale=dct").decode_into(content, second)
    assert np.abs(first.astype(int) - second).mean() < 6


def test_another_decoder_refuses_damaged_images(other: str) -> None:
    content = photo_file(2, (90, 70))
    out = np.empty((70, 90, 3), np.uint8)
    for damaged in (content[:100], content[: len(content) // 2], b"", b"no image"):
        with pytest.raises(CorruptDataError):
            get_codec(f"jpeg:{other}").decode_into(damaged, out)
    with pytest.raises(CorruptDataError, match="not"):
        get_codec(f"jpeg:{other}").decode_into(content, out[:-1])


def test_opencv_decodes_png_to_the_very_pixels() -> None:
    if importlib.util.find_spec("cv2") is None:
        pytest.skip("OpenCV is not installed")
    image = np.asarray(photo(3, (50, 40))).copy()
    out = np.empty_like(image)
    get_codec("png:opencv").decode_into(get_codec("png").encode(image), out)
    np.testing.assert_array_equal(out, image)


def test_opencv_has_no_threads_beside_those_that_a_cell_gives() -> None:
    cv2 = pytest.importorskip("cv2", exc_type=ImportError)
    cv2.setNumThreads(4)
    content, before = photo_file(2, (900, 700)), len(list(TASKS.iterdir()))
    DECODERS["opencv"]().pixels(content, "JPEG", "RGB")
    assert cv2.getNumThreads() == 1
    assert len(list(TASKS.iterdir())) == before


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("jpeg:{}", "jpeg:{}"),
        ("lmdb+jpeg:{}:direct", "lmdb+jpeg:{}:direct"),
        ("original:{}:threads?scale=dct", "original:{}:threads?scale=dct"),
    ],
)
def test_the_decoder_is_a_part_of_the_backends_name(other: str, text: str, name: str) -> None:
    backend = parse_backend(text.format(other))
    assert backend.name == name.format(other)
    assert ("decoder", other) in backend.codec_options


def test_what_pillow_accepts_ends_no_run_whatever_the_decoder(other: str) -> None:
    content = photo_file(2, (90, 70))
    damaged = content[: len(content) // 2] + b"\xff\xd9"
    first, second = (np.empty((70, 90, 3), np.uint8) for _ in range(2))
    for codec in ("jpeg", "original"):
        get_codec(codec).decode_into(damaged, first)
        get_codec(f"{codec}:{other}").decode_into(damaged, second)
        assert largest_difference(first[:20], second[:20]) <= 4, "the part that is whole"
