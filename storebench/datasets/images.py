"""Image files: their kinds, headers and sizes, and their pixels as RGB of one size."""

import contextlib
import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import IO

import numpy as np
from PIL import Image as PilImage
from PIL import ImageFile, UnidentifiedImageError

from storebench.arrays import ImageShape, ImageSize
from storebench.datasets.base import Image
from storebench.errors import CorruptDataError, DataNotFoundError

SIDE = 256  # default side of the images of folders and of ImageNet

EXTENSIONS = (
    *(".jpeg", ".jpg", ".jpe", ".jfif", ".jif", ".png", ".apng", ".bmp", ".dib", ".webp"),
    *(".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pbm", ".pnm"),
)

LFS_POINTER = b"version https://git-lfs"  # begins the file that Git leaves in place of a large one

MOST_FILE_BYTES = 1 << 30  # more than the largest image that Pillow accepts takes uncompressed

# Formats that are opened. JPEG includes MPO, for which Pillow has no opener of its own.
PILLOW_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")

# Errors that Pillow's decoders raise for damaged files.
DOES_NOT_DECODE = (
    *(OSError, EOFError, SyntaxError, struct.error, zlib.error, PilImage.DecompressionBombError),
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError),
)


def be_strict() -> None:
    """Make Pillow refuse images that are cut off, whatever another library has asked it for."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def reason_of(error: Exception) -> str:
    """Return the reason why Pillow does not decode a file, as a clause."""
    if isinstance(error, UnidentifiedImageError):  # its own message is about a Python object
        return f"damaged, or none of {', '.join(PILLOW_FORMATS)}"
    return str(error) or type(error).__name__


# The one rule for more than 8 bits per channel. Pixels that have no defined range in 8 bits are refused.
DEPTH_RULE = "16-bit pixels become 8-bit ones by their high byte"

LEAST_LEVEL = 16  # a 16-bit image whose brightest level in 8 bits is less would become nearly black
_PHOTOMETRIC = 262
_SAMPLE_FORMAT, _UNSIGNED = 339, {1, 4}  # TIFF's tag for the kind of numbers, and unsigned integers


def open_image(source: bytes | IO[bytes], formats: tuple[str, ...] = PILLOW_FORMATS) -> PilImage.Image:
    """Open an image file by Pillow, whose warnings about metadata neither reach the user nor become errors."""
    # Kept in first place; threads and workers share no filters.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    image = PilImage.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats)
    if image.width * image.height > MOST_PIXELS:
        raise _bomb(image.width, image.height)
    return image


def is_deep(image: PilImage.Image) -> bool:
    """Whether an image that was opened, and not loaded yet, has 16 bits per channel."""
    kinds = set(getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT, _UNSIGNED))
    wide = image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM"))
    if wide or kinds - _UNSIGNED:
        kind = "floating-point" if image.mode == "F" or 3 in kinds else "signed or 32-bit"
        raise CorruptDataError(
            f"{kind} pixels, which have no defined range in 8 bits", hint="Scale them to 8 bits first."
        )
    how = [tile[3] for tile in getattr(image, "tile", ())]
    raw_modes = [str(args[0] if isinstance(args, tuple) and args else args) for args in how]
    deep = image.mode.startswith("I") or any("16" in name for name in raw_modes)
    if deep and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC, 1) == 0:
        raise CorruptDataError("16-bit pixels in which 0 is white", hint="Scale them to 8 bits first.")
    return deep


def load_rgb(image: PilImage.Image) -> PilImage.Image:
    """Decode an image that was opened, and return it as RGB; see `DEPTH_RULE`."""
    deep = is_deep(image)
    image.load()
    rgb = to_rgb(image)
    if deep and np.asarray(rgb).max(initial=0) < LEAST_LEVEL:
        raise CorruptDataError(
            "16-bit pixels that use 12 bits or fewer, so they would become nearly black",
            hint="Scale them to 8 bits, or to all 16, first.",
        )
    return rgb


def to_rgb(image: PilImage.Image) -> PilImage.Image:
    """Return an image as RGB: grey is repeated, 16 bits become 8, transparency is dropped."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        return PilImage.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA"):
        # Through RGBA, because Pillow warns if a palette with transparency loses it directly.
        image = image.convert("RGBA")
    return image.convert("RGB")


