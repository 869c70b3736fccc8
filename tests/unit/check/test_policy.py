"""A policy: its defaults, and a line for everything that is wrong with one."""

from pathlib import Path

import pytest

from storebench.check.policy import Policy, load_policy
from storebench.errors import ScenarioError
from tests.support.checked import run
from tests.support.planted_sides import paired, slower


def test_the_defaults_are_those_of_an_empty_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    assert load_policy(path) == Policy()
    assert Policy().practical_frac == 0.10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_inconclusive_frac = 0.1\npractical_frak = 0.1\n", "practical_frac"),
        ("[counters.read_calls]\nband_frac = 0.1\nslak = 3\n", "slack"),
        ('[[cells]]\nmatch = "a"\n\n[[cells]]\nmatch = "b"\npractical = 1\n', "practical_frac"),
        ("practical_frac = -1\n", "greater than or equal to 0"),
        ("practical_frac = nan\n", "finite"),
        ("\n[counters.read_cals]\nslack = 1\n", "read_calls"),
        ("alpha = 0.01\n", "alpha"),
    ],
)
def test_a_wrong_policy_names_what_was_meant(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["practical_frac = ", "practical_frac = 0.1\npractical_frac = 0.2\n"])
def test_a_policy_that_is_no_toml_says_where(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match="not TOML"):
        load_policy(path)
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_policy(tmp_path / "absent.toml")


def test_a_policy_that_checks_nothing_of_a_cell_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[cells]]\nmatch = "*"\ngate_time = false\ngate_counters = false\n')
    code, text = run(*paired(tmp_path, slower(3.0)), "--policy", path)
    assert (code, "nothing of these cells would be checked" in text) == (2, True), text
