"""Files that are whole or absent, whatever ends their writer: no room, no permission, a kill."""

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from storebench.system.whole_files import open_message, write_all, write_message, write_whole

LargestFile = Callable[[int], AbstractContextManager[None]]

SIZES = (0, 4097, 99_999)
CONTENT = b"new" * 33_334


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too, by its name; a folder has no content."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in found}


@pytest.mark.parametrize("most", SIZES)
def test_a_file_without_room_leaves_nothing_or_the_old_one(
    most: int, tmp_path: Path, largest_file: LargestFile
) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        with largest_file(most), pytest.raises(OSError, match="File too large") as caught:
            write_whole(tmp_path / name, CONTENT)
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / name))
    assert contents(tmp_path) == {"old": b"old"}


@pytest.mark.parametrize("most", SIZES)
def test_a_folder_without_room_stays_as_it_was(most: int, tmp_path: Path, largest_file: LargestFile) -> None:
    for name in ("small", "large", "somebody else's"):
        (tmp_path / name).write_text("old")
    before = contents(tmp_path)
    with largest_file(most), pytest.raises(OSError, match="File too large"):
        write_all(tmp_path, {"small": b"", "unknown": b"", "large": CONTENT})
    assert contents(tmp_path) == before


def test_what_is_written_replaces_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "µ")
    (tmp_path / "file").chmod(0o640)
    write_whole(tmp_path / "file", "one")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert write_all(tmp_path, {"a": "1", "b": b"2"}) == [tmp_path / "a", tmp_path / "b"]
    assert write_all(tmp_path / "x" / "y", {"c": "3"}) == [tmp_path / "x" / "y" / "c"]
    written = {"file": b"one", "a": b"1", "b": b"2", "x": b"", "x/y": b"", "x/y/c": b"3"}
    assert contents(tmp_path) == written


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", "through it")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "through it"
    reader, writer = os.pipe()
    write_whole(Path(f"/dev/fd/{writer}"), "down the pipe")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "down the pipe"
    assert not Path(os.devnull).is_file()
    write_whole(Path(os.devnull), "gone")
    assert Path(os.devnull).is_char_device()


def test_a_message_is_seen_only_when_it_is_complete(tmp_path: Path) -> None:
    message = tmp_path / "answer.json"
    with open_message(message) as file:
        file.write(b"{")
        file.flush()
        assert not message.exists()
    assert contents(tmp_path) == {"answer.json": b"{"}
    write_message(message, {"rank": 3})
    assert contents(tmp_path) == {"answer.json": b'{"rank": 3}'}


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    (tmp_path / "report.md").write_text("old")
    before = contents(tmp_path)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "report.html", "x")
    with pytest.raises(IsADirectoryError):
        write_all(tmp_path, {"report.md": "new", "report.html": "x"})
    assert contents(tmp_path) == before
    with pytest.raises(ValueError, match="is not the name of a file"):
        write_all(tmp_path, {"../report.md": "elsewhere"})
