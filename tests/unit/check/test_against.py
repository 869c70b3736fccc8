"""Another revision beside the working tree: each side runs its own code and proves it; slow-downs are seen."""

import ctypes
import itertools
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from storebench.check.against import Sides, run_against
from storebench.check.judge import CellResult, CellState, judge
from storebench.check.side_code import Revision, checked_out, find_root, side_codes, side_environment
from storebench.check.sides import read_side
from storebench.cli.main import app
from storebench.errors import OutputError, UsageError
from storebench.probes.code import code_digest
from storebench.record.lines import read_records
from storebench.run.scenario import Scenario
from storebench.system.kernel import LIBRARY, load_kernel
from tests.docs.doc_files import fences
from tests.support.quick_cli import storebench as quick_storebench
from tests.support.revision_tools import ROOT, clone_here, commit, git, plant, storebench

READER = "mnist/lmdb/any/processes-0/batch-16/none-emulated:0.01"
MEMORY = "mnist/memory:python/any/processes-0/batch-64/none-emulated:0.01"
HEAD = """
name = "tiny"
replicates = 1
test_limit = 0
"""
MATRIX = """
[[matrix]]
dataset = "mnist"
limit = 128
batch_size = 16
synthetic = true
model = "none"
threads = 1
passes = 8
{rest}
"""
EMULATED = 'compute = "emulated:0.01"'
"""Emulated computing measures no ceilings, which take longer than these cells. Several passes take long enough that a
busy machine does not hide a slow-down."""
STORED = f'backends = ["memory:python", "lmdb"]\n{EMULATED}'
IN_THE_LOOP = 'backends = ["memory:python"]\ncompute = "emulated:0.02"'
pytestmark = pytest.mark.skipif(not git(ROOT, "rev-parse", "HEAD"), reason="needs a git checkout")


def write_scenario(path: Path, *matrices: str) -> Path:
    path.write_text(HEAD + "".join(MATRIX.format(rest=matrix) for matrix in matrices))
    return path


def verdicts(out: Path) -> list[CellResult]:
    return judge(read_side(out / "baseline", baseline=True), read_side(out / "contender", baseline=False))


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    matrix = {
        "dataset": "mnist",
        "limit": 128,
        "synthetic": True,
        "model": "none",
        "compute": "emulated:0.01",
        "backends": ["memory:python", "lmdb"],
    }
    return Scenario.model_validate({"name": "tiny", "replicates": 2, "test_limit": 0, "matrix": [matrix]})


