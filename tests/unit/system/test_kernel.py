"""C source is compiled once, kept where only its user can have written it, and done without where nothing compiles."""

import ctypes
import shutil
from pathlib import Path

import pytest

from storebench.system.kernel import load_compiled

ANSWER = "int answer(void) { return 42; }"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def answer_of(library: ctypes.CDLL | None) -> int:
    assert library is not None
    answer: int = library.answer()
    return answer


def kept(folder: Path) -> Path:
    [path] = folder.iterdir()
    return path


def test_a_library_is_compiled_once_per_source(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "storebench"
    assert answer_of(load_compiled(ANSWER, folder)) == 42
    first = kept(folder).stat()
    assert answer_of(load_compiled(ANSWER, folder)) == 42
    assert kept(folder).stat().st_ino == first.st_ino
    assert answer_of(load_compiled(ANSWER.replace("42", "43"), folder)) == 43
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "false", "cc --no-such-option"])
def test_a_compiler_that_does_not_work_gives_no_library(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert load_compiled(ANSWER, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mode", "answer"), [(0o755, 43), (0o775, 42), (0o757, 42)])
def test_a_library_that_others_could_have_written_is_not_loaded(
    mode: int, answer: int, tmp_path: Path
) -> None:
    """Another library lies where this one would be kept: only its permissions tell."""
    right, other, folder = (tmp_path / name for name in ("right", "other", "folder"))
    load_compiled(ANSWER, right)
    load_compiled(ANSWER.replace("42", "43"), other)
    folder.mkdir()
    path = folder / kept(right).name
    shutil.copy(kept(other), path)
    path.chmod(mode)
    assert answer_of(load_compiled(ANSWER, folder)) == answer
    assert kept(folder).stat().st_mode & 0o022 == 0
