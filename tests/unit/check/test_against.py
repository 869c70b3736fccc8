"""Another revision beside the working tree: each side runs its own code and proves it; slow-downs are seen."""

import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from storebench.check.against import Revision, SideOptions, Sides, run_against
from storebench.check.judge import CellState, judge
from storebench.check.policy import Policy
from storebench.check.revisions import checked_out, find_repository
from storebench.check.side_code import storebench_sides
from storebench.check.sides import read_side
from storebench.cli.main import app
from storebench.errors import CellFailedError, OutputError, UsageError
from storebench.probes.code import code_digest
from storebench.record.lines import read_records
from storebench.record.schema import Record
from storebench.run.scenario import Scenario
from tests.support.quick_cli import storebench as quick_storebench
from tests.support.revision_tools import (
    BEING_COMPILED,
    ROOT,
    clone_here,
    commit,
    copy_cells,
    git,
    installed,
    plant,
    plugin_repository,
    storebench,
)

PLUGIN = ROOT / "tests" / "support" / "planted_plugin.py"
LABELS = {
    "reader": "mnist/lmdb/any/processes-0/batch-16/none-emulated:0.01",
    "codec": "mnist/png/any/processes-0/batch-16/none-emulated:0.01",
    "loader": "mnist/memory:python/any/threads-2/batch-16/none-emulated:0.01",
    "loop": "mnist/memory:python/any/processes-0/batch-16/none-emulated:0.02",
}
CONTROL = "mnist/memory:python/any/processes-0/batch-16/none-emulated:0.01"
HEAD = """
name = "tiny"
replicates = {replicates}
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
{rest}
"""
EMULATED = 'compute = "emulated:0.01"\npasses = 8'
PLACES = (
    f'backends = ["lmdb", "memory:python"]\n{EMULATED}',
    f'backends = ["png"]\n{EMULATED}',
    f'backends = ["memory:python"]\nloader = "threads"\nworkers = 2\n{EMULATED}',
    'backends = ["memory:python"]\ncompute = "emulated:0.02"\npasses = 8',
)
"""Emulated computing measures no ceilings, which take longer than these cells. Several passes take long enough that a
busy machine does not hide a slow-down."""
pytestmark = pytest.mark.skipif(not git(ROOT, "rev-parse", "HEAD"), reason="needs a git checkout")


def write_scenario(path: Path, *matrices: str, replicates: int = 1) -> Path:
    path.write_text(
        HEAD.format(replicates=replicates) + "".join(MATRIX.format(rest=matrix) for matrix in matrices)
    )
    return path


def verdicts(out: Path) -> list[tuple[str, CellState]]:
    """Return the label and the verdict of every cell of a comparison."""
    sides = read_side(out / "baseline", baseline=True), read_side(out / "contender", baseline=False)
    return [(result.label, result.state) for result in judge(*sides, Policy())]


def records_of(out: Path) -> tuple[list[Record], list[Record]]:
    return read_records(out / "baseline"), read_records(out / "contender")


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


def compare_with_planted(
    checkout: Path, out: Path, matrices: Sequence[str], plants: Callable[[Path], None]
) -> None:
    """Plant slow-downs in a checkout's package, commit them, and compare the two revisions; check whose code ran."""
    package = checkout / "storebench"
    copy_cells(package / "worker" / "launch.py")
    before = commit(checkout, "Let cells be copies of their side's process")
    plants(package)
    after = commit(checkout, "Sleep")
    tiny, stores = write_scenario(out.parent / "tiny.toml", *matrices, replicates=5), out.parent / "stores"
    done = storebench(checkout, "bench", tiny, "--against", "HEAD~1", "--out", out, "--stores", stores)
    assert done.returncode == 0, done.stderr
    assert f"judges {before[:12]} of {checkout} against the working tree" in done.stderr
    sides = records_of(out)
    assert [{record.code.commit for record in side if record.code} for side in sides] == [{before}, {after}]
    assert {record.code.digest for record in sides[1] if record.code} == {code_digest(package)}
    assert {record.code for record in sides[0]}.isdisjoint({record.code for record in sides[1]})


