"""Choose at which operations of a command which faults happen, plant them one by one, and judge what is left."""

import itertools
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.engine import Call, Ending, Fault, Library, Place, run
from tests.faults.invariants import ending_problems, leftovers, recovery_problems
from tests.faults.verbs import Verb
from tests.support.quick_cli import CommandServer

_GOLDEN = 0.6180339887498949  # its multiples, modulo 1, are spread evenly however many there are


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The operations of a command without a fault: those that write, and those that read."""

    writes: tuple[Call, ...]
    reads: tuple[Call, ...]

    def of(self, kind: str) -> tuple[Call, ...]:
        """Return the operations at which a kind of fault may happen; power may also fail after the last of them."""
        if kind != "power":
            return self.reads if kind == "read" else self.writes
        return (
            *self.writes,
            Call(number=len(self.writes) + 1, pid=0, name="end", path=Path("of the command")),
        )


class Trials:
    """Plant faults into commands, each in a folder of its own; operations are counted with a command's first fault."""

    def __init__(self, library: Library, folder: Path, server: CommandServer, *, keep: bool) -> None:
        self._library, self._folder, self._server, self._keep = library, folder, server, keep
        self._chosen: dict[str, list[tuple[Fault, Call]]] = {}

    def fault(self, verb: Verb, number: int, kinds: Sequence[str], points: int) -> tuple[Fault, Call] | None:
        """Return one of the faults that are planted into a command; None where it has fewer operations."""
        if verb.name not in self._chosen:
            self._chosen[verb.name] = choose(verb, self._count(verb), kinds, points)
        chosen = self._chosen[verb.name]
        return chosen[number] if number < len(chosen) else None

    def plant(self, verb: Verb, fault: Fault) -> list[str]:
        """Let `fault` happen in a command, run the command that goes on, and return what is wrong with both."""
        place = self._place(verb)
        ending = run(verb.command(place.work), place, self._library, fault, server=self._server)
        problems = _judged("after the fault", lambda: _after_fault(verb, place, ending, fault))
        if self._keep:
            # Not shutil: there may be sockets.
            subprocess.run(["cp", "-a", str(place.work), str(place.folder / "after-the-fault")], check=True)
            (place.folder / "stderr-of-the-fault").write_text(ending.stderr)
        again = run(verb.again(place.work), place, server=self._server)
        problems += recovery_problems(again, normal=verb.normal)
        if again.code == verb.normal:
            segments = (*ending.segments, *again.segments)
            problems += _judged(
                "in the end", lambda: verb.after_again(place.work, again) + leftovers(place.work, segments)
            )
        if problems and self._keep:
            problems.append(f"kept in {place.folder}")
        else:
            place.remove()
        return problems

    def _count(self, verb: Verb) -> Counted:
        """Run a command without a fault and return its operations; it must do all of its work."""
        place = self._place(verb)
        ending = run(verb.command(place.work), place, self._library, server=self._server)
        if ending.code is None or ending.code < 0 or "Traceback" in ending.stderr:
            raise RuntimeError(f"{verb.name}: exit code {ending.code} without a fault\n{ending.stderr}")
        verb.normal = ending.code
        verb.learn(place.work)
        wrong = verb.complete(place.work) + leftovers(place.work, ending.segments)
        if wrong:
            raise RuntimeError(f"{verb.name}, without a fault: {'; '.join(wrong)}")
        place.remove()
        return Counted(writes=ending.calls, reads=ending.reads)

    def _place(self, verb: Verb) -> Place:
        place = Place.new(self._folder)
        verb.prepare(place.work)
        return place


def _after_fault(verb: Verb, place: Place, ending: Ending, fault: Fault) -> list[str]:
    done_all = ending.code == verb.normal
    found = verb.after_fault(place.work, ending)
    found += ending_problems(
        ending, fault, normal=verb.normal, complete=verb.complete(place.work) if done_all else ()
    )
    # What had to stop in order takes its traces with it; what was killed leaves that to the next start.
    return found + (leftovers(place.work, ending.segments) if fault.kind == "full" else [])


def _judged(when: str, judge: Callable[[], list[str]]) -> list[str]:
    """Return what a judge finds; files that it cannot read at all are a finding, too."""
    try:
        return [f"{when}: {problem}" for problem in judge()]
    except (OSError, ValueError, LookupError) as error:
        return [f"{when}: {type(error).__name__}: {error}"]


def choose(verb: Verb, counted: Counted, kinds: Sequence[str], points: int) -> list[tuple[Fault, Call]]:
    """Return `points` different faults with their operations, spread evenly; fewer where there are not as many."""
    rng = random.Random(verb.name)
    drawn: list[str] = []
    while len(drawn) < points:
        drawn += rng.sample(kinds, len(kinds))
    taken: set[Fault] = set()
    chosen: list[tuple[Fault, Call]] = []
    for number, kind in enumerate(drawn[:points]):
        calls = thinned(counted.of(kind))
        first = int((number * _GOLDEN) % 1 * len(calls))
        free = ((Fault(kind=kind, at=call.number), call) for call in (*calls[first:], *calls[:first]))
        found = next((one for one in free if one[0] not in taken), None)
        if found is not None:
            taken.add(found[0])
            chosen.append(found)
    return chosen


def thinned(calls: Sequence[Call]) -> list[Call]:
    """Return the first, the middle and the last of each series of equal calls, such as a file's many small writes."""
    kept: list[Call] = []
    for _, series in itertools.groupby(calls, key=lambda call: (call.pid, call.name, call.path)):
        equal = list(series)
        kept += dict.fromkeys((equal[0], equal[len(equal) // 2], equal[-1]))
    return kept
