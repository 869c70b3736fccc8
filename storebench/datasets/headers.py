"""Kind and size of an image file, from its header alone: nothing is decoded, so a decompression bomb costs nothing."""

from dataclasses import dataclass

from PIL import Image as PilImage

from storebench.datasets.images import DOES_NOT_DECODE, is_deep, open_image, reason_of
from storebench.errors import CorruptDataError

BytesLike = bytes | bytearray | memoryview

MOST_PIXELS = 89_478_485
"""Most pixels of an image, about 9,459 x 9,459: Pillow takes a larger one for a decompression bomb."""

JPEG, PNG = "JPEG", "PNG"

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of JPEG that begin a frame header; the three others in this range begin tables."""

_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers of JPEG without a length."""

_ENDS = (0xD9, 0xDA)

_MOST_MARKERS = 4096
"""Most markers and stray bytes before the size; more are those of a file that was made to be slow."""

REPLACE_HINT = "Replace the file, or leave out all that cannot be read with --skip-unreadable."


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What the first bytes of an image file say."""

    kind: str  # the format, as Pillow calls it: "JPEG", "PNG", "WEBP",
    width: int
    height: int  # in pixels
    components: int = 0  # colour components of a JPEG: 1 for grey, 3 for colour, 4 for CMYK
    end: int = 0  # position behind the part of the file that was looked at
    deep: bool = False  # whether its channels have 16 bits

    @property
    def pixels(self) -> int:
        """Pixels of the decoded image."""
        return self.width * self.height


def read_header(content: BytesLike) -> Header:
    """Return kind and size of an image file. JPEG and PNG are parsed here, every other kind by Pillow."""
    header = _parsed(content) or _other(content)
    _refuse_size(header)
    return header


def refuse_bomb(content: BytesLike) -> None:
    """Refuse a JPEG or PNG with more than `MOST_PIXELS` pixels before a library opens it."""
    header = _parsed(content)
    if header is not None:
        _refuse_size(header)


def _parsed(content: BytesLike) -> Header | None:
    if content[:2] == b"\xff\xd8":
        return _jpeg(content)
    return _png(content) if content[:8] == _PNG_SIGNATURE else None


def _refuse_size(header: Header) -> None:
    if not header.pixels:
        raise _broken(f"a {header.kind} of {header.width} x {header.height} pixels")
    if header.pixels > MOST_PIXELS:
        raise _bomb(f"{header.width:,} x {header.height:,}")


def check_file(content: bytes) -> Header:
    """Return the header of a whole image file; nothing is decoded."""
    header = read_header(content)
    marker = {JPEG: b"\xff\xd9", PNG: b"IEND"}.get(header.kind)
    if marker is not None and content.rfind(marker, header.end) < 0:
        raise _broken(f"a {header.kind} that is cut short: it has no end marker")
    return header


def _jpeg(content: BytesLike) -> Header:
    at = 2
    for _ in range(_MOST_MARKERS):
        if len(content) < at + 4:
            raise _broken("a JPEG that is cut short in its header")
        marker = content[at + 1]
        if content[at] != 0xFF or marker in (0x00, 0xFF):  # bytes between segments, which decoders skip, too
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in _FRAMES:
            if len(content) < at + 10:
                raise _broken("a JPEG that is cut short in its header")
            height, width = _number(content[at + 5 : at + 7]), _number(content[at + 7 : at + 9])
            return Header(kind=JPEG, width=width, height=height, components=content[at + 9], end=at + 10)
        elif marker in _ENDS:
            raise _broken("a damaged JPEG: its data begins before its size")
        else:
            at += 2 + max(2, _number(content[at + 2 : at + 4]))
    raise _broken("a damaged JPEG: it has too many markers before its size")


def _png(content: BytesLike) -> Header:
    if len(content) < 24 or content[12:16] != b"IHDR":
        raise _broken("a PNG that is cut short or damaged in its header")
    return Header(
        kind=PNG,
        width=_number(content[16:20]),
        height=_number(content[20:24]),
        end=24,
        deep=content[24:25] == b"\x10",
    )


def _other(content: BytesLike) -> Header:
    try:
        with open_image(bytes(content)) as image:
            width, height = image.size
            return Header(kind=image.format or "image", width=width, height=height, deep=is_deep(image))
    except PilImage.DecompressionBombError as error:
        raise _bomb("too many") from error
    except CorruptDataError as error:
        raise _broken(error.what) from error
    except DOES_NOT_DECODE as error:
        raise _broken(f"does not decode ({reason_of(error)})") from error


def _number(raw: BytesLike) -> int:
    return int.from_bytes(raw, "big")


def _broken(what: str) -> CorruptDataError:
    return CorruptDataError(what, hint=REPLACE_HINT)


def _bomb(size: str) -> CorruptDataError:
    return CorruptDataError(
        f"an image of {size} pixels, more than the {MOST_PIXELS:,} that are decoded", hint=REPLACE_HINT
    )


SUFFIXES = (".img", ".jpg", ".png", ".gif", ".bmp", ".webp", ".tif", ".ppm")
"""File extensions of image files that are stored as they are; the first is for a kind that is none of the others."""


def suffix_of(content: bytes) -> str:
    """Return the file extension for an image file's bytes, one of `SUFFIXES`."""
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