def commented(checkout: Path) -> None:
    """Change a comment of a checkout's package, so that its code is another."""
    with (checkout / "storebench" / "units.py").open("a") as file:
        file.write("# changed\n")


def slow_reader(package: Path) -> None:
    plant(package / "formats" / "lmdb" / "get.py", "LmdbGetReader.fetch_into", 0.01)


def slow_everywhere(package: Path) -> None:
    """Slow down a reader, a codec, a loader, and the loop where a step computes for 20 ms."""
    slow_reader(package)
    plant(package / "codecs" / "compressed.py", "PngCodec.decode_into", 0.001)
    plant(package / "loading" / "threads.py", "ThreadLane.take", 0.01)
    loop = package / "training" / "loop.py"
    slower = loop.read_text().replace(
        "step.compute()\n",
        'step.compute()\n        if vars(step).get("_seconds") == 0.02 / 1000:\n            time.sleep(0.01)\n',
    )
    loop.write_text(slower)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_slow_downs_are_seen_where_they_are(untouched: Path, tmp_path: Path) -> None:
    """One revision slows down a reader, a codec, a loader and the loop; each is seen, and in its own cell."""
    out = tmp_path / "out"
    compare_with_planted(untouched, out, PLACES, slow_everywhere)
    states = dict(verdicts(out))
    assert {place: states[label] for place, label in LABELS.items()} == dict.fromkeys(LABELS, CellState.WORSE)
    assert {*states} == {*LABELS.values(), CONTROL}
    assert states[CONTROL] is not CellState.WORSE
    checked = quick_storebench(untouched, "check", out / "baseline", out / "contender")
    assert checked.returncode == 1, checked.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_slow_down_in_a_plugin_is_seen_in_its_repository(tmp_path: Path) -> None:
    repository = plugin_repository(tmp_path / "plugin", PLUGIN)
    site = installed(tmp_path / "site", repository)
    copy_cells(repository / "planted_plugin.py")
    before = commit(repository, "Let cells be copies of their side's process")
    plant(repository / "planted_plugin.py", "FlatReader.fetch_into", 0.01)
    tiny = write_scenario(repository / "tiny.toml", 'backends = ["planted"]\n' + EMULATED, replicates=5)
    out = tmp_path / "out"
    done = storebench(
        repository,
        *("bench", tiny, "--against", "HEAD", "--out", out, "--stores", tmp_path / "stores"),
        path=str(site),
    )
    assert done.returncode == 0, done.stderr
    assert f"storebench-planted in {repository}: revision {before[:12]}" in done.stderr
    assert "the scenario tiny.toml is new" in done.stderr
    assert [state for _, state in verdicts(out)] == [CellState.WORSE]
    first, second = records_of(out)
    plugins = [{record.code.plugin for record in side if record.code} for side in (first, second)]
    digest = code_digest(repository / "planted_plugin.py")
    assert plugins[1] == {f"storebench-planted {before}+changes {digest}"}
    assert {one.rpartition(" ")[0] for one in plugins[0]} == {f"storebench-planted {before}"}
    assert plugins[0] != plugins[1]
    assert {record.code.digest for record in first + second if record.code} == {
        code_digest(ROOT / "storebench")
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_dropped_and_shrunk_cells_are_missing_elsewhere(untouched: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "storebench", site / "storebench", ignore=BEING_COMPILED)
    tiny = untouched / "scenarios" / "tiny.toml"
    write_scenario(tiny, f'backends = ["lmdb", "memory:python"]\n{EMULATED}')
    copy_cells(untouched / "storebench" / "worker" / "launch.py")
    before = commit(untouched, "A scenario, and cells that are copies of their side's process")
    shrunk = f'backends = ["lmdb"]\nmax_steps = 2\n{EMULATED}'
    write_scenario(tiny, f'backends = ["memory:python"]\n{EMULATED}', shrunk)
    words = ("bench", tiny, "--against", "HEAD", "--out", tmp_path / "out", "--stores", tmp_path / "stores")
    refused = storebench(tmp_path, *words, path=str(site))
    assert refused.returncode == 2
    assert "installed, not checked out" in refused.stderr
    assert "--repository PATH" in refused.stderr
    done = storebench(tmp_path, *words, "--repository", untouched, path=str(site))
    assert done.returncode == 0, done.stderr
    lmdb = LABELS["reader"]
    assert f"the scenario here lacks a cell of the revision's: {lmdb}" in done.stderr
    assert f"the scenario here has a new cell: {lmdb}" in done.stderr
    found = verdicts(tmp_path / "out")
    assert sorted(found) == sorted(
        [(lmdb, CellState.MISSING), (lmdb, CellState.NEW), (CONTROL, CellState.INCONCLUSIVE)]
    )
    first, second = records_of(tmp_path / "out")
    assert {record.code.commit for record in first if record.code} == {before}
    assert {record.code.commit for record in second if record.code} == {before}
    assert {record.code.digest for record in first + second if record.code} == {
        code_digest(untouched / "storebench")
    }


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario) -> tuple[Sides, list[str]]:
    """Compare one format of HEAD and of a working tree with another comment; return the run folders and what was said.

    A second process tries to write into the same folders meanwhile, and what it says is among that.
    """
    folder, told = tmp_path_factory.mktemp("same"), list[str]()
    path, out = write_scenario(folder / "tiny.toml", PLACES[3]), folder / "out"
    checkout = clone_here(folder / "clone")
    commented(checkout)

    def tell(line: str) -> None:
        told.append(line)
        if line.startswith("1 of 2 pairs of replicates: "):
            for words in (
                ("--against", "HEAD", "--out", out),
                ("--resume", "--out", out / "baseline"),
                ("--resume", "--out", out / "contender"),
            ):
                told.append(quick_storebench(checkout, "bench", path, *words).stderr)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(folder))
        only = SideOptions(only=["memory"])
        revision = Revision(ref="HEAD", repository=checkout)
        sides = run_against(revision, scenario, out, folder / "stores", options=only, say=tell)
    assert "storebench-against-" not in git(checkout, "worktree", "list")
    assert not list(folder.glob("storebench-against-*"))
    return sides, told