def resized(image: PilImage.Image, size: tuple[int, int]) -> PilImage.Image:
    """Return an image at another size (height, width), as OpenCV's INTER_LINEAR makes it."""
    width, height = image.size
    high, wide = size
    if (width, height) == (wide, high):
        return image
    matrix = (width / wide, 0, 0, 0, height / high, 0)
    return image.transform(
        (wide, high), PilImage.Transform.AFFINE, matrix, resample=PilImage.Resampling.BILINEAR
    )


BytesLike = bytes | bytearray | memoryview
MOST_PIXELS = 89_478_485  # about 9,459 x 9,459; Pillow takes a larger image for a decompression bomb

JPEG, PNG, WEBP = "JPEG", "PNG", "WEBP"

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of JPEG that begin a frame header

_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers of JPEG without a length
REPLACE_HINT = "Replace the file."


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What the first bytes of an image file say."""

    kind: str  # the format, as Pillow calls it: "JPEG", "PNG", "WEBP",
    width: int
    height: int  # in pixels
    components: int = 0  # colour components of a JPEG: 1 for grey, 3 for colour, 4 for CMYK
    end: int = 0  # position behind the part of the file that was looked at
    deep: bool = False  # whether its channels have 16 bits

    def __post_init__(self) -> None:
        if not self.width * self.height:
            raise _broken(f"a {self.kind} of {self.width} x {self.height} pixels")
        if self.width * self.height > MOST_PIXELS:
            raise _bomb(self.width, self.height)


def read_header(content: BytesLike) -> Header:
    """Return kind and size of an image file. JPEG and PNG are parsed here, every other kind by Pillow."""
    if content[:2] == b"\xff\xd8":
        return _jpeg(content)
    if content[:8] != _PNG_SIGNATURE:
        return _other(content)
    if len(content) < 24 or content[12:16] != b"IHDR":
        raise _broken("a PNG that is cut short or damaged in its header")
    width, height = _number(content[16:20]), _number(content[20:24])
    return Header(kind=PNG, width=width, height=height, end=24, deep=content[24:25] == b"\x10")


def check_file(content: bytes) -> Header:
    """Return the header of a whole image file; nothing is decoded."""
    header = read_header(content)
    marker = {JPEG: b"\xff\xd9", PNG: b"IEND"}.get(header.kind)
    if marker is not None and content.rfind(marker, header.end) < 0:
        raise _broken(f"a {header.kind} that is cut short: it has no end marker")
    return header


def _jpeg(content: BytesLike) -> Header:
    at = 2
    for _ in range(4096):  # of more markers and stray bytes, a file was made to be slow
        if len(content) < at + 4:
            break
        marker = content[at + 1]
        if content[at] != 0xFF or marker in (0x00, 0xFF):  # bytes between segments, which decoders skip, too
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in _FRAMES:
            if len(content) < at + 10:
                break
            height, width = _number(content[at + 5 : at + 7]), _number(content[at + 7 : at + 9])
            return Header(kind=JPEG, width=width, height=height, components=content[at + 9], end=at + 10)
        elif marker in (0xD9, 0xDA):  # the pixels, or the end
            break
        else:
            at += 2 + max(2, _number(content[at + 2 : at + 4]))
    raise _broken("a JPEG that is cut short or damaged in its header")


def _other(content: BytesLike) -> Header:
    if bytes(content[:30]).startswith(LFS_POINTER):
        raise CorruptDataError("a pointer of Git LFS, not the file", hint="Run: git lfs pull.")
    try:
        with open_image(bytes(content)) as image:
            width, height = image.size
            return Header(kind=image.format or "image", width=width, height=height, deep=is_deep(image))
    except CorruptDataError as error:
        raise _broken(error.what) from error
    except DOES_NOT_DECODE as error:
        raise _broken(f"does not decode ({reason_of(error)})") from error


def _number(raw: BytesLike) -> int:
    return int.from_bytes(raw, "big")


def _broken(what: str) -> CorruptDataError:
    return CorruptDataError(what, hint=REPLACE_HINT)


def _bomb(width: int, height: int) -> CorruptDataError:
    return _broken(
        f"an image of {width:,} x {height:,} pixels, more than the {MOST_PIXELS:,} that are decoded"
    )


# Extensions of image files that are stored as they are; the first is for a kind that is none of the others.
SUFFIXES = (".img", ".jpg", ".png", ".gif", ".bmp", ".webp", ".tif", ".ppm")


def suffix_of(content: bytes) -> str:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for start, suffix in _STARTS if content.startswith(start)), SUFFIXES[0])


_STARTS = (
    (b"\xff\xd8", ".jpg"),
    (_PNG_SIGNATURE, ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
    *((b"P%d" % number, ".ppm") for number in range(1, 7)),
)


def decode_rgb(content: bytes, where: str, size: tuple[int, int] = (SIDE, SIDE)) -> Image:
    """Decode an image file and resize it without keeping the aspect ratio, as Caffe's convert_imageset does."""
    return np.array(resized(_picture(content, where), size))


