"""A run that is killed, interrupted, or has cells that die: nothing is lost, doubled or left behind."""

import dataclasses
import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from storebench.record.lines import LOGS_DIR, RECORDS_NAME, read_records
from storebench.run.schedule import schedule
from storebench.units import number_of
from tests.support.harness_tools import (
    SMALL,
    SMALL_MATRIX,
    Bench,
    busy_run,
    scenario,
    started,
    wait_for,
    write_scenario,
)


def lines(run: Path) -> int:
    path = run / RECORDS_NAME
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def tally(run: Path) -> Counter[tuple[str, int, int]]:
    return Counter((record.cell.backend.name, record.replicate, record.epoch) for record in read_records(run))


@pytest.mark.full
def test_killed_in_the_middle_and_resumed_each_epoch_is_recorded_once(bench: Bench, tmp_path: Path) -> None:
    path, run = tmp_path / "matrix.toml", tmp_path / "run"
    matrix = {**SMALL_MATRIX, "epochs": 2, "backends": ["lmdb", "memory:native"]}
    write_scenario(path, matrix, replicates=2)
    bench_it = ("bench", path, "--stores", bench.stores, "--out", run)
    with started(bench, *bench_it) as process:
        wait_for(lambda: lines(run) >= 2)
        wait_for(lambda: psutil.Process(process.pid).children())  # into the next cell
        process.kill()
        process.wait()
    before = (run / RECORDS_NAME).read_bytes()
    whole = sum(tally(run).values()) // 2
    assert 1 <= whole < 4
    with (run / RECORDS_NAME).open("ab") as file:
        file.write(before.splitlines()[0][:200])  # as a machine that lost power might leave it

    done = bench.cli(*bench_it, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert f"{number_of(4 - whole, 'replicate')} done" in done.stderr  # what is finished is not run again
    expected = [(b, r, e) for b in ("lmdb", "memory:native") for r in (0, 1) for e in (0, 1)]
    assert tally(run) == Counter(expected)
    assert len(json.loads(done.stdout)) == 8
    content = (run / RECORDS_NAME).read_bytes()
    assert content.startswith(before)
    assert content.endswith(b"\n")
    assert {record.run_id for record in read_records(run)} == {
        json.loads((run / "run.json").read_text())["run_id"]
    }

    again = bench.cli(*bench_it, "--resume")
    assert again.returncode == 0, again.stderr
    assert " done" not in again.stderr
    assert (run / RECORDS_NAME).read_bytes() == content

    shutil.rmtree(run / LOGS_DIR)  # git, for one, keeps no empty folder
    more = bench.cli(*bench_it, "--resume", "--replicates", "3")
    assert more.returncode == 0, more.stderr
    added = [(b, 2, e) for b in ("lmdb", "memory:native") for e in (0, 1)]
    assert tally(run) == Counter(expected + added)
    assert (run / RECORDS_NAME).read_bytes().startswith(content)
    fewer = bench.cli(*bench_it, "--resume", "--replicates", "2")
    assert fewer.returncode == 2
    assert "the run has 3 planned replicates, which cannot become 2" in fewer.stderr


def test_interrupted_it_says_so_ends_its_cell_and_leaves_no_half_record(bench: Bench, tmp_path: Path) -> None:
    """With workers: `test_leftovers.py`."""
    with busy_run(bench, tmp_path, workers=0) as (process, family):
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 130
        assert stdout == ""
        assert "interrupted" in stderr.splitlines()[-1]
        continuing = f"storebench run --resume --out {tmp_path / 'run'}"
        assert f"'{continuing}' continues this run" in stderr.splitlines()[-2]
        assert "Traceback" not in stderr
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
    assert lines(tmp_path / "run") == 0


def test_a_run_that_finds_no_data_leaves_nothing_that_looks_like_a_result(
    bench: Bench, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    options = ("-d", "mnist", "--stores", tmp_path / "stores", "--out", out)
    broken = tmp_path / "data" / "mnist"
    broken.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        (broken / name).write_bytes(b"not an archive")
    damaged = dataclasses.replace(bench, env={**bench.env, "STOREBENCH_DATA": str(tmp_path / "data")})
    done = damaged.cli("run", "lmdb", *options)
    assert done.returncode == 5, done.stderr
    assert not out.exists()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert damaged.cli("run", "lmdb", *options).returncode == 5
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_a_cell_and_its_workers_do_not_outlive_a_runner_that_is_killed(bench: Bench, tmp_path: Path) -> None:
    with busy_run(bench, tmp_path, workers=2) as (process, family):
        process.kill()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
    assert lines(tmp_path / "run") == 0


def test_cells_that_die_or_serve_wrong_samples_fail_alone(bench: Bench, tmp_path: Path) -> None:
    backends = ("planted:killed", "planted:broken", "planted:wrong", "planted", "lmdb")
    done, records = bench.run(*backends, *SMALL, out=tmp_path / "run")
    assert done.returncode == 5
    by = {record["cell"]["reader"]: record for record in records}
    assert len(records) == len(by) == 5
    assert {name: one["status"] for name, one in by.items()} == {
        "killed": "failed",
        "broken": "failed",
        "wrong": "failed",
        "flat": "ok",
        "get": "ok",
    }
    assert "signal SIGKILL" in by["killed"]["failure"]
    said = "unexpected error: ZeroDivisionError: a bug in somebody's reader; see logs/"
    assert by["broken"]["failure"].startswith(said)
    assert "the first sample 7" in by["wrong"]["failure"]
    log = by["broken"]["failure"].rpartition(" ")[2]
    assert "Traceback (most recent call last)" in (tmp_path / "run" / log).read_text()
    assert "3 of 5 records failed" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_every_round_runs_each_cell_once_in_a_seeded_order_of_its_own() -> None:
    cells = scenario(
        dataset="mnist", backends=["lmdb", "hdf5", "png"], workers=[0, 1, 2], cache=["cold", "warm"]
    ).cells()
    work = schedule(cells, 5, seed=3)
    rounds = [work[start : start + len(cells)] for start in range(0, len(work), len(cells))]
    for number, one in enumerate(rounds):
        assert {each.replicate for each in one} == {number}
        assert Counter(each.cell for each in one) == Counter(cells)
    orders = {tuple(each.cell.cell_id for each in one) for one in rounds}
    assert len(orders) == 5
    assert schedule(cells, 5, seed=3) == work
    assert schedule(cells, 5, seed=4) != work
    # More rounds only add: what a resumed run still has to do does not depend on how far it came.
    assert schedule(cells, 7, seed=3)[: len(work)] == work


def test_cells_that_are_compared_with_each_other_run_one_after_the_other() -> None:
    cells = scenario(
        dataset="mnist", backends=["lmdb", "hdf5", "png"], workers=[0, 1], cache=["cold", "warm"]
    ).cells()
    blocks = []
    for one in range(0, 5 * len(cells), 3):
        block = schedule(cells, 5, seed=3)[one : one + 3]
        assert {each.cell.backend.name for each in block} == {"lmdb", "hdf5", "png"}
        assert len({(each.replicate, each.cell.workers, each.cell.cache) for each in block}) == 1
        blocks.append(tuple(each.cell.backend.name for each in block))
    assert len(set(blocks)) > 2, "their order is drawn, too"


def test_a_process_of_its_own_runs_every_replicate(six: tuple[Path, list[dict[str, Any]]]) -> None:
    started_at = [one["started_utc"] for one in six[1]]
    assert len(set(started_at)) == len(started_at)