def test_both_sides_run_every_replicate_side_by_side(
    same: tuple[Sides, list[str]], scenario: Scenario
) -> None:
    sides, told = same
    first, second = (read_records(folder) for folder in (sides.baseline, sides.contender))
    assert [one.replicate for one in first] == [one.replicate for one in second] == [0, 1]
    starts = sorted([(one.started_utc, "a") for one in first] + [(one.started_utc, "b") for one in second])
    assert "".join(side for _, side in starts) == "abba"
    assert sides.commit == git(sides.repository, "rev-parse", "HEAD")
    assert (
        told[0] == f"storebench in {sides.repository}: revision {sides.commit[:12]} against the working tree"
    )
    (result,) = judge(
        read_side(sides.baseline, baseline=True), read_side(sides.contender, baseline=False), Policy()
    )
    assert (result.replicates, result.reason) == (
        (2, 2),
        "2 replicates, a verdict needs 5; 3 more replicates on each side would decide it",
    )
    assert result.low is not None
    again = Revision(ref="HEAD", repository=sides.repository)
    with pytest.raises(OutputError, match="already a run here"):
        run_against(again, scenario, sides.baseline.parent, sides.baseline.parent / "stores")


def test_equal_code_ends_at_once_without_a_measurement(tmp_path: Path) -> None:
    checkout, out = clone_here(tmp_path / "clone"), tmp_path / "out"
    path = write_scenario(tmp_path / "tiny.toml", PLACES[3])
    (checkout / "CHANGELOG.md").write_text("One more line.\n")
    commit(checkout, "Change a document")
    done = quick_storebench(checkout, "bench", path, "--against", "HEAD~1", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "nothing to measure" in done.stderr
    assert not list(out.rglob("records.jsonl"))
    checked = quick_storebench(checkout, "check", out / "baseline", out / "contender")
    assert (checked.returncode, "the same code" in checked.stdout) == (0, True), checked.stderr


def test_a_comparison_holds_its_folder_and_both_runs_in_it(same: tuple[Sides, list[str]]) -> None:
    sides, told = same
    refused = [line for line in told if "another process is running it (pid" in line]
    for folder, line in zip((sides.baseline.parent, sides.baseline, sides.contender), refused, strict=True):
        assert line.startswith(f"storebench: {folder}: another process")
        assert len(line.splitlines()) == 1


def test_a_record_of_other_code_is_refused(same: tuple[Sides, list[str]]) -> None:
    sides, _ = same
    both = [read_records(folder)[0] for folder in (sides.baseline, sides.contender)]
    codes = [one.code for one in both if one.code is not None]
    assert len(codes) == 2
    record = both[1]
    with checked_out(sides.repository, sides.commit, print) as (worktree, scratch):
        sides_code = storebench_sides(sides.repository, worktree, scratch, print)
        for side, name, code in zip(sides_code, ("baseline", "contender"), codes, strict=True):
            record = dataclasses.replace(record, code=code)
            side.check(name, [record])
            other = dataclasses.replace(record, code=dataclasses.replace(code, digest="0" * 40))
            with pytest.raises(CellFailedError, match=f"the {name} side ran other code: digest '0000"):
                side.check(name, [other])
        # A commit that somebody makes in the working tree during the run changes no code.
        baseline, side = sides_code
        side.check("contender", [dataclasses.replace(record, code=dataclasses.replace(code, commit="0"))])
        elsewhen = dataclasses.replace(record, code=dataclasses.replace(codes[0], commit="0" * 40))
        with pytest.raises(CellFailedError, match="the baseline side ran other code: commit '0000"):
            baseline.check("baseline", [elsewhen])
        with pytest.raises(CellFailedError, match="ran other code: digest 'unknown'"):
            side.check("contender", [dataclasses.replace(record, code=None)])


def test_a_check_fails_records_that_are_not_of_their_sides_code(
    same: tuple[Sides, list[str]], tmp_path: Path
) -> None:
    sides, _ = same
    folder = shutil.copytree(sides.contender, tmp_path / "contender")
    first, *others = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    digest = json.loads(first)["code"]["digest"]
    (folder / "records.jsonl").write_text(first.replace(digest, "0" * 32) + "".join(others))
    baseline = read_side(sides.baseline, baseline=True)
    [result] = judge(baseline, read_side(folder, baseline=False), Policy())
    assert (result.state, result.reason) == (
        CellState.FAILED,
        f"it ran other code than its side: digest {'0' * 32}, not {digest}",
    )
    (folder / "against.json").unlink()
    [result] = judge(baseline, read_side(folder, baseline=False), Policy())
    assert (result.state, result.reason) == (CellState.FAILED, "its records are of different code")


def test_the_current_folders_repository_is_chosen_where_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clone: Path
) -> None:
    plugin = plugin_repository(tmp_path / "plugin", PLUGIN)
    other = tmp_path / "experiments"
    other.mkdir()
    git(other, "init", "--quiet")
    monkeypatch.chdir(clone / "docs")
    assert find_repository(None, {"lmdb"}).root == clone
    (plugin / "tests").mkdir()
    monkeypatch.chdir(plugin / "tests")
    found = find_repository(None, {"lmdb", "planted"})
    assert (found.root, found.plugin, list(found.formats)) == (plugin, "storebench-planted", ["planted"])
    with pytest.raises(UsageError, match="uses no code from it: storebench-planted registers planted"):
        find_repository(None, {"lmdb"})
    with pytest.raises(UsageError, match="uses no code from it"):
        find_repository(plugin, {"lmdb"})
    assert find_repository(clone, {"lmdb"}).root == clone
    monkeypatch.chdir(other)
    assert find_repository(None, {"lmdb"}).root == ROOT
    with pytest.raises(UsageError, match="neither storebench nor a package with"):
        find_repository(other, {"lmdb"})
    with pytest.raises(UsageError, match="not in a git repository"):
        find_repository(tmp_path, {"lmdb"})


