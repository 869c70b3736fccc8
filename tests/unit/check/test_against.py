"""Another revision beside the working tree: interleaved, paired, and nothing left behind."""

import json
import subprocess
from pathlib import Path

import pytest

from storebench.check.against import checked_out, run_against
from storebench.check.judge import State, judge
from storebench.check.policy import Policy
from storebench.check.sides import read_side
from storebench.errors import OutputError, UsageError
from storebench.records import read_records
from storebench.scenario import Scenario

ROOT = Path(__file__).resolve().parents[3]


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


pytestmark = pytest.mark.skipif(not git("rev-parse", "HEAD"), reason="needs a git checkout")


@pytest.fixture
def scenario() -> Scenario:
    matrix = {
        "dataset": "mnist",
        "limit": 128,
        "synthetic": True,
        "model": "none",
        "compute": "none",
        "backends": ["memory:python"],
    }
    return Scenario.model_validate({"name": "tiny", "replicates": 2, "test_limit": 0, "matrix": [matrix]})


def test_both_sides_run_every_replicate_side_by_side(tmp_path: Path, scenario: Scenario) -> None:
    before = git("worktree", "list")
    sides = run_against("HEAD", scenario, tmp_path / "out", tmp_path / "stores")
    first, second = (read_records(folder) for folder in (sides.baseline, sides.contender))
    assert [one.replicate for one in first] == [one.replicate for one in second] == [0, 1]
    starts = sorted([(one.started_utc, "a") for one in first] + [(one.started_utc, "b") for one in second])
    assert "".join(side for _, side in starts) == "abba"
    assert sides.commit == git("rev-parse", "HEAD")
    (result,) = judge(
        read_side(sides.baseline, baseline=True), read_side(sides.contender, baseline=False), Policy()
    )
    assert result.basis == "seconds, interleaved"
    assert result.state is State.INCONCLUSIVE  # two replicates are too few to say anything
    assert git("worktree", "list") == before
    with pytest.raises(OutputError, match="a run here already"):
        run_against("HEAD", scenario, tmp_path / "out", tmp_path / "stores")


def test_the_other_interpreter_imports_the_worktree_and_leaves_nothing(tmp_path: Path) -> None:
    before = git("worktree", "list")
    with checked_out(ROOT, git("rev-parse", "HEAD"), print) as (worktree, python):
        code = "import json, storebench, numpy, sys; print(json.dumps([storebench.__file__, sys.executable]))"
        done = subprocess.run(
            [str(python), "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        imported, executable = json.loads(done.stdout)
        assert Path(imported).is_relative_to(worktree)
        assert Path(executable) == python
    assert not worktree.exists()
    assert git("worktree", "list") == before


def test_an_interrupt_leaves_no_worktree() -> None:
    before = git("worktree", "list")
    with pytest.raises(KeyboardInterrupt), checked_out(ROOT, git("rev-parse", "HEAD"), print):
        raise KeyboardInterrupt
    assert git("worktree", "list") == before


def test_an_unknown_revision_is_one_line(tmp_path: Path, scenario: Scenario) -> None:
    for ref in ("no-such-branch", "--help"):
        with pytest.raises(UsageError, match="git knows no revision"):
            run_against(ref, scenario, tmp_path / "out", tmp_path / "stores")
    with pytest.raises(UsageError, match="not in a git repository"):
        run_against("HEAD", scenario, tmp_path / "out", tmp_path / "stores", repository=tmp_path)
