"""Which cases of a test run by default. ``pytest --full`` (`make test-full`) runs all of them.

A parametrized test that has the marker `thinned` runs with every value of each parameter at least once::

    @pytest.mark.thinned                    # each value of each parameter
    @pytest.mark.thinned("loader fault")    # each pair of these two, and each value of every other parameter
    @pytest.mark.thinned(whole=["test_it"]) # for a class: every case of this test

A case that skips itself stands for no other one, so a test with such cases is `whole`.

`some` thins what a test draws in a loop, and `examples` what hypothesis draws for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

SHARE = 4
"""One in so many of the drawn cases runs by default."""

_run = SimpleNamespace(full=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note whether everything is to run, before any test module asks."""
    _run.full = bool(session.config.getoption("--full"))
    name = "thinned"
    settings.register_profile(name, settings.default, max_examples=some(settings.default.max_examples))
    settings.load_profile(name)


def some(count: int) -> int:
    """Return the number of cases to run of `count` drawn ones: a quarter, or all with ``--full``."""
    return count if _run.full else -(-count // SHARE)


def examples(count: int, **more: Any) -> settings:
    """Return hypothesis's settings for `count` examples, or a quarter of them without ``--full``."""
    return settings(max_examples=some(count), **more)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests marked `full`, and take out the cases that others stand for. A case that was named runs."""
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="make test-full runs it"))
    if any("[" in name for name in config.args):
        return
    others = _left_out(items)
    out = set(others)
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=others)


def covering(
    cases: Sequence[Mapping[str, int]], crossed: Iterable[Sequence[str]] = (), *, first: int = 0
) -> set[int]:
    """Return the positions of few cases that together have each value of each parameter."""
    found = [set(_values(case, crossed)) for case in cases]
    order = [*range(first, len(cases)), *range(first)]
    missing, chosen = set().union(*found), set[int]()
    while missing:
        best = max(order, key=lambda position: len(found[position] & missing))
        chosen.add(best)
        missing -= found[best]
    return chosen


def _left_out(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    tests: dict[str, list[Any]] = {}
    for item in items:
        if _is_thinned(item):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [case for name, cases in tests.items() for case in _others(name, cases)]


def _is_thinned(item: Any) -> bool:
    marks = list(item.iter_markers("thinned"))
    whole = any(item.originalname in mark.kwargs.get("whole", ()) for mark in marks)
    return bool(marks) and not whole and not item.get_closest_marker("full") and hasattr(item, "callspec")


def _others(name: str, cases: Sequence[Any]) -> Iterator[pytest.Item]:
    crossed = [names.split() for mark in cases[0].iter_markers("thinned") for names in mark.args]
    # Another first case for each test: together, tests of one format or loader meet most combinations.
    first = crc32(name.rpartition("::")[2].encode()) % len(cases)
    values = [{name: id(value) for name, value in case.callspec.params.items()} for case in cases]
    kept = covering(values, crossed, first=first)
    yield from (case for position, case in enumerate(cases) if position not in kept)


def _values(case: Mapping[str, int], crossed: Iterable[Sequence[str]]) -> Iterator[tuple[object, ...]]:
    yield from case.items()
    for names in crossed:
        if set(names) <= case.keys():
            yield tuple((name, case[name]) for name in names)
