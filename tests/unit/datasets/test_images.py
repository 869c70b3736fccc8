"""Decoding to 256 x 256 RGB: every colour mode, OpenCV's bilinear filter, and named failures."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from storebench.datasets.images import checked, decode_rgb
from storebench.errors import CorruptDataError
from tests.support.dataset_files import image_file
from tests.support.photo_folders import KINDS, photo, photo_file


def decode(raw: bytes) -> np.ndarray:
    return decode_rgb(raw, "photo.JPEG")


def flat(mode: str, colour: Any, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    PilImage.new(mode, (50, 20), colour).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("raw", "colour"),
    [
        (flat("RGB", (200, 100, 50)), (200, 100, 50)),
        (flat("L", 90), (90, 90, 90)),
        (flat("L", 90, "JPEG"), (90, 90, 90)),
        (flat("1", 1), (255, 255, 255)),
        (flat("LA", (90, 0)), (90, 90, 90)),
        (flat("RGBA", (200, 100, 50, 0)), (200, 100, 50)),
        (flat("I;16", 90 * 256 + 17), (90, 90, 90)),
        (flat("CMYK", (55, 155, 205, 0), "JPEG"), (200, 100, 50)),
        (flat("P", 0), (0, 0, 0)),
    ],
    ids=["rgb", "grey", "grey-jpeg", "bits", "grey-alpha", "alpha", "16-bit", "cmyk", "palette"],
)
def test_every_mode_becomes_rgb_of_the_same_colour(raw: bytes, colour: tuple[int, int, int]) -> None:
    image = decode(raw)
    assert image.shape == (256, 256, 3)
    assert image.dtype == np.uint8
    assert np.abs(image.astype(int) - colour).max() <= 2


def opencv_linear(image: np.ndarray, side: int) -> np.ndarray:
    """Return INTER_LINEAR as OpenCV defines it: pixel centres, four neighbours, edges repeated."""

    def axis(extent: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place = (np.arange(side) + 0.5) * extent / side - 0.5
        low = np.floor(place).astype(int)
        return low.clip(0, extent - 1), (low + 1).clip(0, extent - 1), place - low

    top, bottom, down = axis(image.shape[0])
    left, right, across = axis(image.shape[1])
    image, across, down = image.astype(float), across[None, :, None], down[:, None, None]
    rows = image[top] * (1 - down) + image[bottom] * down
    return rows[:, left] * (1 - across) + rows[:, right] * across


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (100, 90), (256, 300), (3, 5)])
def test_resizing_is_what_convert_imageset_does(size: tuple[int, int]) -> None:
    raw = image_file(size=size, kind="PNG")
    original = np.asarray(PilImage.open(io.BytesIO(raw)))
    assert np.abs(decode(raw) - opencv_linear(original, 256)).max() <= 1.01


def test_a_photograph_of_several_pictures_gives_its_first() -> None:
    first, second = (PilImage.new("RGB", (256, 256), colour) for colour in ("red", "blue"))
    buffer = io.BytesIO()
    first.save(buffer, "MPO", save_all=True, append_images=[second], quality=95)
    assert decode(buffer.getvalue())[128, 128, 0] > 240


def refusal(decide: Callable[[bytes, str], object], content: bytes) -> str:
    """Return why a file is refused; "" if it is read."""
    try:
        decide(content, "photo")
    except CorruptDataError as error:
        return error.what
    return ""


@pytest.mark.parametrize(
    ("kind", "mode"), sorted({(kind, mode) for kind, mode, _ in KINDS} | {("progressive", "RGB")})
)
def test_a_file_is_readable_if_and_only_if_it_decodes(kind: str, mode: str) -> None:
    """Whether a file is readable is found out with fewer pixels than it has, and damage must show all the same."""
    if kind == "progressive":
        buffer = io.BytesIO()
        photo(1, (120, 90), mode).save(buffer, "JPEG", progressive=True)
        whole = buffer.getvalue()
    else:
        whole = photo_file(1, (120, 90), kind, mode)
    draw = np.random.default_rng(5)
    cut = [whole[:length] for length in draw.integers(1, len(whole), 30).tolist()]
    places = draw.integers(0, len(whole), 60).tolist()
    replaced = [whole[:at] + bytes(draw.integers(0, 256, 3, np.uint8)) + whole[at + 3 :] for at in places]
    contents = [whole, *cut, *replaced]
    told = [(refusal(checked, content), refusal(decode_rgb, content)) for content in contents]
    assert told[0] == ("", "")
    assert any(because for _, because in told)
    assert [found for found, _ in told] == [because for _, because in told]
