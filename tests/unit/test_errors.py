"""Errors: one line each, the documented exit code, and the same in another process."""

import errno
import inspect
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench import errors
from storebench.errors import StorebenchError, from_os_error
from storebench.probes.machine import mount_of

KINDS = [
    kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, StorebenchError)
]


@pytest.mark.parametrize("kind", KINDS)
@given(what=st.text(min_size=1), where=st.none() | st.text(min_size=1), hint=st.none() | st.text(min_size=1))
def test_an_error_is_one_line_and_crosses_processes_whole(
    kind: type[StorebenchError], what: str, where: str | None, hint: str | None
) -> None:
    error = kind(what, where=where, hint=hint)
    assert len(str(error).splitlines()) <= 1
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.what, copy.where, copy.hint, str(copy)) == (what, where, hint, str(error))


def test_the_line_says_where_what_and_what_to_do() -> None:
    error = errors.UsageError("no such thing", where="a/file", hint="Look elsewhere.")
    assert str(error) == "a/file: no such thing. Look elsewhere."
    assert str(errors.UsageError("no such thing")) == "no such thing"


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, errors.DiskFullError, "the disk is full"),
        (errno.EDQUOT, errors.DiskFullError, "the disk is full"),
        (errno.EFBIG, errors.DiskFullError, "ulimit"),
        (errno.EROFS, errors.OutputError, "read-only"),
        (errno.EACCES, errors.OutputError, "no permission to write"),
        (errno.EIO, errors.OutputError, "Input/output error"),
    ],
)
def test_failed_writes_are_told_apart(number: int, kind: type[StorebenchError], words: str) -> None:
    error = from_os_error(OSError(number, "Input/output error"), "out")
    assert type(error) is kind
    assert words in str(error)
    assert str(error).startswith("out: ")


def full(*names: str | None) -> OSError:
    """Return the error of a write that found no room, with the file names that it mentions."""
    first, second = (*names, None, None)[:2]
    return OSError(errno.ENOSPC, "No space left on device", first, None, second)


def test_a_full_disk_names_the_file_and_the_file_system(tmp_path: Path) -> None:
    mount = mount_of(tmp_path)
    line = str(from_os_error(full(), tmp_path / "not" / "there"))
    assert line.startswith(
        f"{tmp_path / 'not' / 'there'}: the disk is full ({mount.fstype} on {mount.point})"
    )


def test_a_line_never_names_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_os_error(full(), ".").where == str(tmp_path)
    assert from_os_error(full("records.jsonl"), ".").where == "records.jsonl"
    assert from_os_error(PermissionError(errno.EACCES, "Permission denied"), ".").where == str(tmp_path)
    assert from_os_error(full(), "out").where == "out"


def test_a_file_on_another_file_system_is_named(tmp_path: Path) -> None:
    if mount_of("/dev/shm") == mount_of(tmp_path):
        pytest.skip("/dev/shm is no other file system here")
    on_shm = "tmpfs on /dev/shm"
    assert on_shm in str(from_os_error(full("/dev/shm/part"), tmp_path))
    copied = from_os_error(full(str(tmp_path / "source"), "/dev/shm/part"), tmp_path)
    assert copied.where == "/dev/shm/part"
    assert from_os_error(full("/dev/shm/source", str(tmp_path / "part")), tmp_path).where == str(tmp_path)
