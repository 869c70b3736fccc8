"""A sample of the faults of ``make test-faults``: whatever fails wherever, nothing is lost and nothing stays behind."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.engine import Library, hear_signals
from tests.faults.points import Point, Trials, chosen_kinds, plant_all
from tests.faults.templates import Templates
from tests.faults.verbs import Verb, all_verbs

SEED = 0
NAMES = [
    f"{verb.name} {number} {kind}"
    for verb in all_verbs(Templates(Path()))
    for number, kind in enumerate(chosen_kinds(verb, verb.sample, SEED), start=1)
]


@pytest.fixture(scope="module")
def planted(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Point]:
    """Plant the sample, several faults at a time, and return what each did by its name."""
    hear_signals()
    folder = tmp_path_factory.mktemp("faults")
    verbs = all_verbs(Templates(folder / "templates"))
    _, points = plant_all(Trials(library, folder), verbs, _sample_of, seed=SEED)
    numbered: dict[str, Point] = {}
    for verb in verbs:
        mine = [point for point in points if point.verb == verb.name]
        numbered |= {f"{verb.name} {n} {point.fault.kind}": point for n, point in enumerate(mine, start=1)}
    return numbered


def _sample_of(verb: Verb) -> int:
    return verb.sample


def test_the_sample_has_sixty_faults_in_every_verb_and_of_every_kind() -> None:
    assert len(NAMES) == 60
    assert {name.split()[0] for name in NAMES} == {"convert", "bench", "report", "check", "trace"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_or_left_behind(name: str, planted: Mapping[str, Point]) -> None:
    point = planted[name]
    assert not point.problems, f"{point}:\n" + "\n".join(point.problems)
