"""The harness itself: each defect of a tiny program is caught by the faults that reveal it, and a sound one by none."""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.engine import KINDS, Ending, Fault, Library, Place, run
from tests.faults.file_replacer import ANSWER, TEXT
from tests.faults.invariants import file_problems
from tests.faults.points import Point, Trials
from tests.faults.templates import Templates
from tests.faults.verbs import Verb

PROGRAM = Path(__file__).with_name("file_replacer.py")
OLDER = '{"answer": "older"}'


@dataclass(kw_only=True)
class Planted(Verb):
    """The tiny program, replacing its file in one of its ways."""

    def prepare(self, work: Path) -> None:
        (work / ANSWER).parent.mkdir()
        (work / ANSWER).write_text(OLDER)

    def command(self, work: Path) -> list[str]:
        return [sys.executable, "-S", str(PROGRAM), self.name]  # a quicker start

    def after_fault(self, work: Path, ending: Ending) -> list[str]:
        return file_problems(work / "out", {}) if (work / ANSWER).exists() else ["the older answer is gone"]

    def complete(self, work: Path) -> list[str]:
        return [] if (work / ANSWER).read_text() == TEXT else ["the answer is not the new one"]


def every_fault(way: str, library: Library, folder: Path, kinds: Collection[str] = KINDS) -> list[Point]:
    """Plant faults of these kinds at every operation of the program."""
    trials = Trials(library, folder)
    verb = Planted(name=way, templates=Templates(folder / "templates"), points=0, sample=0)
    counted = trials.count(verb)
    return [
        trials.plant(verb, Fault(kind=kind, at=call.number), call)
        for kind in kinds
        for call in counted.of(kind)
    ]


def broken_by(points: list[Point], words: str) -> set[str]:
    """Return the kinds of fault after which a problem with these words was found."""
    return {point.fault.kind for point in points if any(words in problem for problem in point.problems)}


@pytest.mark.parametrize(
    ("way", "words", "kinds"),
    [
        ("in_place", "answer.json is not whole", {"kill", "full"}),
        ("unsynced", "answer.json is not whole", {"power"}),
        ("silent", "exit code 0, but the answer is not the new one", {"full", "eio"}),
        ("whole", "", set()),
        ("littering", "left behind", {"kill"}),
    ],
)
def test_a_planted_defect_is_caught(
    way: str, words: str, kinds: set[str], library: Library, tmp_path: Path
) -> None:
    assert broken_by(every_fault(way, library, tmp_path, kinds or ("kill", "full", "eio")), words) == kinds


def test_a_fault_in_a_child_is_told_from_one_in_the_command(library: Library, tmp_path: Path) -> None:
    place = Place(folder=tmp_path / "place", cache=tmp_path / "cache").make()
    touch = "import pathlib; pathlib.Path('{}').touch()"
    both = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {touch.format('b')!r}]); "
        + touch.format("a")
    )
    first = run([sys.executable, "-c", both], place, library, Fault(kind="kill", at=1))
    assert (first.code, first.fired, first.in_main) == (0, True, False)
    place = Place(folder=tmp_path / "another", cache=tmp_path / "cache").make()
    second = run([sys.executable, "-c", both], place, library, Fault(kind="kill", at=2))
    assert (second.code, second.fired, second.in_main) == (-9, True, True)
    assert [call.path.name for call in second.calls] == ["b", "a"]