def test_an_interrupt_leaves_no_worktree() -> None:
    made: list[Path] = []

    def interrupted() -> None:
        with checked_out(ROOT, git(ROOT, "rev-parse", "HEAD"), print) as (worktree, _):
            made.append(worktree)
            assert str(worktree) in git(ROOT, "worktree", "list")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not made[0].exists()
    assert str(made[0]) not in git(ROOT, "worktree", "list")


def test_an_unknown_revision_is_one_line(tmp_path: Path, scenario: Scenario) -> None:
    for ref in ("no-such-branch", "--help"):
        with pytest.raises(UsageError, match="git knows no revision"):
            run_against(Revision(ref=ref, repository=ROOT), scenario, tmp_path / "out", tmp_path / "stores")
    with pytest.raises(UsageError, match="not in a git repository"):
        run_against(
            Revision(ref="HEAD", repository=tmp_path), scenario, tmp_path / "out", tmp_path / "stores"
        )


def test_only_names_cells_backends_formats_or_datasets(scenario: Scenario) -> None:
    memory, lmdb = scenario.cells()
    for name in (memory.cell_id, "memory:python", "memory"):
        assert scenario.chosen([name]) == [memory]
    assert scenario.chosen(["mnist"]) == scenario.chosen(["lmdb", "memory"]) == [memory, lmdb]
    assert scenario.chosen(["hdf5"]) == []


