"""Damage every file that storebench reads, hundreds of times: each answer is success or one line.

The command line runs in this process, for speed. Every change is drawn from a seed, and a failure names it.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hostile.hostile_run import SAMPLES, Here, records_of, write_records
from tests.hostile.mutations import RAW, as_json, cut_or_flipped, mutated
from tests.support.foreign_files import (
    jpegs,
    numbered,
    pickled,
    write_lmdb,
    write_per_image,
    write_vlen,
)
from tests.support.step_tables import split
from tests.support.thinning import some

ROUNDS = some(20)
"""Random changes of one file."""

VERIFIED = ("lmdb+raw", "hdf5+raw", "hdf5+png", "memory+raw", "memory+png", "files+png", "leveldb+raw")
READERS = {"lmdb+raw": ("get", "direct"), "hdf5+raw": ("get", "direct"), "memory+png": ("shared",)}


def judge_run(here: Here, run: Path, change: str) -> None:
    """Ask every verb that reads a run; a report is made only where it is refused, because plots take seconds."""
    refused = here("validate", run)
    refused.check(f"validate: {change}")
    here("trace", run, "--out", run / "trace.json").check(f"trace: {change}")
    here("check", run, run).check(f"check: {change}")
    if refused.code:
        here("report", run, "--out", run / "report").check(f"report: {change}")


@pytest.mark.parametrize("seed", range(4))
def test_records_with_impossible_values_are_one_line(here: Here, run: Path, seed: int) -> None:
    records, random_ = records_of(run), random.Random(seed)
    for _ in range(ROUNDS):
        change, record = mutated(records[0], random_)
        write_records(run, [record, *records[1:]])
        judge_run(here, run, change)


@pytest.mark.parametrize("seed", range(2))
def test_a_forced_report_of_impossible_records_ends_in_order(here: Here, run: Path, seed: int) -> None:
    records, random_ = records_of(run), random.Random(f"forced {seed}")
    drawn = False
    while not drawn:
        change, record = mutated(records[0], random_)
        write_records(run, [record, *records[1:]])
        answer = here("report", run, "--out", run / "report", "--allow-invalid")
        answer.check(change)
        drawn = answer.code == 0


def test_a_run_json_with_impossible_values_is_one_line(here: Here, run: Path) -> None:
    path, random_ = run / "run.json", random.Random(2)
    about = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(ROUNDS):
        change, document = mutated(about, random_)
        path.write_bytes(as_json(document))
        judge_run(here, run, f"run.json: {change}")


LAYOUTS = ("steps.parquet", "steps")
"""How a run has its step tables: all in one file, or each in a file of its own."""


def table_file(run: Path, layout: str) -> Path:
    """Return the file of step tables to damage."""
    if layout == "steps.parquet":
        return run / layout
    split(run)
    return next((run / "steps").glob("*e0.parquet"))


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("file", ["records.jsonl", "run.json", "conversions.jsonl", "against.json", *LAYOUTS])
def test_a_file_of_a_run_with_other_content_is_one_line(here: Here, run: Path, file: str, name: str) -> None:
    path = table_file(run, file) if file in LAYOUTS else run / file
    path.write_bytes(RAW[name])
    judge_run(here, run, f"{file}: {name}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_table_of_steps_is_one_line(here: Here, run: Path, layout: str) -> None:
    path, random_ = table_file(run, layout), random.Random(3)
    content = path.read_bytes()
    for _ in range(ROUNDS):
        change, damaged = cut_or_flipped(content, random_)
        path.write_bytes(damaged)
        judge_run(here, run, f"steps: {change}")


COLUMNS: dict[str, Callable[[int], Any]] = {
    "text": lambda rows: pa.array(["x"] * rows),
    "nulls": lambda rows: pa.nulls(rows, pa.int64()),
    "no numbers": lambda rows: pa.array([float("nan")] * rows),
    "large numbers": lambda rows: pa.array([2**62] * rows),
    "zeros": lambda rows: pa.array([0] * rows),
    "negative numbers": lambda rows: pa.array([-1] * rows),
    "lists": lambda rows: pa.array([[1]] * rows),
    "times": lambda rows: pa.array([0] * rows, pa.timestamp("ns")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_table_of_steps_with_another_column_is_one_line(
    here: Here, run: Path, kind: str, layout: str
) -> None:
    path = table_file(run, layout)
    write_records(run, records_of(run))
    table = pq.read_table(path)
    assert len(table) == {"steps": 6, "steps.parquet": 12}[layout]
    for position, name in enumerate(table.column_names):
        column = COLUMNS[kind](len(table))
        pq.write_table(table.set_column(position, name, column), path, row_group_size=6)
        here("validate", run).check(f"validate: {name} holds {kind}")
        here("trace", run, "--out", run / "trace.json").check(f"trace: {name} holds {kind}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_of_steps_without_a_column_or_a_row_is_one_line(here: Here, run: Path, layout: str) -> None:
    path = table_file(run, layout)
    write_records(run, records_of(run))
    table = pq.read_table(path)
    for name in table.column_names:
        pq.write_table(table.drop_columns([name]), path, row_group_size=6)
        judge_run(here, run, f"{name} is missing")
    pq.write_table(table.slice(0, 0), path)
    judge_run(here, run, "no steps")


def test_conversions_with_impossible_values_are_left_out(here: Here, run: Path) -> None:
    from storebench.runs.conversions import ConversionRecord, append_conversion, read_conversions

    record = ConversionRecord(
        storebench_version="0", run_id="x", replicate=0, dataset="mnist", source="files+png", target="lmdb+raw",
        started_utc="2026-01-01T00:00:00+00:00", seconds=1.0,
    )  # fmt: skip
    append_conversion(run, record)
    path, random_ = run / "conversions.jsonl", random.Random(4)
    raw = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(ROUNDS):
        change, document = mutated(raw, random_)
        path.write_bytes(as_json(document))
        assert len(read_conversions(run)) <= 1, change
    path.write_bytes(as_json(raw))
    assert read_conversions(run) == [record]


@pytest.mark.parametrize("store", ["lmdb+raw", "hdf5+png", "memory+raw"])
def test_a_manifest_with_impossible_values_is_one_line(here: Here, stores: Path, store: str) -> None:
    path, random_ = stores / store / "manifest.json", random.Random(store)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(ROUNDS):
        change, document = mutated(manifest, random_)
        path.write_bytes(as_json(document))
        here("verify", stores / store).check(change)


@pytest.mark.parametrize("name", RAW)
def test_any_file_of_a_store_with_other_content_is_one_line(here: Here, stores: Path, name: str) -> None:
    for store in VERIFIED:
        for path in sorted(path for path in (stores / store).rglob("*") if path.is_file())[:6]:
            content = path.read_bytes()
            if content == RAW[name]:
                continue
            path.write_bytes(RAW[name])
            for reader in ("", *READERS.get(store, ())):
                answer = here("verify", stores / store, *(("--reader", reader) if reader else ()))
                answer.check(f"{store}: {path.name}: {name}")
                assert answer.code, f"{store}: {path.name}: {name}"
            path.write_bytes(content)


@pytest.mark.parametrize("store", ["memory+raw", "memory+png", "hdf5+raw", "hdf5+png", "files+png"])
def test_a_damaged_array_of_a_store_is_one_line(here: Here, stores: Path, store: str) -> None:
    random_ = random.Random(store)
    paths = sorted(path for path in (stores / store).rglob("*") if path.suffix in {".npy", ".h5", ".bin"})
    for _ in range(ROUNDS // 2):
        path = random_.choice(paths)
        content = path.read_bytes()
        change, damaged = cut_or_flipped(content[: 1 << 12], random_)
        path.write_bytes(damaged + content[1 << 12 :])
        for reader in ("", *READERS.get(store, ())):
            answer = here("verify", stores / store, *(("--reader", reader) if reader else ()))
            answer.check(f"{path.name}: {change}")
        path.write_bytes(content)


def test_a_damaged_page_index_is_not_used(here: Here, stores: Path) -> None:
    store, random_ = stores / "lmdb+raw", random.Random(5)
    assert here("verify", store, "--reader", "direct").code == 0
    (path,) = stores.glob(".*.pages")
    content = path.read_bytes()
    for change, damaged in [
        *RAW.items(),
        *(cut_or_flipped(content, random_) for _ in range(ROUNDS // 2)),
        ("longer than any index", content + bytes(1 << 20)),
    ]:
        path.write_bytes(damaged)
        answer = here("verify", store, "--reader", "direct")
        answer.check(change)
        assert answer.code == 0, change


@pytest.mark.parametrize("file", ["lmdb+raw/data.mdb", "hdf5+raw/data.h5", "hdf5+png/data.h5"])
def test_a_damaged_file_that_is_inspected_is_one_line(
    here: Here, stores: Path, in_memory: Path, file: str
) -> None:
    path, random_ = in_memory / Path(file).name, random.Random(file)
    shutil.copyfile(stores / file, path)
    content = path.read_bytes()
    for _ in range(ROUNDS):
        change, damaged = cut_or_flipped(content[: 1 << 14], random_)
        path.write_bytes(damaged + content[1 << 14 :])
        here("inspect", path, "--samples", "3").check(change)
    for name, other in RAW.items():
        path.write_bytes(other)
        here("inspect", path, "--samples", "3").check(name)


FOREIGN: dict[str, Callable[[Path], Path]] = {
    "values of variable length": lambda folder: write_vlen(folder / "a.h5", jpegs(20)),
    "compressed references": lambda folder: write_vlen(
        folder / "a.h5", jpegs(20), chunks=(4,), compression="gzip"
    ),
    "a data set per image": lambda folder: write_per_image(folder / "a.h5", jpegs(20)),
    "pickles in LMDB": lambda folder: write_lmdb(folder / "a", numbered(pickled(jpegs(20)))),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_damaged_file_of_another_program_is_one_line(here: Here, in_memory: Path, kind: str) -> None:
    place, random_ = FOREIGN[kind](in_memory), random.Random(kind)
    files = [path for path in sorted(place.iterdir()) if path.stat().st_size] if place.is_dir() else [place]
    for _ in range(ROUNDS // 2):
        path = random_.choice(files)
        content = path.read_bytes()
        change, damaged = cut_or_flipped(content, random_)
        path.write_bytes(damaged)
        here("inspect", place, "--samples", "20").check(f"{path.name}: {change}")
        path.write_bytes(content)


@pytest.fixture
def baseline(here: Here, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a baseline that was made of the run."""
    monkeypatch.chdir(tmp_path)
    answer = here("check", "results/baselines/planted", run, "--update", "--reason", "a test")
    assert answer.code == 0, answer.err
    return tmp_path / "results" / "baselines" / "planted" / "baseline.json"


