"""A run with a budget ends the cells that the answer needs least, and an interrupted one reports on its rounds."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from storebench.record.lines import RECORDS_NAME, read_records
from tests.support.harness_tools import Bench, started, wait_for

HEAD = """
name = "budget"
replicates = 6
ceilings = false
test_limit = 0
"""


def matrix(limit: int, priority: int, *backends: str) -> str:
    return f"""
[[matrix]]
dataset = "mnist"
synthetic = true
limit = {limit}
compute = "none"
model = "none"
threads = 1
backends = {json.dumps(backends)}
cache = "warm"
priority = {priority}
"""


CELLS = HEAD + matrix(320, 1, "png", "lmdb") + matrix(256, 2, "png", "lmdb")


def rounds(run: Path) -> Counter[int | None]:
    return Counter(record.cell.data.limit for record in read_records(run))


def test_cells_of_a_higher_number_end_first_and_the_answer_has_five_rounds(
    bench: Bench, tmp_path: Path
) -> None:
    scenario, run, report = tmp_path / "budget.toml", tmp_path / "run", tmp_path / "report"
    scenario.write_text(CELLS)
    words = ("bench", scenario, "--stores", bench.stores, "--out", run)
    done = bench.cli(*words, "--budget", "1 s", "--report", report)
    assert done.returncode == 0, done.stderr
    assert "round 2 of 6: " in done.stderr
    assert rounds(run) == {320: 10, 256: 2}
    page = (report / "report.md").read_text()
    assert "Undecided for want of time, 1 s" in page
    assert "INCOMPLETE" not in page
    again = bench.cli(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert rounds(run) == {320: 10, 256: 2}
    more = bench.cli(*words, "--resume", "--replicates", "6")
    assert more.returncode == 0, more.stderr
    assert rounds(run) == {320: 12, 256: 12}


def test_time_that_is_left_goes_to_the_cells_that_were_ended(bench: Bench, tmp_path: Path) -> None:
    scenario, run = tmp_path / "budget.toml", tmp_path / "run"
    # The first round is so long that five of it would not fit.
    cells = HEAD + matrix(320, 1, "planted:warming") + matrix(256, 2, "lmdb")
    scenario.write_text(cells.replace("replicates = 6", "replicates = 5"))
    words = ("bench", scenario, "--stores", tmp_path / "stores", "--out", run)
    done = bench.cli(*words, "--budget", "20 s")
    assert done.returncode == 0, done.stderr
    assert "1 cell: no further round after 1" in done.stderr
    assert rounds(run) == {320: 5, 256: 5}
    again = bench.cli(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert rounds(run) == {320: 5, 256: 5}


def test_a_budget_that_is_not_used_up_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    scenario, run = tmp_path / "budget.toml", tmp_path / "run"
    scenario.write_text(CELLS.replace("replicates = 6", "replicates = 2"))
    done = bench.cli("bench", scenario, "--stores", bench.stores, "--out", run, "--budget", "1 h")
    assert done.returncode == 0, done.stderr
    assert rounds(run) == {320: 4, 256: 4}
    assert "ended" not in json.loads((run / "run.json").read_text())


def test_an_interrupted_run_reports_on_what_it_has(bench: Bench, tmp_path: Path) -> None:
    scenario, run, report = tmp_path / "budget.toml", tmp_path / "run", tmp_path / "report"
    scenario.write_text(CELLS.replace("replicates = 6", "replicates = 900"))
    words = ("bench", scenario, "--stores", bench.stores, "--out", run, "--report", report, "--json")
    with started(bench, *words) as process:
        wait_for(lambda: (run / RECORDS_NAME).is_file() and rounds(run).total() > len(CELLS.split("[[")))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert (report / "report.html").is_file()
    assert "INCOMPLETE" in (report / "report.md").read_text()
    done = bench.cli(*words, "--resume", "--budget", "1 s")
    assert len(json.loads(done.stdout)) == rounds(run).total()
    assert "Undecided for want of time, 1 s" in (report / "report.md").read_text()


@pytest.mark.full
def test_an_interrupted_run_ends_with_the_summary_of_its_rounds(bench: Bench, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("run", "png", "lmdb", "-d", "mnist", "--synthetic", "--limit", "320", "--replicates", "900")
    with started(bench, *words, "--threads", "1", "--stores", bench.stores, "--out", run) as process:
        wait_for(lambda: (run / RECORDS_NAME).is_file() and rounds(run).total() > 2)
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "INCOMPLETE" in output
    rows = {line.split("  ")[0] for line in output.splitlines()}
    assert {"PNG files", "LMDB"} <= rows
