"""Kill commands and fill the disk at chosen file operations: stores and outputs are whole or absent, records stay.

Commands are copies of a process that has imported everything. ``make test-faults`` (FAULTS_ALL=1) plants faults of
all kinds at many more operations, and keeps the folders of those that broke something.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.engine import KINDS, Call, Fault, Library
from tests.faults.points import Trials, choose
from tests.faults.templates import Templates
from tests.faults.verbs import Verb, all_verbs
from tests.support.quick_cli import SERVER, CommandServer

ALL = "FAULTS_ALL" in os.environ
PLANTED = KINDS if ALL else ("kill", "full")
SIZES = {verb.name: verb.points if ALL else verb.sample for verb in all_verbs(Templates(Path(), SERVER))}
NAMES = [(name, number) for name, size in SIZES.items() for number in range(size)]


class Sample:
    """The faults; a command's operations are counted when its first fault is planted."""

    def __init__(self, library: Library, folder: Path, server: CommandServer) -> None:
        self.trials = Trials(library, folder, keep=ALL, server=server)
        self.verbs = {verb.name: verb for verb in all_verbs(Templates(folder / "templates", server))}
        self._chosen: dict[str, list[tuple[Fault, Call]]] = {}

    def of(self, name: str, number: int) -> tuple[Verb, Fault, Call]:
        """Return a fault of a command."""
        verb = self.verbs[name]
        if name not in self._chosen:
            self._chosen[name] = choose(verb, self.trials.count(verb), PLANTED, SIZES[name])
        if number >= len(self._chosen[name]):
            pytest.skip("the command has fewer operations")
        return (verb, *self._chosen[name][number])


@pytest.fixture(scope="module")
def sample(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    server = CommandServer(LD_PRELOAD=str(library.path))
    yield Sample(library, tmp_path_factory.mktemp("faults"), server)
    server.close()


@pytest.mark.parametrize(("name", "number"), NAMES)
def test_everything_is_whole_or_absent_and_the_command_goes_on(
    name: str, number: int, sample: Sample
) -> None:
    verb, fault, call = sample.of(name, number)
    problems = sample.trials.plant(verb, fault)
    assert not problems, f"{name}: {fault} ({call.name} {call.path.name}):\n" + "\n".join(problems)
