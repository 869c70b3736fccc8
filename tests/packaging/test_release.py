"""The scripts that workflows, the action and the image run, and what the workflows use."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from storebench._version import __version__
from tests.support.installed import ROOT, Built, Environment, borrow_libraries, output_of

PROGRAMS = {
    # A check that reads no verdicts writes none.
    "storebench": 'echo "storebench $*" >> calls; [ "$1" = bench ] || '
    '{ case "$CODE" in 2 | 3) ;; *) echo verdicts > "$5" ;; esac; exit "$CODE"; }',
    "gh": 'echo "gh $*" >> calls',
    "git": 'echo "merge-base of $2"',
}


def gate(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the action's script, with programs that write down how they were called."""
    for name, script in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "out").mkdir()
    given = {
        "SCENARIO": "gate",
        "AGAINST": "",
        "BUDGET": "8 min",
        "FAIL_ON": "regression",
        "COMMENT": "false",
    }
    github = {
        "OUT": "out",
        "BASE": "main",
        "PULL_REQUEST": "7",
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
    }
    env = {**given, **github, **inputs, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [ROOT / ".ci" / "gate"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("fail_on", "codes"),
    [
        ("regression", {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 5}),
        ("inconclusive", {0: 0, 1: 1, 4: 4}),
        ("never", {0: 0, 1: 0, 2: 2, 4: 0, 5: 0}),
    ],
)
def test_the_action_fails_where_it_is_asked_to(fail_on: str, codes: dict[int, int], tmp_path: Path) -> None:
    for code, wanted in codes.items():
        folder = tmp_path / str(code)
        folder.mkdir()
        done = gate(folder, FAIL_ON=fail_on, CODE=str(code))
        assert done.returncode == wanted, done.stderr
        assert ("::error" in done.stdout) == (code == 1)
        if (folder / "out" / "check.md").exists():
            assert (folder / "summary").read_text() == "verdicts\n"


def test_the_action_measures_against_the_merge_base_and_comments_if_asked(tmp_path: Path) -> None:
    done = gate(tmp_path, COMMENT="true", CODE="0")
    assert done.returncode == 0, done.stderr
    bench, check, comment = (tmp_path / "calls").read_text().splitlines()
    assert bench == "storebench bench gate --against merge-base of main --budget 8 min --out out"
    assert check == "storebench check out/baseline out/contender --markdown out/check.md"
    assert comment.startswith("gh pr comment 7 ")


def test_a_release_has_notes_of_its_version_and_a_date(tmp_path: Path) -> None:
    (tmp_path / "storebench").mkdir()
    shutil.copy(ROOT / "storebench" / "_version.py", tmp_path / "storebench")

    def notes(tag: str, title: str) -> subprocess.CompletedProcess[str]:
        text = f"# Changelog\n\n## {title}\n\nWhat is new.\n\n## 0.0.1 (2020-01-01)\n\nBefore.\n"
        (tmp_path / "CHANGELOG.md").write_text(text)
        return subprocess.run(
            [ROOT / ".ci" / "notes", tag], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert notes(f"v{__version__}", f"{__version__} (2027-01-31)").stdout == "What is new.\n"
    for tag, title in (
        (f"v{__version__}", f"{__version__} (unreleased)"),
        (f"v{__version__}", "9.9.9 (2027-01-31)"),
        ("v9.9.9", "9.9.9 (2027-01-31)"),
    ):
        assert notes(tag, title).returncode == 1


@pytest.mark.full
def test_the_image_installs_it_into_an_environment(built: Built, tmp_path: Path) -> None:
    made = Environment(folder=tmp_path / "storebench")
    words = [str(ROOT / "docker" / "install"), str(built.wheel), str(made.folder)]
    output_of(words, cwd=tmp_path, env={"PIP_NO_DEPS": "1"})
    borrow_libraries(made)
    assert made.run("storebench", "--version", cwd=tmp_path) == f"storebench {__version__}\n"


def test_workflows_use_actions_by_commit() -> None:
    files = [ROOT / "action.yml", *(ROOT / ".github" / "workflows").iterdir()]
    used = [name for path in files for name in re.findall(r"uses: (?!\./)(.*)", path.read_text())]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", name)] == []
