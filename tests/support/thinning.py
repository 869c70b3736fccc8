"""Which cases of a test run by default. ``pytest --full`` (`make test-full`) runs all of them.

A parametrized test that has the marker `thinned` runs with every value of each parameter at least once::

    @pytest.mark.thinned                    # each value of each parameter
    @pytest.mark.thinned("loader fault")    # each pair of these two, and each value of every other parameter
    @pytest.mark.thinned(whole=["test_it"]) # for a class: every case of this test

`some` thins what a test draws in a loop, and `examples` what hypothesis draws for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

SHARE = 4
"""One in so many of the drawn cases runs by default."""

_run = SimpleNamespace(full=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note whether everything is to run, before any test module asks."""
    _run.full = bool(session.config.getoption("--full"))
    settings.register_profile("thinned", settings.default, max_examples=some(settings.default.max_examples))
    settings.load_profile("thinned")


def some(count: int) -> int:
    """Return the number of cases to run of `count` drawn ones: a quarter, or all with ``--full``."""
    return count if _run.full else -(-count // SHARE)


def examples(count: int, **more: Any) -> settings:
    """Return hypothesis's settings for `count` examples, or a quarter of them without ``--full``."""
    return settings(max_examples=some(count), **more)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests marked `full`, and take out the cases that others stand for. A case that was named runs."""
    tests: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="make test-full runs it"))
        elif _is_thinned(item):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    if any("[" in name for name in config.args):
        return
    out = {case for cases in tests.values() for case in _others(cases)}
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=list(out))


def covering(cases: Sequence[Mapping[str, int]], crossed: Iterable[Sequence[str]] = ()) -> set[int]:
    """Return the positions of few cases that together have each value of each parameter, and the crossed pairs."""
    found = [set(_values(case, crossed)) for case in cases]
    missing, chosen = set().union(*found), set[int]()
    while missing:
        best = max(range(len(cases)), key=lambda position: len(found[position] & missing))
        chosen.add(best)
        missing -= found[best]
    return chosen


def _is_thinned(item: Any) -> bool:
    marks = list(item.iter_markers("thinned"))
    whole = any(item.originalname in mark.kwargs.get("whole", ()) for mark in marks)
    return bool(marks) and not whole and hasattr(item, "callspec")


def _others(cases: Sequence[Any]) -> Iterator[pytest.Item]:
    crossed = [names.split() for mark in cases[0].iter_markers("thinned") for names in mark.args]
    values = [{name: id(value) for name, value in case.callspec.params.items()} for case in cases]
    kept = covering(values, crossed)
    yield from (case for position, case in enumerate(cases) if position not in kept)


def _values(case: Mapping[str, int], crossed: Iterable[Sequence[str]]) -> Iterator[tuple[object, ...]]:
    yield from case.items()
    for names in crossed:
        if set(names) <= case.keys():
            yield tuple((name, case[name]) for name in names)