def commented(checkout: Path) -> None:
    """Change a comment of a checkout's package, so that its code is another."""
    with (checkout / "storebench" / "units.py").open("a") as file:
        file.write("# changed\n")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_slow_down_is_seen_and_no_edit_of_the_scenario_hides_it(untouched: Path, tmp_path: Path) -> None:
    package, tiny = untouched / "storebench", untouched / "scenarios" / "tiny.toml"
    write_scenario(tiny, STORED)
    before = commit(untouched, "Add a scenario")
    plant(package / "formats" / "lmdb" / "get.py", "LmdbGetReader.fetch_into", 0.01)
    write_scenario(tiny, IN_THE_LOOP)
    after = commit(untouched, "Sleep")
    out = tmp_path / "out"
    words = ("--out", out, "--stores", tmp_path / "stores", "--budget", "0.1 s")  # less than any round takes
    done = storebench(untouched, "bench", tiny, "--against", "HEAD~1", *words)
    assert done.returncode == 0, done.stderr
    for line in (
        f"judges {before[:12]} of {untouched} against the working tree",
        "the scenario was edited since the revision: both sides run the revision's version",
        "no time for mnist/",
        "5 rounds took ",
        "; another one takes about ",
    ):
        assert line in done.stderr
    assert len(re.findall(r"replicate pair \d+, after [^:]+: mnist/", done.stderr)) == 2 + 4
    first, second = read_records(out / "baseline"), read_records(out / "contender")
    assert [{r.code.commit for r in side if r.code} for side in (first, second)] == [{before}, {after}]
    assert {r.code.digest for r in second if r.code} == {code_digest(package)}
    gated = [
        [(record.started_utc, side) for record in records if record.cell.backend.format == "lmdb"]
        for side, records in zip("ab", (first, second), strict=True)
    ]
    assert "".join(side for _, side in sorted(itertools.chain(*gated))) == "baabbaabba"
    states = {result.label: result.state for result in verdicts(out)}
    assert states == {READER: CellState.WORSE, MEMORY.replace("batch-64", "batch-16"): CellState.NOT_GATED}
    assert quick_storebench(untouched, "check", out / "baseline", out / "contender").returncode == 1


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_functions_of_a_library_are_compared_in_its_repository(tmp_path: Path) -> None:
    library, out = tmp_path / "library", tmp_path / "out"
    module = library / "src" / "photo_readers" / "by_lmdb.py"
    module.parent.mkdir(parents=True)
    [example] = [fence.text for fence in fences(ROOT / "docs" / "ci.md") if fence.language == "python"]
    module.write_text(example)
    (module.parent / "__init__.py").touch()
    backend = "photo_readers.by_lmdb:make_reader"
    write_scenario(library / "gate.toml", f'backends = ["{backend}", "memory:python"]\n{EMULATED}')
    git(library, "init", "--quiet")
    before = commit(library, "Read by LMDB")
    module.write_text(example.replace("[txn.get", "[time.sleep(0.002) or txn.get") + "\nimport time\n")
    places = os.pathsep.join([str(library / "src"), os.environ.get("PYTHONPATH", str(ROOT))])
    words = (
        "--against",
        "HEAD",
        "--out",
        out,
        "--stores",
        tmp_path / "stores",
        "--only",
        "photo_readers.by_lmdb",
    )
    done = storebench(library, "bench", "gate.toml", *words, "--rounds", "5", PYTHONPATH=places)
    assert done.returncode == 0, done.stderr
    assert f"photo_readers in {library}: revision {before[:12]} against the working tree" in done.stderr
    first, second = read_records(out / "baseline"), read_records(out / "contender")
    assert len({r.code.digest for r in first + second if r.code}) == 1
    plugins = [{r.code.plugin for r in side if r.code} for side in (first, second)]
    digest = code_digest(module.parent)
    assert [plugin.split()[0] for [plugin] in plugins] == ["photo_readers"] * 2
    assert [plugin.split()[2] == digest for [plugin] in plugins] == [False, True]
    assert [result.state for result in verdicts(out)] == [CellState.WORSE]


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario) -> tuple[Sides, list[str]]:
    """Compare one format of HEAD and of a working tree with another comment; return the run folders and what was said.

    A second process tries to write into the same folders meanwhile, and what it says is among that.
    """
    folder, told = tmp_path_factory.mktemp("same"), list[str]()
    path, out = write_scenario(folder / "tiny.toml", IN_THE_LOOP), folder / "out"
    checkout = clone_here(folder / "clone")
    commented(checkout)

    def tell(line: str) -> None:
        told.append(line)
        if line.startswith("replicate pair 1, "):
            for words in (
                ("--against", "HEAD", "--out", out),
                ("--resume", "--out", out / "baseline"),
                ("--resume", "--out", out / "contender"),
            ):
                told.append(quick_storebench(checkout, "bench", path, *words).stderr)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(folder))
        patched.chdir(checkout)
        revision = Revision.of("HEAD", scenario.cells())
        sides = run_against(revision, scenario, out, folder / "stores", only=["memory"], say=tell)
    assert "storebench-against-" not in git(checkout, "worktree", "list")
    assert not list(folder.glob("storebench-against-*"))
    return sides, told