def checked(content: bytes, where: str) -> bytes:
    """Return the bytes of an image file that `decode_rgb` decodes; it is decoded to find out."""
    try:
        _picture(content, where, reduced=True)
    except CorruptDataError:
        _picture(content, where)
    return content


def _picture(content: bytes, where: str, *, reduced: bool = False) -> PilImage.Image:
    """Return all pixels of an image file as RGB, or the fewest that still take all of its bytes."""
    be_strict()
    try:
        read_header(content)  # its reasons are better than Pillow's
        try:
            with open_image(content) as image:
                if reduced:
                    # In its own mode: grey alone would hide colours whose sampling does not decode.
                    image.draft(None, (1, 1))
                return load_rgb(image)
        except DOES_NOT_DECODE as error:
            check_file(content)
            raise _broken(f"does not decode ({reason_of(error)})") from error
    except CorruptDataError as error:
        raise CorruptDataError(error.what, where=where, hint=error.hint) from error


HEADER_BYTES = 256 << 10  # read of a file for its size; if they do not hold it, all of the file is read
PROBED = 64  # most files whose size is looked at to describe a dataset
LARGE_CHANGE = 4.0  # a resize by more than this factor in pixels is said
ReadStart = Callable[[int, int], bytes]  # (index, number of bytes) -> the first bytes of the file of a sample


def square(side: int | None) -> ImageShape:
    """Return the shape of square RGB images; None for the default side."""
    return (side or SIDE, side or SIDE, 3)


def common_small_shape(read: ReadStart, count: int) -> ImageShape | None:
    """Return the shape of all images if they have one size below the default on both sides; else None."""
    sizes = ((header.width, header.height) for header in _headers(read, range(count)))
    first = next(sizes, None)
    if first is None or max(first) >= SIDE or any(size != first for size in sizes):
        return None
    width, height = first
    return (height, width, 3)


def probed_headers(read: ReadStart, count: int) -> tuple[Header, ...]:
    """Return the headers of at most 64 files at random; damaged ones are left out."""
    return tuple(_headers(read, sorted(Random(count).sample(range(count), min(count, PROBED)))))


def sizes_of(headers: Iterable[Header]) -> tuple[ImageSize, ...]:
    return tuple((header.width, header.height) for header in headers)


def change_note(sizes: Sequence[ImageSize], shape: ImageShape) -> str:
    """Return one clause if images are resized by more than a factor of 4 in pixels, by their median; "" otherwise."""
    if not sizes:
        return ""
    width, height = median(size[0] for size in sizes), median(size[1] for size in sizes)
    factor = shape[0] * shape[1] / (width * height)
    if 1 / LARGE_CHANGE <= factor <= LARGE_CHANGE:
        return ""
    times = f"{_figure(factor)} times" if factor > 1 else f"1/{_figure(1 / factor)} of"
    return f"images of {width:g} x {height:g} (median) become {shape[1]} x {shape[0]}, {times} the pixels"


def _figure(factor: float) -> str:
    """Return a factor above 4 with three digits, or as a whole number."""
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}"


def served_note(shape: tuple[int, int], side: int | None) -> str:
    """Return the clause of `change_note` for image files that are resized when they are read, or ""."""
    if side is None or not 0 < max(shape) < SIDE:
        return ""
    return change_note(((shape[1], shape[0]),), square(side))


def resize_clause(note: str) -> str:
    """Return the clause of `change_note` in a provenance's note; "" if it has none."""
    return next(
        (clause for clause in note.split("; ") if clause.startswith("images of ") and " become " in clause),
        "",
    )


def _headers(read: ReadStart, indices: Iterable[int]) -> Iterator[Header]:
    """Yield the headers of files, but not of damaged ones."""
    for index in indices:
        # The directory of a TIFF may be at its end, and a JPEG may have long segments before its size.
        for most in (HEADER_BYTES, MOST_FILE_BYTES):
            with contextlib.suppress(CorruptDataError, DataNotFoundError, OSError):
                yield read_header(read(index, most))
                break
