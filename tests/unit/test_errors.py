"""Errors: one line each, the documented exit code, and the same in another process."""

import errno
import inspect
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench import errors
from storebench.errors import StorebenchError, UnknownNameError, from_os_error

KINDS = [
    kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, StorebenchError)
]


def test_the_tree_drawn_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = dict(re.findall(r"(\w+Error)\s+(\d+)", str(errors.__doc__)))
    assert drawn == {kind.__name__: str(kind.exit_code) for kind in KINDS}
    parents: list[str] = []
    for line in str(errors.__doc__).splitlines():
        if match := re.search(r"(\w+Error)\s+\d", line):
            depth = match.start() // 4 - 1
            del parents[depth:]
            if parents:
                assert getattr(errors, match[1]).__base__.__name__ == parents[-1], line
            parents.append(match[1])


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


def test_the_nearest_name_is_offered_and_all_where_none_is_near() -> None:
    near = UnknownNameError.of("backend", "lmbd", ["lmdb", "leveldb", "hdf5"])
    assert near.hint == "Did you mean 'lmdb'?"
    far = UnknownNameError.of("backend", "zzzzzz", ["lmdb", "hdf5"])
    assert far.hint == "Known: hdf5, lmdb."


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