@pytest.mark.full
def test_both_sides_run_every_replicate_side_by_side(
    same: tuple[Sides, list[str]], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides, told = same
    first, second = (read_records(folder) for folder in (sides.baseline, sides.contender))
    assert [r.replicate for r in first] == [r.replicate for r in second] == [0, 1]
    starts = sorted([(r.started_utc, "a") for r in first] + [(r.started_utc, "b") for r in second])
    assert "".join(side for _, side in starts) == "abba"
    checkout = sides.baseline.parent.parent / "clone"
    before = git(checkout, "rev-parse", "HEAD")
    assert told[0] == f"storebench in {checkout}: revision {before[:12]} against the working tree"
    (result,) = verdicts(sides.baseline.parent)
    assert (result.label, result.replicates) == (MEMORY, (2, 2))
    assert "2 replicates, a verdict needs 5" in result.reason
    assert result.ratio is not None
    assert result.ratio.low is not None
    stores = [str(path) for path in (sides.baseline.parent.parent / "stores").rglob("manifest.json")]
    assert stores
    assert not [text for text in (*stores, *told) if "lmdb" in text], "only the chosen format is built"
    monkeypatch.chdir(checkout)
    with pytest.raises(OutputError, match="already a run here"):
        run_against(
            Revision.of("HEAD", []), scenario, sides.baseline.parent, sides.baseline.parent / "stores"
        )


@pytest.mark.full
def test_a_comparison_holds_its_folder_and_both_runs_in_it(same: tuple[Sides, list[str]]) -> None:
    sides, told = same
    refused = [line for line in told if "another process is running it" in line]
    for folder, line in zip((sides.baseline.parent, sides.baseline, sides.contender), refused, strict=True):
        assert line.startswith(f"storebench: {folder}: another process")


def test_equal_code_ends_at_once_without_a_measurement(tmp_path: Path) -> None:
    checkout, out = clone_here(tmp_path / "clone"), tmp_path / "out"
    path = write_scenario(tmp_path / "tiny.toml", IN_THE_LOOP)
    (checkout / "CHANGELOG.md").write_text("One more line.\n")
    commit(checkout, "Change a document")
    done = quick_storebench(checkout, "bench", path, "--against", "HEAD~1", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "nothing to measure" in done.stderr
    assert not list(out.rglob("records.jsonl"))
    checked = quick_storebench(checkout, "check", out / "baseline", out / "contender")
    assert (checked.returncode, "the same code" in checked.stdout) == (0, True), checked.stderr


def test_nothing_but_its_own_package_is_imported_by_a_side_and_its_cells(
    untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{untouched}{os.pathsep}{tmp_path}")  # as an editable install does
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    cell = "import json, lmdb, storebench; print(json.dumps([lmdb.__file__, storebench.__file__]))"
    side = (
        "import subprocess, sys; from storebench.probes.code import cell_environment; "
        f"subprocess.run([sys.executable, '-P', '-c', {cell!r}], env=cell_environment(), check=True)"
    )
    with checked_out(untouched, git(untouched, "rev-parse", "HEAD"), print) as (worktree, scratch):
        trees = worktree, untouched
        codes = side_codes(untouched, worktree, scratch)
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
    assert not scratch.exists()
    assert str(worktree) not in git(untouched, "worktree", "list")


@pytest.mark.full
@pytest.mark.skipif(load_kernel() is None, reason="the kernel is not built")
def test_a_revision_has_the_kernel_of_its_own_source(tmp_path: Path) -> None:
    checkout = clone_here(tmp_path / "clone")
    source, library = (checkout / "storebench" / "system" / name for name in ("kernel.c", LIBRARY.name))
    text = source.read_text(encoding="utf-8")
    source.write_text(text + "int answer(void) { return 42; }\n", encoding="utf-8")
    older = commit(checkout, "Another kernel")
    with pytest.raises(UsageError, match="older than its source"), checked_out(checkout, older, print):
        pass
    source.write_text(text, encoding="utf-8")
    library.touch()
    with checked_out(checkout, older, print) as (worktree, _):
        built = worktree / library.relative_to(checkout)
        assert ctypes.CDLL(str(built)).answer() == 42
    with checked_out(checkout, "HEAD~1", print) as (worktree, _):
        built = worktree / library.relative_to(checkout)
        assert built.read_bytes() == library.read_bytes()


def test_the_current_folders_checkout_is_compared_if_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clone: Path
) -> None:
    monkeypatch.chdir(clone / "docs")
    assert find_root()[0] == clone
    git(tmp_path, "init", "--quiet")
    monkeypatch.chdir(tmp_path)
    assert find_root()[0] == ROOT
    monkeypatch.setattr("storebench.check.side_code.package_folder", lambda: tmp_path)
    with pytest.raises(UsageError, match="installed, not checked out"):
        find_root()


def test_an_interrupt_leaves_no_worktree() -> None:
    made: list[Path] = []

    def interrupted() -> None:
        with checked_out(ROOT, git(ROOT, "rev-parse", "HEAD"), print) as (worktree, _):
            made.append(worktree)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not made[0].exists()
    assert str(made[0]) not in git(ROOT, "worktree", "list")


def planned(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["bench", "gate", "--dry-run", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [(("--budget", "4 min"), "40 replicates, as many as fit into 4 min;"), ((), "5 replicates;")],
)
def test_a_dry_run_plans_the_rounds_of_each_side(budget: tuple[str, ...], rounds: str) -> None:
    code, out, err = planned("--only", "memory", "--against", "HEAD", *budget)
    assert code == 0, err
    assert f" x {rounds}" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--against", "no-such-branch"), "git knows no revision 'no-such-branch'"),
        (("--against", "--help"), "git knows no revision '--help'"),
        (("--against", "HEAD", "--resume"), "a comparison with a revision cannot be resumed"),
        (("--against", "HEAD", "--timeout", "60"), "--timeout is not for --against"),
        (("--against", "HEAD", "--node", "1"), "--nodes is not for --against"),
        (("--against", "HEAD", "--only", "ldmb"), "--only: no cell is called 'ldmb'"),
        (("--budget", "soon", "--against", "HEAD"), "--budget: 'soon' is no time"),
    ],
)
def test_what_is_not_for_a_comparison_is_refused_in_one_line(words: tuple[str, ...], error: str) -> None:
    code, out, err = planned(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert error in err


def test_only_names_cells_backends_formats_or_datasets(scenario: Scenario) -> None:
    memory, lmdb = scenario.cells()
    for name in (memory.cell_id, "memory:python", "memory"):
        assert scenario.chosen([name]) == [memory]
    assert scenario.chosen(["mnist"]) == scenario.chosen(["lmdb", "memory"]) == [memory, lmdb]
    assert scenario.chosen(["hdf5"]) == []
