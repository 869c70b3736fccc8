"""The sample of faults that the test suite plants: chosen by a fixed seed, named without running anything."""

from pathlib import Path

from tests.faults.engine import Call, Fault, Library
from tests.faults.points import Point, Trials, choose, chosen_kinds
from tests.faults.templates import Templates
from tests.faults.verbs import all_verbs
from tests.support.quick_cli import CommandServer

SEED = 0


def names(*verbs: str) -> list[str]:
    """Return the names of the sample's faults in the commands that begin with one of these words."""
    return [
        f"{verb.name}: {number} {kind}"
        for verb in all_verbs(Templates(Path()))
        if verb.name.split()[0] in verbs
        for number, kind in enumerate(chosen_kinds(verb, verb.sample, SEED), start=1)
    ]


class Sample:
    """Plant faults of the sample by their names; a command's operations are counted when its first one is planted.

    Its commands are copies of a process that has imported everything: ``make test-faults`` starts an interpreter for each.
    """

    def __init__(self, library: Library, folder: Path, server: CommandServer) -> None:
        self._trials = Trials(library, folder, server=server)
        self._verbs = {verb.name: verb for verb in all_verbs(Templates(folder / "templates", server))}
        self._chosen: dict[str, list[tuple[Fault, Call]]] = {}

    def plant(self, name: str) -> Point:
        """Plant one fault and return what it did."""
        verb = self._verbs[name.partition(":")[0]]
        if verb.name not in self._chosen:
            self._chosen[verb.name] = choose(verb, self._trials.count(verb), verb.sample, SEED)
        number = int(name.split()[-2])
        return self._trials.plant(verb, *self._chosen[verb.name][number - 1])
