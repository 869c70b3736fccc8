"""The harness itself: each defect of a tiny program is caught by the faults that reveal it, and a sound one by none."""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.engine import KINDS, Call, Ending, Fault, Library, Place, run
from tests.faults.file_replacer import ANSWER, TEXT
from tests.faults.invariants import file_problems
from tests.faults.points import Counted, Point, Trials, choose, thinned
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


@pytest.mark.full
def test_a_program_that_replaces_its_file_well_passes_every_fault(library: Library, tmp_path: Path) -> None:
    points = every_fault("whole", library, tmp_path)
    assert not [(str(point), point.problems) for point in points if point.problems]
    assert {point.fault.kind for point in points if point.ending.fired} == set(KINDS)
    assert [point.call.name for point in points if point.fault.kind == "kill"] == [
        "open",
        "write",
        "fsync",
        "rename",
        "fsync",
    ]


@pytest.mark.parametrize(
    ("way", "words", "kinds"),
    [
        ("in_place", "answer.json is not whole", {"kill", "torn", "power", "full"}),
        ("unsynced", "answer.json is not whole", {"power"}),
        ("two_renames", "the older answer is gone", {"kill", "torn", "power", "full", "eio"}),
        ("silent", "exit code 0, but the answer is not the new one", {"full", "eio"}),
        ("loud", "Traceback", {"full", "eio", "read"}),
        ("littering", "left behind", {"kill", "torn", "power"}),
    ],
)
def test_a_planted_defect_is_caught(
    way: str, words: str, kinds: set[str], library: Library, tmp_path: Path
) -> None:
    assert broken_by(every_fault(way, library, tmp_path, kinds), words) == kinds


def test_a_process_that_outlives_its_command_is_ended_and_named(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.faults.engine.ORPHAN_S", 0.3)
    place = Place(folder=tmp_path / "place", cache=tmp_path / "cache").make()
    child = "import subprocess; subprocess.Popen(['sleep', '100'])"
    ending = run([sys.executable, "-c", child], place, library)
    assert ending.orphans == ("sleep 100",)
    assert run([sys.executable, "-c", "pass"], place, library).orphans == ()


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


def test_the_chosen_faults_differ_and_reach_all_parts_of_a_command(tmp_path: Path) -> None:
    verb = Planted(name="any", templates=Templates(tmp_path), points=0, sample=0)
    counted = Counted(writes=numbered_calls(60), reads=numbered_calls(20))
    chosen = [fault for fault, _ in choose(verb, counted, 64, seed=0)]
    assert len(set(chosen)) == len(chosen) == 64
    assert {kind: sum(fault.kind == kind for fault in chosen) for kind in KINDS} == dict.fromkeys(KINDS, 8)
    at = [fault.at for fault in chosen if fault.kind != "read"]
    assert all(any(low < one <= low + 6 for one in at) for low in range(0, 60, 6)), sorted(at)
    assert [fault for fault, _ in choose(verb, counted, 64, seed=0)] == chosen
    few = choose(verb, Counted(writes=numbered_calls(2), reads=()), 64, seed=0)
    assert len(set(few)) == len(few) == 2 * (len(KINDS) - 1) + 1


def test_of_many_equal_calls_three_are_tried() -> None:
    one, many = numbered_calls(1), [Call(number=n, pid=1, name="write", path=Path("y")) for n in range(2, 90)]
    assert [call.number for call in thinned([*one, *many])] == [1, 2, 46, 89]


def numbered_calls(count: int) -> tuple[Call, ...]:
    return tuple(Call(number=n, pid=1, name="write", path=Path(str(n))) for n in range(1, count + 1))
