"""Folders of small photographs of different kinds and sizes, as people have them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image as PilImage

KINDS: tuple[tuple[str, str, str], ...] = (
    ("JPEG", "RGB", ".JPEG"),
    ("JPEG", "L", ".jpg"),
    ("PNG", "RGB", ".png"),
    ("JPEG", "CMYK", ".jpg"),
    ("PNG", "P", ".png"),
    ("WEBP", "RGB", ".webp"),
    ("GIF", "P", ".gif"),
    ("BMP", "RGB", ".bmp"),
)
"""Format, mode and extension, in turn."""


def photo(number: int, size: tuple[int, int], mode: str = "RGB") -> PilImage.Image:
    """Return a smooth image with a little noise, different for each number."""
    width, height = size
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    waves = [
        128 + 90 * np.sin((across * (channel + 1) + down * 2 + number * 17) / 23) for channel in range(3)
    ]
    noise = np.random.default_rng(number).integers(-6, 7, (height, width, 3))
    pixels = (np.stack(waves, axis=-1) + noise).clip(0, 255).astype(np.uint8)
    return PilImage.fromarray(pixels).convert(mode)


def photo_file(number: int, size: tuple[int, int], kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """Return a photograph as the bytes of an image file."""
    buffer = io.BytesIO()
    options = {"quality": 92} if kind == "JPEG" else {}
    photo(number, size, mode).save(buffer, kind, **options)
    return buffer.getvalue()


def size_of(number: int) -> tuple[int, int]:
    """Return width and height of a photograph: wide and high ones, some below 256 and some above."""
    return 300 + 37 * (number % 4) - 120 * (number % 2), 280 + 23 * (number % 3) - 90 * (number % 3 == 1)


def write_photos(root: Path, *, classes: int = 2, each: int = 6, only: int | None = None) -> Path:
    """Write class folders of photographs and return their folder."""
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for index in range(each):
            number = label * each + index
            kind, mode, suffix = KINDS[only if only is not None else number % len(KINDS)]
            content = photo_file(number, size_of(number), kind, mode)
            (folder / f"photo{index:03d}{suffix}").write_bytes(content)
    return root
