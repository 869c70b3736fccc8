"""Reading files of others' making: regular ones, as many bytes as allowed, and names that are any bytes."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storebench.errors import CorruptDataError
from storebench.plain_text import name_of_text, printable, text_of_name
from storebench.system.reading import open_regular, read_small_file


def test_a_file_is_read_whole_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size in (0, 1, 3 << 20):
        path.write_bytes(os.urandom(size))
        assert read_small_file(path, most_bytes=size) == path.read_bytes()
    with pytest.raises(CorruptDataError, match="larger than 3,145,727 bytes"):
        read_small_file(path, most_bytes=(3 << 20) - 1)


def test_a_link_is_read_and_a_folder_is_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    assert read_small_file(tmp_path / "link") == b"1"
    with pytest.raises(FileNotFoundError):
        read_small_file(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        read_small_file(tmp_path)


def test_a_device_is_refused_without_being_opened(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="not a regular file"):
        open_regular(Path("/dev/tty"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CorruptDataError, match="not a regular file"):
        open_regular(tmp_path / "fifo")


@example(rb"a\xe9")
@example(rb"a\x5cxe9")
@example(b"a\\\xe9")
@given(
    st.binary(max_size=40)
    | st.lists(st.sampled_from([b"\\", b"x", b"5c", b"e9", b"\xe9", b"\xc3\xa9", b"/"])).map(b"".join)
)
def test_every_name_becomes_text_and_the_same_name_again(raw: bytes) -> None:
    name = os.fsdecode(raw)
    text = text_of_name(name)
    text.encode("utf-8")
    assert os.fsencode(name_of_text(text)) == raw


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\")))
def test_names_that_are_utf8_stay_as_they_are(name: str) -> None:
    assert text_of_name(name) == name_of_text(name) == printable(name) == name
