"""Headers of image files: kind and size without decoding, and no bytes that crash, mislead or keep the parser busy."""

import io
import time

import pytest
from PIL import Image as PilImage

from storebench.datasets.images import check_file, read_header, suffix_of
from storebench.errors import CorruptDataError
from tests.support.photo_folders import KINDS, photo, photo_file

SIZE = (61, 47)


def with_exif(size: tuple[int, int]) -> bytes:
    """Return a JPEG whose EXIF data hold a thumbnail, which is a JPEG of another size with its own end marker."""
    exif = PilImage.Exif()
    exif[0x010E] = "a photograph"
    buffer = io.BytesIO()
    thumbnail = photo_file(1, (16, 12))
    photo(0, size).save(
        buffer, "JPEG", exif=exif.tobytes() + thumbnail, progressive=True, comment=b"\xff\xd9"
    )
    return buffer.getvalue()


JPEG, PNG = with_exif(SIZE), photo_file(2, SIZE, "PNG")


@pytest.mark.parametrize(("kind", "mode", "suffix"), KINDS)
def test_kind_and_size_are_those_that_pillow_finds(kind: str, mode: str, suffix: str) -> None:
    content = photo_file(3, SIZE, kind, mode)
    header = check_file(content)
    assert (header.kind, header.width, header.height) == (kind, *SIZE)
    assert suffix_of(content) == suffix.lower().replace(".jpeg", ".jpg")


@pytest.mark.parametrize("content", [JPEG, PNG], ids=["jpeg", "png"])
def test_every_truncated_file_is_refused(content: bytes) -> None:
    for length in range(len(content) - 8):
        with pytest.raises(CorruptDataError):
            check_file(content[:length])
    assert (check_file(content).width, check_file(content).height) == SIZE


@pytest.mark.parametrize(
    "filler", [b"\xff" * 3_000_000, b"\xff\xe1\x00\x02" * 500_000], ids=["fill", "empty"]
)
def test_a_header_that_never_ends_is_given_up(filler: bytes) -> None:
    start = time.process_time()
    with pytest.raises(CorruptDataError, match="damaged in its header"):
        read_header(b"\xff\xd8" + filler)
    assert time.process_time() - start < 1


def test_other_files_are_no_images() -> None:
    for content in (b"", b"no image", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(CorruptDataError):
            check_file(content)
    assert suffix_of(b"no image") == ".img"
