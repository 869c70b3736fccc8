"""The files of a tar archive: every layout that tar writes; cut and damaged archives are refused."""

import io
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import given

from storebench.datasets.sources import members
from storebench.errors import CorruptDataError
from tests.support.dataset_files import damaged, tar
from tests.support.thinning import examples

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def read(archive: bytes, end: int | None = None, suffixes: tuple[str, ...] = ()) -> dict[str, bytes]:
    found = members(io.BytesIO(archive), "it.tar", 0, end, suffixes=suffixes)
    return {m.name: archive[m.offset : m.offset + m.size] for m in found}


def links(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in zip(names, (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE), strict=False):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize("layout", FORMATS)
def test_every_file_is_found_with_its_name_and_bytes(layout: int) -> None:
    files = {"n01440764/" + "long" * 20 + "/n01440764_10026.JPEG": b"x" * 700, "b.txt": b"", "ü": b"1"}
    assert read(tar(files, layout)) == files
    assert read(tar(files, layout) + links("s", "h", "d")) == files
    assert read(links("s", "h", "d")) == {}


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "not a tar archive"),
    "cut header": (lambda raw: raw[:100], "not a tar archive"),
    "cut data": (lambda raw: raw[:1024], "does not fit"),
    "no end": (lambda raw: raw[:2560], "truncated"),
    "wrong second checksum": (
        lambda raw: raw[:1536] + b"c" + raw[1537:],
        "damaged: no valid header at byte 1,536",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_archive_that_is_cut_or_damaged_is_refused(name: str) -> None:
    damage, says = BROKEN[name]
    with pytest.raises(CorruptDataError, match=says):
        read(damage(tar({"a": b"1" * 600, "b": b"2"}, tarfile.USTAR_FORMAT)))


def test_a_file_may_not_reach_beyond_the_archive_that_holds_it() -> None:
    with pytest.raises(CorruptDataError, match="a member of 600 bytes does not fit"):
        read(tar({"a": b"1" * 600, "b": b"2" * 600}) + bytes(4096), end=512 + 1024 + 512 + 100)


@examples(200)
@given(archive=damaged(tar({"a" * 120: b"1" * 600, "b": b"2"}, tarfile.GNU_FORMAT)))
def test_a_damaged_archive_is_refused_or_read(archive: bytes) -> None:
    try:
        found = list(members(io.BytesIO(archive), "it.tar"))
    except CorruptDataError:
        return
    assert all(0 < member.offset <= member.offset + member.size <= len(archive) for member in found)
