"""Kill commands and fill the disk at chosen file operations: stores and outputs are whole or absent, records stay.

Commands are copies of a process that has imported everything. ``make test-faults`` (FAULTS_ALL=1) plants faults of
all kinds at many more operations, and keeps the folders of those that broke something.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.engine import KINDS, Library
from tests.faults.points import Trials
from tests.faults.templates import Templates
from tests.faults.verbs import Verb, all_verbs
from tests.support.quick_cli import SERVER, CommandServer

ALL = "FAULTS_ALL" in os.environ
PLANTED = KINDS if ALL else ("kill", "full")
SIZES = {verb.name: verb.points if ALL else verb.sample for verb in all_verbs(Templates(Path(), SERVER))}
NAMES = [(name, number) for name, size in SIZES.items() for number in range(size)]


@pytest.fixture(scope="module")
def sample(
    library: Library, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Trials, dict[str, Verb]]]:
    server, folder = CommandServer(LD_PRELOAD=str(library.path)), tmp_path_factory.mktemp("faults")
    verbs = all_verbs(Templates(folder, server))
    yield Trials(library, folder, server, keep=ALL), {verb.name: verb for verb in verbs}
    server.close()


@pytest.mark.parametrize(("name", "number"), NAMES)
def test_everything_is_whole_or_absent_and_the_command_goes_on(
    name: str, number: int, sample: tuple[Trials, dict[str, Verb]]
) -> None:
    trials, verbs = sample
    planted = trials.fault(verbs[name], number, PLANTED, SIZES[name])
    if planted is None:
        pytest.skip("the command has fewer operations")
    fault, call = planted
    problems = trials.plant(verbs[name], fault)
    assert not problems, f"{name}: {fault} ({call.name} {call.path.name}):\n" + "\n".join(problems)
