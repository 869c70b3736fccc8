"""A dry run of a comparison with a revision: what it plans, and what it refuses before that."""

import re

import pytest
from typer.testing import CliRunner, Result

from storebench.cli.main import app


def planned(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", "gate", "--only", "memory", "--dry-run", *words])


def test_a_dry_run_plans_as_many_rounds_as_fit_into_the_budget() -> None:
    done = planned("--against", "HEAD", "--budget", "4 min")
    assert done.exit_code == 0, done.stderr
    total = done.stdout.splitlines()[-1]
    assert " x 2 sides x 40 replicates, as many as fit into 4 min;" in total
    assert "MiB to convert, at most " in total
    assert re.fullmatch(
        r"storebench in \S+: revision [0-9a-f]{12} against the working tree", done.stderr.splitlines()[0]
    )


def test_a_dry_run_without_a_budget_plans_the_rounds_of_the_scenario() -> None:
    assert " x 2 sides x 5 replicates;" in planned("--against", "HEAD").stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--against", "no-such-branch"), "git knows no revision 'no-such-branch'"),
        (("--against", "HEAD", "--resume"), "a comparison with a revision cannot be resumed"),
        (("--against", "HEAD", "--timeout", "60"), "--timeout is not for --against"),
        (
            ("--against", "HEAD", "--nodes", "2", "--rendezvous", "localhost:1"),
            "--nodes is not for --against",
        ),
        (("--against", "HEAD", "--node", "1"), "--nodes is not for --against"),
    ],
)
def test_a_dry_run_refuses_what_is_not_for_a_comparison(words: tuple[str, ...], error: str) -> None:
    done = planned(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert error in line