def test_only_the_chosen_format_is_built_run_and_judged(same: tuple[Sides, list[str]]) -> None:
    sides, told = same
    label = CONTROL.replace("batch-16", "batch-64")
    assert [found for found, _ in verdicts(sides.baseline.parent)] == [label]  # and no cell is missing or new
    stores = [str(path) for path in (sides.baseline.parent.parent / "stores").rglob("manifest.json")]
    assert stores
    assert not [path for path in stores if "lmdb" in path]
    assert not [line for line in told if "lmdb" in line]


def test_only_refuses_every_name_that_no_cell_has() -> None:
    words = ["bench", "gate", "--against", "HEAD", "--dry-run", "--only", "lmdb", "--only", "ldmb"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(
        "storebench: --only: no cell is called 'ldmb'. Use one of: cifar10, files, hdf5,"
    )
    assert "write a scenario (docs/scenarios.md)" in done.stderr


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_budget_decides_the_rounds_and_says_what_another_takes(
    untouched: Path, tmp_path: Path, scenario: Scenario
) -> None:
    copy_cells(untouched / "storebench" / "worker" / "launch.py")
    commit(untouched, "Let cells be copies of their side's process")
    commented(untouched)
    told: list[str] = []
    options = SideOptions(only=["memory"], budget_s=0.1)  # less than any round takes
    sides = run_against(
        Revision(ref="HEAD", repository=untouched),
        scenario,
        tmp_path / "out",
        tmp_path / "stores",
        options=options,
        say=told.append,
    )
    for folder in (sides.baseline, sides.contender):
        assert [record.replicate for record in read_records(folder)] == [0, 1, 2, 3, 4]
    assert told[-1].startswith("5 rounds took ")
    assert "; another one takes about " in told[-1]
    pattern = r"replicate pair \d, after \d+\.\d of \S+ min: mnist/memory:python"
    assert [bool(re.match(pattern, line)) for line in told].count(True) == 5


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--budget", "8 min"], "storebench: --budget needs --against; a scenario states its own"),
        (["--budget", "soon", "--against", "HEAD"], "storebench: --budget: 'soon' is no time"),
    ],
)
def test_a_budget_that_makes_no_sense_is_one_line(words: list[str], line: str) -> None:
    done = CliRunner().invoke(app, ["bench", "gate", *words])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(line)
