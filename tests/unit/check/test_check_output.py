"""What a check writes: five formats, and the committed baseline."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from tests.support.planted_sides import CELLS, run_of, write_sessions


def run(*arguments: Any) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    first = write_sessions(tmp_path / "a", seed=1, cells=CELLS[:4])
    slower = {CELLS[0]: 1.4}
    second = write_sessions(tmp_path / "b", seed=2, slower=slower, cells=CELLS[:3] + CELLS[4:])
    return first, second


KILLED_AT_THE_RENAME = """
import os, signal, sys
from storebench.cli.main import main
def die(event, arguments):
    if event == "os.rename" and os.fspath(arguments[1]).endswith("baseline.json"):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
main()
"""

LOST = ("--allow-missing", CELLS[3])


def test_json_holds_everything(sides: tuple[Path, Path]) -> None:
    code, out, err = run(*sides, *LOST, "--format", "json")
    raw = json.loads(out)
    assert raw["outcome"]["exit_code"] == code == 1
    by_id = {one["cell_id"]: one for one in raw["cells"]}
    assert by_id[CELLS[0]]["state"] == "worse"
    assert by_id[CELLS[3]]["state"] == "missing"
    assert by_id[CELLS[4]]["state"] == "new"
    assert by_id[CELLS[0]]["low"] < by_id[CELLS[0]]["ratio"] < by_id[CELLS[0]]["high"]
    assert CELLS[0] in err


def test_junit_counts_failures_errors_and_skipped(sides: tuple[Path, Path]) -> None:
    _, out, _ = run(*sides, *LOST, "--format", "junit")
    suite = ET.fromstring(out)
    assert suite.get("tests") == "5"
    assert suite.get("failures") == "1"
    assert suite.get("errors") == "1"
    (case,) = [one for one in suite if one.find("failure") is not None]
    assert case.get("name") == CELLS[0]
    assert suite.get("timestamp")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == "worse"
    figures = {one.get("name"): one.get("value") or "" for one in case.iter("property")}
    assert 1.3 < float(figures["ratio"]) < 1.5
    assert float(figures["ratio_low"]) < float(figures["ratio"]) < float(figures["ratio_high"])
    assert figures["basis"] == "seconds, adjusted by the calibration"
    # 1.4 ms a round: a trend of it is the trend of the cell.
    assert 1.2e-3 < float(case.get("time") or 0) < 1.6e-3
    assert float(suite.get("time") or 0) > 1e-3


def test_an_undecided_check_is_a_warning_in_every_format(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=4, noise=0.06, cells=CELLS[:1])
    second = write_sessions(tmp_path / "b", seed=3, noise=0.06, cells=CELLS[:1])
    code, out, _ = run(first, second, "--format", "github")
    assert code == 4
    assert "::error" not in out
    assert out.splitlines()[-1].startswith("::warning title=storebench check::inconclusive")
    _, out, _ = run(first, second, "--format", "junit")
    suite = ET.fromstring(out)
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "1")
    (skipped,) = suite.iter("skipped")
    message = skipped.get("message") or ""
    assert message.startswith("inconclusive: a slow-down of 8% is not ruled out; ")
    assert "more replicates on each side would decide it" in message
    _, out, _ = run(first, second)
    assert "inconclusive, 1 of 1 cell:" in out


def test_the_last_line_is_printed_once(sides: tuple[Path, Path]) -> None:
    _, out, err = run(*sides)
    assert "exit code 5" in out
    assert not err
    _, out, err = run(*sides, "--format", "json")
    assert err.startswith("storebench check: missing")


def test_github_annotates_what_somebody_should_see(sides: tuple[Path, Path]) -> None:
    _, out, _ = run(*sides, "--format", "github")
    lines = out.splitlines()
    assert any(line.startswith(f"::error title={CELLS[0]}::worse") and "%25" in line for line in lines)
    assert any(line.startswith(f"::error title={CELLS[3]}::missing") for line in lines)
    assert not any("within noise" in line for line in lines[:-1])


def test_markdown_shows_the_regression_and_folds_the_rest(sides: tuple[Path, Path]) -> None:
    _, out, _ = run(*sides, "--format", "markdown")
    shown, _, folded = out.partition("<details>")
    assert f"| {CELLS[0]} | worse |" in shown
    assert CELLS[1] not in shown or CELLS[1] not in folded


def test_several_formats_go_to_several_files(sides: tuple[Path, Path], tmp_path: Path) -> None:
    junit, markdown = tmp_path / "check.xml", tmp_path / "check.md"
    out = ["--format", "junit", "--out", junit, "--format", "markdown", "--out", markdown, "--format", "text"]
    code, printed, _ = run(*sides, *LOST, *out)
    assert code == 1
    assert ET.fromstring(junit.read_text()).tag == "testsuite"
    assert markdown.read_text().startswith("### storebench check")
    assert printed.startswith("cell")
    assert run(*sides, "--format", "text", "--out", tmp_path / "a.txt", "--out", tmp_path / "b.txt")[0] == 2
    assert run(*sides, "--out", tmp_path / "absent" / "x.txt")[0] == 2


def test_the_first_baseline_is_written_and_read_back(sides: tuple[Path, Path]) -> None:
    first, _ = sides
    target = Path("results/baselines/ci")
    assert run(target, first)[0] == 3
    assert run(target, first, "--update")[0] == 0
    code, out, _ = run(target, first, "--format", "json")
    assert code == 0
    assert {one["ratio"] for one in json.loads(out)["cells"]} == {1.0}


@pytest.mark.parametrize("left", ["by this release", "by an older one"])
def test_a_first_baseline_is_written_after_one_that_was_killed(left: str, sides: tuple[Path, Path]) -> None:
    target = Path("results/baselines/ci")
    words = ["check", str(target), str(sides[0]), "--update"]
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_THE_RENAME, *words], timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name.startswith(".storebench-unfinished-") for path in target.iterdir()] == [True]
    if left == "by an older one":
        (target / "history").mkdir()
    code, _, err = run(target, sides[0], "--update")
    assert (code, err) == (0, f"wrote {target / 'baseline.json'}\n")
    files = [path.name for path in target.rglob("*") if path.is_file()]
    assert files == ["baseline.json"], "what the killed one left stays"


@pytest.mark.parametrize("there", ["notes.txt", "history/old.json"])
def test_a_first_baseline_does_not_replace_what_it_cannot_read(there: str, sides: tuple[Path, Path]) -> None:
    path = Path("results/baselines/ci", there)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    code, _, err = run("results/baselines/ci", sides[0], "--update")
    assert code == 3
    assert "Replace it with --reason TEXT." in err
    assert [path for path in Path("results").rglob("*") if path.is_file()] == [path]


def test_an_update_after_a_regression_needs_a_reason_that_is_stored(sides: tuple[Path, Path]) -> None:
    first, second = sides
    target = Path("results/baselines/ci")
    run(target, first, "--update")
    before = (target / "baseline.json").read_text()
    code, _, err = run(target, second, "--update")
    assert code == 1
    assert "--reason" in err
    assert (target / "baseline.json").read_text() == before
    assert run(target, second, "--update", "--reason", "the cells were renamed")[0] == 0
    after = json.loads((target / "baseline.json").read_text())
    assert after["reason"] == "the cells were renamed"
    assert any(CELLS[0] in line and "worse" in line for line in after["accepted"])
    (kept,) = (target / "history").iterdir()
    assert kept.read_text() == before


def test_history_keeps_every_baseline(sides: tuple[Path, Path]) -> None:
    first, _ = sides
    target = Path("results/baselines/ci")
    for _ in range(4):
        assert run(target, first, "--update")[0] == 0
    assert len(list((target / "history").iterdir())) == 3


@pytest.mark.parametrize(
    ("created", "stem"), [("2026-01-02T03:04:05+00:00", "2026-01-02T030405Z"), (None, "unknown")]
)
def test_two_baselines_of_one_time_both_stay_in_the_history(
    sides: tuple[Path, Path], created: str | None, stem: str
) -> None:
    first, _ = sides
    target = Path("results/baselines/ci")
    for _ in range(3):
        assert run(target, first, "--update")[0] == 0
        path = target / "baseline.json"
        raw = json.loads(path.read_text())
        del raw["created_utc"]
        path.write_text(json.dumps(raw if created is None else raw | {"created_utc": created}))
    names = {path.name for path in (target / "history").iterdir()}
    assert names == {f"{stem}.json", f"{stem}-2.json"}


def test_an_update_that_is_not_proven_slower_needs_a_reason_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = Path("results/baselines/ci")
    first = write_sessions(tmp_path / "a", seed=1, noise=0.3)
    second = write_sessions(tmp_path / "b", seed=1, noise=0.3, slower={CELLS[0]: 1.51})
    run(target, first, "--update")
    code, _, err = run(target, second, "--update")
    assert code == 1
    assert f"{CELLS[0]}: inconclusive: it took 1.5" in err
    assert run(target, second, "--update", "--reason", "a better disk layout")[0] == 0


def no_read_calls(extra: dict[str, Any]) -> None:
    if extra["cell_id"] == CELLS[0]:
        del extra["counters"]["read_calls"]


def erratic_tail() -> Callable[[str, list[float]], list[float]]:
    """Make one round slow in three sessions of five, which proves nothing."""
    factors = iter((1.0, 1.0, 4.0, 4.0, 4.0))

    def shaped(cell: str, seconds: list[float]) -> list[float]:
        return [seconds[0] * next(factors), *seconds[1:]] if cell == CELLS[0] else seconds

    return shaped


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ({"change": no_read_calls}, "failed: the baseline counted read_calls, the contender did not"),
        ({"shape": erratic_tail()}, "inconclusive: the slowest tenth of the rounds took "),
    ],
    ids=["counters", "tail"],
)
def test_an_update_that_loses_counters_or_has_a_slow_tail_needs_a_reason(
    planted: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = Path("results/baselines/ci")
    run(target, write_sessions(tmp_path / "a", seed=1, noise=0.001), "--update")
    second = write_sessions(tmp_path / "b", seed=2, noise=0.001, **planted)
    code, _, err = run(target, second, "--update")
    assert code == 1
    assert words in err
    assert CELLS[1] not in err
    assert run(target, second, "--update", "--reason", "it is so")[0] == 0


def test_a_baseline_cannot_drift_by_small_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = Path("results/baselines/ci")
    codes, err = [], ""
    for step in range(3):
        side = write_sessions(tmp_path / str(step), seed=1, noise=0.001, slower={CELLS[0]: 1.07**step})
        code, _, err = run(target, side, "--update")
        codes.append(code)
    assert codes == [0, 0, 1]
    assert f"{CELLS[0]}: drifted: it took 1.14 times as long as in the oldest baseline" in err
    # What a reason accepted is where the next drift is counted from, for that cell only.
    third = tmp_path / "2"
    assert run(target, third, "--update", "--reason", "it checks more now")[0] == 0
    slower = {CELLS[0]: 1.07**3, CELLS[1]: 1.07}
    assert run(target, write_sessions(tmp_path / "3", seed=1, noise=0.001, slower=slower), "--update")[0] == 0
    slower = {CELLS[0]: 1.07**3, CELLS[1]: 1.14}
    code, _, err = run(target, write_sessions(tmp_path / "4", seed=1, noise=0.001, slower=slower), "--update")
    assert code == 1
    assert CELLS[1] in err
    assert CELLS[0] not in err


def test_a_baseline_of_lower_quartiles_is_read_and_compared_with_nothing(sides: tuple[Path, Path]) -> None:
    first, _ = sides
    target = Path("results/baselines/ci")
    run(target, first, "--update")
    path = target / "baseline.json"
    raw = json.loads(path.read_text())
    raw["storebench_baseline"] = 1
    for cell in raw["cells"]:
        for name in ("figure", "tail_of", "samples", "rounds", "asked"):
            del cell[name]
    path.write_text(json.dumps(raw))
    code, out, _ = run(target, first)
    assert code == 3
    assert "lower quartile" in out
    assert run(target, first, "--update")[0] == 1
    assert run(target, first, "--update", "--reason", "medians from now on")[0] == 0
    assert run(target, first)[0] == 0


def test_a_run_with_failed_cells_is_no_baseline(sides: tuple[Path, Path]) -> None:
    _, second = sides
    path = second / "session-0.json"
    raw = json.loads(path.read_text())
    raw["storebench_failed"] = {"test_read.py::x": "oh"}
    path.write_text(json.dumps(raw))
    code, _, err = run("results/baselines/ci", second, "--update", "--reason", "please")
    assert code == 5
    assert "1 failed cell cannot be a baseline: test_read.py::x: oh" in err
    assert not Path("results").exists()


def test_baselines_are_written_nowhere_else(sides: tuple[Path, Path]) -> None:
    first, second = sides
    for elsewhere in ("elsewhere", "results/baselines", "results/baselines/../x", "results/baselines/a/b"):
        assert run(elsewhere, first, "--update")[0] == 2
    assert run(first, second, "--update", "--reason", "no")[0] == 2
    assert not Path("results").exists()


def test_a_baseline_of_another_schema_is_replaced_only_with_a_reason(sides: tuple[Path, Path]) -> None:
    first, _ = sides
    target = Path("results/baselines/ci")
    run(target, first, "--update")
    path = target / "baseline.json"
    path.write_text(path.read_text().replace('"storebench_baseline": 2', '"storebench_baseline": 0'))
    code, _, err = run(target, first)
    assert code == 3
    assert "schema version 0" in err
    assert run(target, first, "--update")[0] == 3
    assert run(target, first, "--update", "--reason", "new schema")[0] == 0
    assert run(target, first)[0] == 0


def test_a_baseline_of_records_is_read_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run_of(tmp_path / "run", {"lmdb": 1e-6, "hdf5": 2e-6})
    slow = run_of(tmp_path / "slow", {"lmdb": 1e-6, "hdf5": 2.8e-6}, seed=2)
    assert run("results/baselines/run", made, "--update")[0] == 0
    assert run("results/baselines/run", made)[0] == 0
    code, out, _ = run("results/baselines/run", slow)
    assert code == 1
    assert "cifar10/hdf5" in out
