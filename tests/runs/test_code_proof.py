"""Each record proves which code its cell ran, and a record of other code than the runner's fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import storebench
from storebench.probes.code import checkout_of, code_digest, package_folder
from tests.support.harness_tools import Bench
from tests.support.revision_tools import BEING_COMPILED

PACKAGE = Path(storebench.__file__).resolve().parent
RUN = (
    "run",
    "--dataset",
    "mnist",
    "--synthetic",
    "--limit",
    "64",
    "--compute",
    "emulated:0.01",
    "--model",
    "none",
)

TINY = """
name = "tiny"
test_limit = 0

[[matrix]]
dataset = "mnist"
limit = 64
synthetic = true
compute = "emulated:0.1"
model = "none"
backends = ["memory:python"]
"""

EDITED_MEANWHILE = """
import sys
from pathlib import Path

import storebench
from storebench.run.execute import Run, Silent, execute
from storebench.run.scenario import make_scenario

root = Path(sys.argv[1])
backends = ["memory:python"]
matrix = {"dataset": "mnist", "synthetic": True, "limit": 64, "compute": "emulated:0.01", "model": "none"}
matrix["backends"] = backends
scenario = make_scenario({"name": "edited", "replicates": 2, "test_limit": 0, "matrix": [matrix]})


class Editor(Silent):
    def started(self, work, position, total):
        if position:
            with Path(storebench.__file__).with_name("units.py").open("a") as file:
                file.write("# edited\\n")


run = Run.create(scenario, root / "run", scenario.cells())
for record in execute(run, root / "stores", watcher=Editor()):
    print(record.status, record.failure)
"""


def only_code(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the facts of the code in the only record that a command printed."""
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)
    return dict(record["code"])


def test_a_package_in_the_working_directory_is_not_what_a_cell_runs(tmp_path: Path) -> None:
    other = tmp_path / "storebench"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit('the package of the working directory')\n")
    command = [sys.executable, "-P", "-m", "storebench", *RUN, "memory:python", "--out", "out", "--json"]
    code = only_code(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False))
    assert code["digest"] == code_digest(package_folder())
    assert code["commit"] == str(checkout_of(package_folder()))
    assert code["plugin"] == ""


def test_a_plugin_in_a_checkout_has_a_commit_and_its_changes_show(tmp_path: Path, plugin: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(plugin, site, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(site), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    script = "from storebench.formats.origin import plugin_facts; print(plugin_facts('planted'))"

    def facts() -> list[str]:
        command = [sys.executable, "-P", "-c", script]
        env = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    before = facts()
    assert len(before[1]) == 40
    (site / "notes.txt").write_text("no code\n")
    assert facts() == before
    with (site / "planted_plugin.py").open("a") as file:
        file.write("# changed\n")
    name, commit, digest = facts()
    assert (name, commit) == (before[0], f"{before[1]}+changes")
    assert digest != before[2]


def test_a_cell_that_runs_code_changed_during_the_run_fails(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "storebench", ignore=BEING_COMPILED)
    script = tmp_path / "edited.py"
    script.write_text(EDITED_MEANWHILE)
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "ok None"
    assert second.startswith("failed the cell ran other code than its runner")


def test_rounds_cannot_be_added_to_records_of_other_code(tmp_path: Path, bench: Bench) -> None:
    scenario = tmp_path / "tiny.toml"
    scenario.write_text(TINY)
    words = ("bench", scenario, "--out", tmp_path / "out", "--stores", bench.stores)
    assert bench.cli(*words).returncode == 0
    records = tmp_path / "out" / "records.jsonl"
    records.write_text(records.read_text().replace(code_digest(package_folder()), "0" * 32))
    done = bench.cli(*words, "--resume", "--replicates", "2")
    assert done.returncode == 2
    assert "its records are of other code" in done.stderr
    assert len(records.read_text().splitlines()) == 1


def test_the_digest_depends_on_names_and_contents_of_code_only(tmp_path: Path) -> None:
    digests = []
    for number, files in enumerate(
        [{"a.py": "x"}, {"a.py": "y"}, {"b.py": "x"}, {"a.py": "x", "k.so": "x"}, {"a.py": "x", "r.md": "x"}]
    ):
        package = tmp_path / str(number) / "package"
        package.mkdir(parents=True)
        for name, text in files.items():
            (package / name).write_text(text)
        digests.append(code_digest(package))
    assert len(set(digests)) == 4
    assert digests[4] == digests[0]
