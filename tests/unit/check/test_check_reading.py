"""What is read as a side, a policy or a baseline: whatever stands there, one of our errors or a result."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from storebench.check.policy import Policy, load_policy
from storebench.check.sides.read import read_side
from storebench.errors import ScenarioError, StorebenchError
from tests.support.planted_sides import session, write_sessions
from tests.support.thinning import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, inner in items for one in ((*path, key), *_paths(inner, (*path, key)))]


PLANTED = session(0, cells=("a", "b"), rounds=2)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(_paths(PLANTED)), value=JSON)
def test_a_session_with_anything_in_it_is_read_or_refused(
    tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    raw = json.loads(json.dumps(PLANTED))
    inner = raw
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path / "one.json"
    path.write_text(json.dumps(raw))
    with contextlib.suppress(StorebenchError):
        side = read_side(path, baseline=False)
        assert all(replicate.seconds > 0 for cell in side.cells.values() for replicate in cell.replicates)


def test_a_folder_is_sessions_and_each_is_one_replicate(tmp_path: Path) -> None:
    folder = write_sessions(tmp_path / "a", count=4)
    (folder / "notes.json").write_text('{"something": "else"}')
    side = read_side(folder, baseline=True)
    assert {len(cell.replicates) for cell in side.cells.values()} == {4}
    alone = read_side(folder / "session-0.json", baseline=True)
    assert {len(cell.replicates) for cell in alone.cells.values()} == {8}
    assert all(cell.one_process for cell in alone.cells.values())
    assert side.kind == alone.kind == "pytest-benchmark"


def test_the_defaults_are_those_of_an_empty_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    assert load_policy(path) == Policy()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("alpha = 0.05\npractical_frak = 0.1\n", 2, "practical_frac"),
        ("[counters.read_calls]\nband_frac = 0.1\nslak = 3\n", 3, "slack"),
        ('[[cells]]\nmatch = "a"\n\n[[cells]]\nmatch = "b"\npractical = 1\n', 6, "practical_frac"),
        ("alpha = 2\n", 1, "less than 1"),
        ("\n[counters.read_cals]\nslack = 1\n", 2, "read_calls"),
        ('basis = "furlongs"\n', 1, "furlongs"),
        ("min_replicates = 1\n", 1, "greater than or equal to 2"),
    ],
)
def test_a_wrong_policy_names_the_line_and_what_was_meant(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}:{line}:")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["alpha = ", "alpha = 0.1\nalpha = 0.2\n"])
def test_a_policy_that_is_no_toml_says_where(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match="not TOML"):
        load_policy(path)
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_policy(tmp_path / "absent.toml")
