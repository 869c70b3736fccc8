"""The tar index: every layout that tar writes, and nothing that climbs out or lies about its size."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.datasets.tars import members
from storebench.errors import CorruptDataError
from tests.support.dataset_files import damaged, tar
from tests.support.thinning import examples

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=150
).filter(lambda name: name not in (".", ".."))


def read(archive: bytes) -> dict[str, bytes]:
    stream = io.BytesIO(archive)
    return {m.name: archive[m.offset : m.offset + m.size] for m in members(stream, "it.tar")}


@given(
    files=st.dictionaries(NAMES, st.binary(max_size=1500), min_size=1, max_size=4),
    layout=st.sampled_from(FORMATS[1:]),
)
def test_every_member_is_found_with_its_name_and_bytes(files: dict[str, bytes], layout: int) -> None:
    assert read(tar(files, layout)) == files


@pytest.mark.parametrize("layout", FORMATS)
def test_folders_in_names_are_kept(layout: int) -> None:
    files = {"n01440764/" + "long" * 20 + "/n01440764_10026.JPEG": b"x" * 700, "b.txt": b""}
    assert read(tar(files, layout)) == files


def test_folders_and_links_are_passed_over() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("s", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert read(buffer.getvalue()) == {}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/passwd", "a/.."])
def test_names_that_climb_out_are_refused(name: str, layout: int) -> None:
    with pytest.raises(CorruptDataError, match=r"it\.tar: hostile: its member .* climbs out"):
        read(tar({"fine": b"1", name: b"2"}, layout))


@pytest.mark.parametrize("cut", [100, 512, 1024, 1200, 2048])
def test_an_archive_that_is_cut_anywhere_is_refused(cut: int) -> None:
    archive = tar({"a": b"1" * 600, "b": b"2"})
    with pytest.raises(CorruptDataError, match="trunc"):
        read(archive[:cut])


@examples(400)
@given(
    archive=st.one_of(*(damaged(tar({"a" * 120: b"1" * 600, "b": b"2"}, layout)) for layout in FORMATS[1:]))
)
def test_a_damaged_archive_is_refused_or_read_and_never_fails_otherwise(archive: bytes) -> None:
    try:
        found = list(members(io.BytesIO(archive), "it.tar"))
    except CorruptDataError:
        return
    assert all(0 < member.offset <= member.offset + member.size <= len(archive) for member in found)


def test_a_wrong_checksum_is_refused() -> None:
    archive = bytearray(tar({"a": b"1"}))
    archive[0] = ord("b")
    with pytest.raises(CorruptDataError, match="damaged: no valid header at byte 0"):
        read(bytes(archive))


def test_a_member_may_not_reach_beyond_the_archive_that_holds_it() -> None:
    inner = tar({"a": b"1" * 600, "b": b"2" * 600})
    outer = inner + b"\0" * 4096
    found = members(io.BytesIO(outer), "it.tar", 0, 512 + 1024 + 512 + 100)
    assert next(found).name == "a"
    with pytest.raises(CorruptDataError, match="a member of 600 bytes does not fit"):
        next(found)


def test_a_link_of_a_name_that_is_wanted_is_refused() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("1.JPEG")
        info.type, info.linkname = tarfile.LNKTYPE, "0.JPEG"
        archive.addfile(info)
    assert read(buffer.getvalue()) == {}
    with pytest.raises(CorruptDataError, match=r"its member '1\.JPEG' is a hard link"):
        list(members(buffer, "it.tar", suffixes=(".jpeg",)))


def test_more_members_than_an_archive_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar({str(number): b"" for number in range(5)})
    assert len(read(archive)) == 5
    monkeypatch.setattr("storebench.datasets.tars.MOST_MEMBERS", 4)
    with pytest.raises(CorruptDataError, match="more than 4 members"):
        read(archive)
