"""Runs of releases whose options had the papers' names: read, resumed, validated and reported as the same cells."""

import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storebench.check.sides.read import read_side
from storebench.errors import CorruptDataError
from storebench.report.analysis import load_results
from storebench.report.cells import summarise
from storebench.report.validation.findings import Rule
from storebench.report.validation.validate import validate
from storebench.runs.folder import Run
from storebench.runs.records import read_records
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench, cell_job, scenario

MATRIX = {
    "dataset": "mnist",
    "synthetic": True,
    "limit": 16,
    "batch_size": 8,
    "model": "tiny",
    "compute": "emulated:1",
}
EARLIER = {
    "lmdb:direct?merged=off": "lmdb:direct?coal=off",
    "lmdb:direct?explicit=off,index=off,merged=off": "lmdb:direct?coal=off,dio=off,prov=off",
    "lmdb:shared": "lmdb:direct?lmm=on",
    "lmdb": "lmdb",
}
"""Backend -> its name in the earlier release."""

TOML = f"""
name = "ladder"
replicates = 2
test_limit = 0

[[matrix]]
{"".join(f"{name} = {json.dumps(value)}{chr(10)}" for name, value in MATRIX.items())}
threads = 1
backends = {json.dumps(list(EARLIER))}
"""

Raw = dict[str, Any]

RANK_SETTINGS: Raw = {
    "ranks": 1,
    "global_batch_size": None,
    "pad": False,
    "sync": "overlapped",
    "share": "none",
    "store_fill": "preload",
    "store_memory_bytes": None,
    "store_spill": False,
    "trainers": 1,
    "trainer_data": "partitioned",
    "tournament_steps": 0,
}
"""Settings that earlier releases did not have, as a cell of one process has them."""


def cell_id(cell: Raw) -> str:
    """Return the id of a cell's fields, as every release computes it."""
    later = (
        "memory_bytes",
        "readahead_kib",
        "passes",
        *RANK_SETTINGS,
        "image_size",
        "skip_unreadable",
        "codec_options",
    )
    plain: tuple[Any, ...] = (None, [], False)
    fields = {
        name: value
        for name, value in cell.items()
        if (name not in later or value not in plain) and value != RANK_SETTINGS.get(name, ...)
    }
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=6).hexdigest()


def in_earlier_names(cell: Raw) -> Raw:
    """Return the fields of a cell as the earlier release wrote them."""
    backend = EARLIER[cell["backend"]]
    pairs = [pair.split("=") for pair in backend.partition("?")[2].split(",") if pair]
    reader = "direct" if cell["reader"] == "shared" else cell["reader"]
    known = {
        name: value
        for name, value in cell.items()
        if name not in (*RANK_SETTINGS, "image_size", "skip_unreadable", "codec_options")
    }
    return known | {"backend": backend, "reader": reader, "reader_options": pairs}