@pytest.mark.parametrize("seed", range(2))
def test_a_baseline_with_impossible_values_is_one_line(
    here: Here, run: Path, baseline: Path, seed: int
) -> None:
    random_, raw = random.Random(seed), json.loads(baseline.read_text(encoding="utf-8"))
    for _ in range(ROUNDS):
        change, document = mutated(raw, random_)
        baseline.write_bytes(as_json(document))
        here("check", baseline, run).check(change)
        here("check", run, baseline).check(f"as the contender: {change}")


@pytest.mark.parametrize("name", RAW)
def test_a_baseline_with_other_content_is_one_line(here: Here, run: Path, baseline: Path, name: str) -> None:
    baseline.write_bytes(RAW[name])
    for arguments in ((baseline, run), (run, baseline), (baseline.parent, run), (run, baseline.parent)):
        here("check", *arguments).check(name)
    here("check", "results/baselines/planted", run, "--update", "--reason", "a test").check(
        f"--update: {name}"
    )


def test_a_baseline_with_an_impossible_history_is_one_line(here: Here, run: Path, baseline: Path) -> None:
    content = baseline.read_text(encoding="utf-8")
    wrong: tuple[Any, ...] = (1, None, "../../../planted", "x" * 5000, "\x00", [], "a/b")
    for created in wrong:
        changed = json.loads(content) | {"created_utc": created, "accepted": [1, None]}
        baseline.write_bytes(as_json(changed))
        answer = here("check", "results/baselines/planted", run, "--update", "--reason", "a test")
        answer.check(f"created {created!r:.40}")
        assert answer.code == 0, answer.err
    kept = [path for path in baseline.parent.parent.rglob("*") if path.is_file()]
    assert {path.parent.name for path in kept} == {"planted", "history"}


