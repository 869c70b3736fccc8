"""Which code each side of a comparison of revisions imports: its own, of the package and of plugins, and no other."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from storebench.check.revisions import Repository, checked_out
from storebench.check.side_code import plugin_sides, side_environment, storebench_sides
from tests.support.revision_tools import ROOT, git, plant, plugin_repository

PLUGIN = ROOT / "tests" / "support" / "planted_plugin.py"
pytestmark = pytest.mark.skipif(not git(ROOT, "rev-parse", "HEAD"), reason="needs a git checkout")


def test_the_other_interpreter_imports_the_worktree_and_leaves_nothing(tmp_path: Path) -> None:
    code = "import json, storebench, numpy, sys; print(json.dumps([storebench.__file__, sys.executable]))"
    with checked_out(ROOT, git(ROOT, "rev-parse", "HEAD"), print) as (worktree, scratch):
        for side, tree in zip(
            storebench_sides(ROOT, worktree, scratch, print), (worktree, ROOT), strict=True
        ):
            done = subprocess.run(
                [str(side.python), "-c", code],
                cwd=ROOT,
                env={**side_environment()},
                capture_output=True,
                text=True,
                check=True,
            )
            imported, executable = json.loads(done.stdout)
            assert Path(imported).resolve().is_relative_to(tree)
            assert Path(executable) == side.python
    assert not scratch.exists()
    assert str(worktree) not in git(ROOT, "worktree", "list")


def test_nothing_beside_the_package_is_imported_by_sides_and_cells(
    untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(untouched))  # as an editable install does
    cell = "import json, lmdb, storebench; print(json.dumps([lmdb.__file__, storebench.__file__]))"
    side = (
        "import subprocess, sys; from storebench.probes.code import cell_environment; "
        f"subprocess.run([sys.executable, '-P', '-c', {cell!r}], env=cell_environment(), check=True)"
    )
    with checked_out(untouched, git(untouched, "rev-parse", "HEAD"), print) as (worktree, scratch):
        trees = worktree, untouched
        codes = storebench_sides(untouched, worktree, scratch, print)
        for tree in trees:
            for name in ("sitecustomize", "usercustomize", "lmdb"):
                (tree / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
        for code, tree in zip(codes, trees, strict=True):
            for program in (cell, side):
                done = subprocess.run(
                    [str(code.python), "-P", "-c", program],
                    env=side_environment(), cwd=tree, capture_output=True, text=True, check=True,
                )  # fmt: skip
                lmdb, own = json.loads(done.stdout)
                assert Path(lmdb).parent.name == "lmdb"
                assert Path(own).resolve() == tree / "storebench" / "__init__.py"
    assert not (tmp_path / "ran").exists()


def test_each_side_of_a_plugin_imports_its_own_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plugin_repository(tmp_path / "plugin", PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(root))  # as an editable install does
    formats = {"planted": "planted_plugin:PlantedFormat"}
    repository = Repository(root=root, project=root, plugin="storebench-planted", formats=formats)
    plant(root / "planted_plugin.py", "FlatReader.fetch_into", 0.01)
    program = (
        "import json, planted_plugin; from storebench.formats.origin import code_facts; "
        "print(json.dumps([planted_plugin.__file__, code_facts('planted').plugin]))"
    )
    with checked_out(root, git(root, "rev-parse", "HEAD"), print) as (worktree, scratch):
        codes = plugin_sides(repository, worktree, scratch, print)
        for tree in (worktree, root):
            (tree / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
        for code, tree in zip(codes, (worktree, root), strict=True):
            done = subprocess.run(
                [str(code.python), "-P", "-c", program],
                env=side_environment(), cwd=tree, capture_output=True, text=True, check=True,
            )  # fmt: skip
            imported, facts = json.loads(done.stdout)
            assert Path(imported).resolve() == tree / "planted_plugin.py"
            assert facts == code.facts.plugin
    assert codes[0].facts.plugin != codes[1].facts.plugin
    assert not (tmp_path / "ran").exists()


def test_nothing_in_the_environment_redirects_a_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "storebench"
    fake.mkdir()
    (fake / "__init__.py").write_text("raise SystemExit('the package on PYTHONPATH')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    with checked_out(ROOT, git(ROOT, "rev-parse", "HEAD"), print) as (worktree, scratch):
        monkeypatch.setenv("PYTHONHOME", "/nowhere")
        env = side_environment()
        monkeypatch.delenv("PYTHONHOME")
        for side in storebench_sides(ROOT, worktree, scratch, print):
            done = subprocess.run(
                [str(side.python), "-c", "import storebench; print(storebench.__file__)"],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                check=True,
            )
            assert Path(done.stdout.strip()).resolve().is_relative_to(side.tree)