def make_earlier(run: Path) -> None:
    """Rewrite a run's files as the earlier release would have written them."""
    about = json.loads((run / "run.json").read_text(encoding="utf-8"))
    for number, cell in enumerate(about["cells"]):
        fields = {name: value for name, value in cell.items() if name != "cell_id"}
        assert cell_id(fields) == cell["cell_id"]
        earlier = in_earlier_names(fields)
        about["cells"][number] = earlier | {"cell_id": cell_id(earlier)}
    for matrix in about["scenario"]["matrix"]:
        matrix["backends"] = [EARLIER[backend] for backend in matrix["backends"]]
    (run / "run.json").write_text(json.dumps(about), encoding="utf-8")
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record | {"cell": in_earlier_names(record["cell"])} for record in map(json.loads, lines)]
    (run / "records.jsonl").write_text(
        "".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs:
    """One run twice: as this release wrote it, and as the earlier one would have."""

    now: Path
    earlier: Path


@pytest.fixture(scope="module")
def runs(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("earlier")
    of = scenario(**MATRIX, backends=list(EARLIER)).model_copy(update={"name": "ladder", "replicates": 2})
    run = Run.create(of, root / "now", of.cells())
    for work in run.left():
        with run.attempt() as tables:
            job = cell_job(work.cell, bench.stores, run.folder)
            job = dataclasses.replace(job, replicate=work.replicate, run_id=run.run_id, tables=tables)
            run.record(run_replicate(Setup.of(job)), tables)
    shutil.copytree(root / "now", root / "earlier")
    make_earlier(root / "earlier")
    assert '"lmdb:direct?lmm=on"' in (root / "earlier" / "run.json").read_text(encoding="utf-8")
    return Runs(now=root / "now", earlier=root / "earlier")


def test_records_are_those_of_the_same_cells(runs: Runs) -> None:
    now, earlier = read_records(runs.now), read_records(runs.earlier)
    assert earlier == now
    assert {str(record.cell.backend) for record in earlier} == set(EARLIER)
    assert [one.cell.cell_id for one in earlier] == [one.cell.cell_id for one in now]


def test_a_finished_run_has_nothing_left(runs: Runs) -> None:
    run = Run.read(runs.earlier)
    assert run.left() == []
    assert run.cells == Run.read(runs.now).cells


def test_a_resumed_run_adds_what_is_missing_and_no_cell_twice(
    runs: Runs, bench: Bench, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(runs.earlier, tmp_path / "run"))
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    (tmp_path / "ladder.toml").write_text(TOML, encoding="utf-8")
    done = bench.cli("bench", tmp_path / "ladder.toml", "--resume", "--out", run, "--stores", bench.stores)
    assert done.returncode == 0, done.stderr
    recorded = (run / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    assert recorded[:-1] == lines[:-1]
    assert len(recorded) == len(lines)
    counts = Counter((record.cell.cell_id, record.replicate) for record in read_records(run))
    assert set(counts.values()) == {1}
    assert Run.read(run).left() == []


def test_an_extended_run_keeps_its_cells(runs: Runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs.earlier, tmp_path / "run"))
    extended = Run.resume(run).extended(3)
    assert [work.replicate for work in Run.read(run).left()] == [2] * len(EARLIER)
    assert Run.read(run).cells == extended.cells


def test_validation_finds_every_record_in_its_run(runs: Runs) -> None:
    assert [finding for finding in validate([runs.earlier]) if finding.kind is not Rule.ARITHMETIC] == []


def test_a_report_of_both_has_each_backend_once(runs: Runs) -> None:
    cells = summarise(load_results([runs.now, runs.earlier]))
    assert sorted(str(cell.backend) for cell in cells) == sorted(EARLIER)
    assert {len(cell.rows) for cell in cells} == {4}


@pytest.mark.parametrize("name", ["lmdb:direct?lmm=on", "lmdb:shared"])
def test_trace_finds_a_cell_by_both_names(name: str, runs: Runs, bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    done = bench.cli("trace", runs.earlier, "--cell", name, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "lmdb:shared" in out.read_text(encoding="utf-8")


def test_only_takes_both_names(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "ladder.toml").write_text(TOML, encoding="utf-8")
    only = ["--only", "lmdb:direct?coal=off"]
    done = bench.cli("bench", tmp_path / "ladder.toml", "--dry-run", "--json", *only)
    assert done.returncode == 0, done.stderr
    [cell] = json.loads(done.stdout)["cells"]
    assert cell["backend"] == "lmdb:direct?merged=off"


@pytest.mark.parametrize(
    "options",
    [5, "coal", ["coal"], [["coal"]], [["coal", 1]], {"coal": "off"}, [["coal", "off", "on"]], None],
    ids=str,
)
def test_options_that_are_no_pairs_are_refused_as_a_record(
    runs: Runs, tmp_path: Path, options: object
) -> None:
    record = json.loads((runs.earlier / "records.jsonl").read_text(encoding="utf-8").splitlines()[0])
    record["cell"]["reader_options"] = options
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(CorruptDataError, match="reader_options"):
        read_records(tmp_path)


def test_a_baseline_of_the_earlier_release_has_the_same_cells(
    runs: Runs, bench: Bench, tmp_path: Path
) -> None:
    base = bench.root / "results" / "baselines" / "earlier"
    done = bench.cli("check", base.relative_to(bench.root), runs.now, "--update", "--reason", "the first")
    assert done.returncode == 0, done.stderr
    content = json.loads((base / "baseline.json").read_text(encoding="utf-8"))
    before = {one["cell_id"]: one["label"] for one in content["cells"]}
    for one in content["cells"]:
        now = one["asked"]["backend"]
        one["asked"] = in_earlier_names(one["asked"])
        one["label"] = one["label"].replace(f"/{now}/", f"/{EARLIER[now]}/")
        one["cell_id"] = one["rerun"] = cell_id(one["asked"])
    assert {one["cell_id"] for one in content["cells"]} != set(before)
    (base / "baseline.json").write_text(json.dumps(content), encoding="utf-8")
    side = read_side(base, baseline=True)
    assert {cell.cell_id: cell.label for cell in side.cells.values()} == before
    assert set(side.cells) == set(read_side(runs.now, baseline=False).cells)
    assert all(cell.rerun == name for name, cell in side.cells.items())