def session() -> dict[str, Any]:
    extra = {"cell_id": "read/x", "samples": 10, "calibration_s": [1.0] * 6, "counters": {"read_calls": 3.0}}
    stats = {"data": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "median": 1.25}
    benchmark = {"fullname": "a.py::b", "extra_info": extra, "stats": stats}
    return {"machine_info": {"machine": "x", "cpu": {"count": 2}}, "benchmarks": [benchmark]}


def test_sessions_of_benchmarks_with_impossible_values_are_one_line(here: Here, tmp_path: Path) -> None:
    path, other, random_ = tmp_path / "session.json", tmp_path / "other.json", random.Random(6)
    other.write_bytes(as_json(session()))
    for _ in range(ROUNDS):
        change, document = mutated(session(), random_)
        path.write_bytes(as_json(document))
        here("check", path, other).check(change)
        here("check", other, path).check(f"as the contender: {change}")


SCENARIO = """\
name = "s"
replicates = 2

[[matrix]]
dataset = "mnist"
synthetic = true
limit = 8
size = 10
backends = ["lmdb"]
cache = ["warm", "limited"]
memory = "400 MiB"
compute = "none"
workers = [0]
seed = 1
"""
TOML_VALUES = (
    *("-1", "0", str(2**40), str(2**70), "1e999", "nan", "true", '""', '"\\u0000"', "[]", "{}", "[[1]]"),
    *(
        "[" * 5000 + "]" * 5000,
        '"emulated:' + "9" * 400 + '"',
        '"' + "9" * 400 + ' TiB"',
        "9" * 5000,
        "07:32:00",
    ),
    *("2026-13-45", '"cuda:' + "9" * 30 + '"', "'''", '"x'),
)


@pytest.mark.parametrize("key", [line.split(" = ")[0] for line in SCENARIO.splitlines() if " = " in line])
def test_a_scenario_with_an_impossible_value_is_one_line(here: Here, tmp_path: Path, key: str) -> None:
    path = tmp_path / "scenario.toml"
    for value in TOML_VALUES:
        lines = (
            f"{key} = {value}" if line.startswith(f"{key} =") else line for line in SCENARIO.splitlines()
        )
        path.write_text("\n".join(lines), encoding="utf-8")
        answer = here("bench", path, "--dry-run", "--out", tmp_path / "run", "--stores", tmp_path / "stores")
        answer.check(f"{key} = {value:.40}")


@pytest.mark.parametrize("name", RAW)
def test_a_scenario_or_policy_with_other_content_is_one_line(
    here: Here, run: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "planted.toml"
    path.write_bytes(RAW[name])
    here("bench", path, "--dry-run", "--stores", tmp_path / "stores").check(name)
    here("check", run, run, "--policy", path).check(name)


POLICY = ("practical_frac", "alpha", "min_replicates", "max_inconclusive_frac", "basis", "tail_frac", "cells")


@pytest.mark.parametrize("key", [*POLICY, "counters", "trust_calibration"])
def test_a_policy_with_an_impossible_value_is_one_line(
    here: Here, run: Path, tmp_path: Path, key: str
) -> None:
    path = tmp_path / "policy.toml"
    for value in TOML_VALUES:
        path.write_text(f"{key} = {value}\n", encoding="utf-8")
        here("check", run, run, "--policy", path).check(f"{key} = {value:.40}")


@pytest.mark.parametrize("name", RAW)
def test_a_run_that_is_resumed_from_other_content_is_one_line(
    here: Here, built: Path, run: Path, name: str
) -> None:
    (run / "run.json").write_bytes(RAW[name])
    answer = here("bench", built / "scenario.toml", "--resume", "--out", run, "--stores", built / "stores")
    answer.check(name)
    assert answer.code in {2, 5}


def test_the_stores_are_where_these_tests_look_for_them(built: Path) -> None:
    assert {path.name for path in (built / "stores" / SAMPLES).iterdir() if path.is_dir()} >= {*VERIFIED}
